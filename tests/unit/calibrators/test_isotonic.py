from functools import partial

import numpy as np
import pytest
import scipy.special
from sklearn.isotonic import IsotonicRegression

from recal.calibrators import IsotonicCalibration, IsotonicMulticlass, IsotonicOneVsAll
from recal.calibrators.isotonic import fit_increasing
from recal.errors import InputError
from recal.maps.arrays import softmax
from tests.problems import logits_and_labels

problem = partial(logits_and_labels, n=400, spread=1.0, scale=2.0)


def reference_curve(scores, hits):
    return IsotonicRegression(out_of_bounds="clip", y_min=0, y_max=1).fit(scores, hits)


@pytest.mark.parametrize("decimals", [None, 1], ids=["distinct", "with ties"])
def test_a_curve_is_scikit_learns(decimals):
    logits, labels = problem()
    logits = logits if decimals is None else logits.round(decimals)
    scores = softmax(logits)[:, 1].round(12)
    knots, values = fit_increasing(scores, labels == 1)
    grid = np.linspace(0, 1, 1001)
    np.testing.assert_allclose(
        np.interp(grid, knots, values),
        reference_curve(scores, labels == 1).predict(grid),
        rtol=0,
        atol=1e-12,
    )
    assert (np.diff(knots) > 0).all()


def log_odds(logits):
    return scipy.special.logit(softmax(logits))


def test_one_vs_rest_without_smoothing_is_scikit_learns_normalised():
    logits, labels = problem()
    fresh, _ = problem(seed=1)
    raw = np.stack(
        [
            reference_curve(log_odds(logits)[:, k], labels == k).predict(log_odds(fresh)[:, k])
            for k in range(logits.shape[1])
        ],
        axis=1,
    )
    answer = IsotonicCalibration(penalty=0).fit(logits, labels).predict_proba(fresh)
    np.testing.assert_allclose(answer, raw / raw.sum(axis=1, keepdims=True), rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_smoothing_adds_one_sample_spread_over_the_classes():
    logits, labels = problem(n=40)
    plain = IsotonicCalibration(penalty=0).fit(logits, labels)
    model = IsotonicCalibration(penalty=1).fit(logits, labels)
    np.testing.assert_allclose(model.map_.values, (40 * plain.map_.values + 0.25) / 41)
    with pytest.raises(InputError, match=r"`penalty`.*-1"):
        IsotonicCalibration(penalty=-1).fit(logits, labels)


def test_one_vs_all_with_temperature_is_isotonic_on_scaled_logits():
    logits, labels = problem(n=2000)
    model = IsotonicOneVsAll().fit(logits, labels)
    assert model.map_.beta == pytest.approx(
        0.5, abs=0.05
    )  # the labels were drawn at half the logits
    scaled = IsotonicCalibration().fit(model.map_.beta * logits, labels)
    np.testing.assert_allclose(
        model.predict_proba(logits), scaled.predict_proba(model.map_.beta * logits), atol=1e-9
    )


def test_multiclass_pools_all_pairs():
    logits, labels = problem()
    probs, hits = softmax(logits), np.eye(4)[labels]
    curve = reference_curve(probs.ravel(), hits.ravel())
    raw = curve.predict(probs.ravel()).reshape(probs.shape) + 1e-9 * probs
    answer = IsotonicMulticlass(penalty=0).fit(logits, labels).predict_proba(logits)
    np.testing.assert_allclose(answer, raw / raw.sum(axis=1, keepdims=True), rtol=0, atol=1e-12)


def test_multiclass_is_strictly_increasing():
    logits, labels = problem(n=60)
    model = IsotonicMulticlass().fit(logits, labels)
    grid = np.linspace(0, 1, 10_001)
    flat = np.interp(grid, model.map_.knots, model.map_.values)
    assert (np.diff(flat) == 0).any(), "the plain curve has flat parts"
    assert (np.diff(model.map_.line(grid[:, None])[:, 0]) > 0).all()
