from functools import partial

import numpy as np
import pytest
from scipy.interpolate import CubicSpline

from recal import TemperatureScaling
from recal.calibrators import SplineCalibration
from recal.maps.arrays import softmax
from tests.problems import logits_and_labels

problem = partial(logits_and_labels, n=1500)


def test_the_calibrated_confidence_is_the_slope_of_the_fitted_cumulative():
    """Numerically: the fitted cumulative number of hits, differenced between neighbouring ranks."""
    logits, labels = problem()
    model = SplineCalibration(penalty=0).fit(logits, labels).map_
    confidence = softmax(logits).max(axis=1)
    order = np.argsort(confidence)
    confidence, hits = confidence[order], (logits.argmax(axis=1) == labels)[order]
    ranks, knots = np.arange(1501) / 1500, np.linspace(0, 1, 6)
    basis = CubicSpline(knots, np.eye(6), bc_type="natural")(ranks)
    excess = np.concatenate([[0], np.cumsum(hits - confidence)]) / 1500
    fitted = basis @ np.linalg.lstsq(basis, excess, rcond=None)[0]
    cumulative = fitted + np.concatenate([[0], np.cumsum(confidence)]) / 1500
    np.testing.assert_allclose(model.scores, confidence)
    inside = (model.values > 0) & (model.values < 1)
    assert inside.mean() > 0.95
    slopes = (1500 * np.diff(cumulative))[inside]
    np.testing.assert_allclose(model.values[inside], slopes, rtol=0, atol=1e-5)


def test_the_rest_is_spread_as_by_temperature_scaling_where_none_of_it_overtakes():
    logits, labels = problem()
    own, probs = (
        m().fit(logits, labels).predict_proba(logits)
        for m in (TemperatureScaling, SplineCalibration)
    )
    ranked = np.take_along_axis(probs, np.argsort(-logits, axis=1), axis=1)
    free = ranked[:, 1] < ranked[:, 0] - 1e-6
    assert 0.9 < free.mean() < 1.0
    ranked_own = -np.sort(-own, axis=1)
    np.testing.assert_allclose(
        (ranked[:, 1] / ranked[:, 2])[free], (ranked_own[:, 1] / ranked_own[:, 2])[free], rtol=1e-9
    )


@pytest.mark.parametrize("n_classes", [2, 5, 20])
def test_the_confidence_is_what_the_curve_says_whatever_the_second_class_has(n_classes):
    """The second class may get nearly all of the rest; it must not push the first up."""
    logits, labels = problem(n=3000, n_classes=n_classes, scale=5.0)
    logits[::7] = np.where(
        np.argsort(np.argsort(logits[::7])) >= n_classes - 2, logits[::7] + 20.0, logits[::7]
    )
    model = SplineCalibration().fit(logits, labels)
    said = np.interp(softmax(logits).max(axis=1), model.map_.scores, model.map_.values)
    probs = model.predict_proba(logits)
    np.testing.assert_allclose(
        probs.max(axis=1), np.maximum(said, 1 / n_classes), rtol=0, atol=1e-12
    )
    np.testing.assert_array_equal(probs.argmax(axis=1), logits.argmax(axis=1))
    above = said > 1 / n_classes  # at chance all classes are alike
    ranks, own = (np.argsort(values[above], axis=1)[:, :-2] for values in (probs, logits))
    np.testing.assert_array_equal(ranks, own)
