import numpy as np
import pytest
from scipy.interpolate import CubicSpline

from recal import InputError, SplineCalibration
from recal.calibrators._spline import spread_rest
from recal.calibrators.probabilities import softmax


def draw(n=1500, k=4, seed=0, sharpness=3.0):
    rng = np.random.default_rng(seed)
    honest = rng.normal(scale=1.5, size=(n, k))
    return sharpness * honest, (honest + rng.gumbel(size=(n, k))).argmax(axis=1)


def test_the_calibrated_confidence_is_the_slope_of_the_fitted_cumulative():
    """Numerically: the fitted cumulative number of hits, differenced between neighbouring ranks."""
    logits, labels = draw()
    model = SplineCalibration(smoothing=0).fit(logits, labels)
    confidence = np.sort(softmax(logits).max(axis=1))
    excess = CubicSpline(model.knots_, model.coefficients_, bc_type="natural")
    ranks = np.arange(1501) / 1500
    cumulative = excess(ranks) + np.concatenate([[0], np.cumsum(confidence)]) / 1500
    np.testing.assert_allclose(model.scores_, confidence)
    inside = (model.values_ > 0) & (model.values_ < 1)
    assert inside.mean() > 0.95
    np.testing.assert_allclose(model.values_[inside], (1500 * np.diff(cumulative))[inside], rtol=0, atol=1e-5)


def test_no_other_natural_spline_fits_the_cumulative_better():
    logits, labels = draw()
    model = SplineCalibration().fit(logits, labels)
    probs = softmax(logits)
    order = np.argsort(probs.max(axis=1))
    hits = (probs.argmax(axis=1) == labels)[order]
    excess = np.concatenate([[0], np.cumsum(hits - probs.max(axis=1)[order])]) / 1500
    ranks = np.arange(1501) / 1500

    def misfit(values):
        return ((CubicSpline(model.knots_, values, bc_type="natural")(ranks) - excess) ** 2).sum()

    rng = np.random.default_rng(0)
    for _ in range(50):
        assert misfit(model.coefficients_ + rng.normal(scale=1e-3, size=6)) > misfit(model.coefficients_)


def test_confidence_becomes_accuracy():
    model = SplineCalibration().fit(*draw(n=20_000))
    logits, labels = draw(n=20_000, seed=1)
    probs = model.predict_proba(logits)
    confidence, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    for low in (0.4, 0.6, 0.8):
        some = (confidence > low) & (confidence <= low + 0.2)
        assert confidence[some].mean() == pytest.approx(right[some].mean(), abs=0.03)  # six knots bend so far


def test_the_rest_keeps_its_proportions():
    logits, labels = draw()
    own, probs = softmax(logits), SplineCalibration().fit(logits, labels).predict_proba(logits)
    ranked = np.argsort(-logits, axis=1)
    second, third = (np.take_along_axis(p, ranked[:, 1:3], axis=1).T for p in (own, probs))
    np.testing.assert_allclose(second[0] / second[1], third[0] / third[1], rtol=1e-9)


def test_a_confidence_too_low_for_the_top_is_raised_to_the_least_that_keeps_it():
    logits = np.log([[0.5, 0.4, 0.1]])
    probs = spread_rest(logits, np.array([0]), np.array([0.01]))
    np.testing.assert_allclose(probs, [[0.8 / 1.8, 0.8 / 1.8, 0.2 / 1.8]])


def test_the_rest_of_a_saturated_row_is_shared_out():
    probs = spread_rest(np.array([[5000.0, 1.0, 0.0]]), np.array([0]), np.array([0.9]))
    np.testing.assert_allclose(probs[0, 1:], 0.1 * softmax([[1.0, 0.0]])[0])


def test_bad_parameters_are_refused():
    with pytest.raises(InputError, match=r"`n_knots`.*at least 2, got 1"):
        SplineCalibration(n_knots=1).fit(*draw(n=20))
