"""Histograms, isotonic curves, Venn-Abers and the spline, against slow references."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from scipy.interpolate import CubicSpline
from scipy.special import logsumexp
from sklearn.datasets import load_breast_cancer
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import roc_auc_score

from recal import TemperatureScaling, calibrators
from recal.calibrators import (
    HistogramBinning,
    IsotonicCalibration,
    IsotonicMulticlass,
    IsotonicOneVsAll,
    SplineCalibration,
    VennAbers,
)
from recal.errors import InputError
from recal.maps.arrays import class_scores, softmax
from tests.problems import logits_and_labels

problem = partial(logits_and_labels, n=400, spread=1.0, scale=2.0)


def reference_curve(scores, hits):
    return IsotonicRegression(out_of_bounds="clip", y_min=0, y_max=1).fit(scores, hits)


@pytest.mark.parametrize("decimals", [None, 1], ids=["distinct", "with ties"])
def test_one_vs_rest_without_smoothing_is_scikit_learns_normalised(decimals):
    logits, labels = problem()
    logits = logits if decimals is None else logits.round(decimals)
    fresh, _ = problem(seed=1)
    raw = np.empty(fresh.shape)
    for k, (scores, new) in enumerate(zip(class_scores(logits).T, class_scores(fresh).T)):
        raw[:, k] = reference_curve(scores, labels == k).predict(new)
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
    assert model.map_.beta == pytest.approx(0.5, abs=0.05), "labels were drawn at half the logits"
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


def test_the_calibrated_confidence_is_the_slope_of_the_fitted_cumulative():
    """Numerically: the fitted cumulative number of hits, differenced between neighbouring ranks."""
    logits, labels = logits_and_labels(1500)
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
    logits, labels = logits_and_labels(1500)
    methods = TemperatureScaling(), SplineCalibration()
    own, probs = (method.fit(logits, labels).predict_proba(logits) for method in methods)
    ranked = np.take_along_axis(probs, np.argsort(-logits, axis=1), axis=1)
    free = ranked[:, 1] < ranked[:, 0] - 1e-6
    assert 0.9 < free.mean() < 1.0
    ours, before = (-np.sort(-one, axis=1)[free] for one in (probs, own))
    np.testing.assert_allclose(ours[:, 1] / ours[:, 2], before[:, 1] / before[:, 2], rtol=1e-9)


@pytest.mark.parametrize("n_classes", [2, 5, 20])
def test_the_confidence_is_what_the_curve_says_whatever_the_second_class_has(n_classes):
    """The second class may get nearly all of the rest; it must not push the first up."""
    logits, labels = logits_and_labels(3000, n_classes=n_classes, scale=5.0)
    logits[::7] += 20.0 * (np.argsort(np.argsort(logits[::7])) >= n_classes - 2)
    model = SplineCalibration().fit(logits, labels)
    said = np.interp(softmax(logits).max(axis=1), model.map_.scores, model.map_.values)
    probs = model.predict_proba(logits)
    expected = np.maximum(said, 1 / n_classes)
    np.testing.assert_allclose(probs.max(axis=1), expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(probs.argmax(axis=1), logits.argmax(axis=1))
    above = said > 1 / n_classes  # at chance all classes are alike
    ranks, own = (np.argsort(values[above], axis=1)[:, :-2] for values in (probs, logits))
    np.testing.assert_array_equal(ranks, own)


def direct(scores, hits, new):
    """Return p0 and p1 of each new score by fitting isotonic regression anew with either label."""

    def at(s, label):
        return reference_curve(np.append(scores, s), np.append(hits, label)).predict([s])[0]

    return np.array([[at(s, label) for s in new] for label in (0.0, 1.0)])


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize("digits", [0, 1, 8], ids=["many ties", "ties", "no ties"])
@pytest.mark.parametrize("seed", range(3))
def test_both_probabilities_are_those_of_two_isotonic_regressions(seed, digits):
    rng = np.random.default_rng(seed)
    scores = np.round(2 * rng.normal(size=60), digits)
    hits = (rng.random(60) < 1 / (1 + np.exp(-scores))).astype(int)
    new = np.concatenate([scores[:10], 3 * rng.normal(size=15), [-50.0, 50.0]])
    model = VennAbers().fit(np.stack([np.zeros(60), scores], axis=1), hits)
    fresh = np.stack([np.zeros(len(new)), new], axis=1)
    low, high = model.predict_interval(fresh)
    expected_low, expected_high = direct(scores, hits, new)
    np.testing.assert_allclose(low[:, 1], expected_low, atol=1e-12)
    np.testing.assert_allclose(high[:, 1], expected_high, atol=1e-12)
    merged = expected_high / (1 - expected_low + expected_high)
    np.testing.assert_allclose(model.predict_proba(fresh)[:, 1], merged, atol=1e-12)


def test_with_more_classes_each_stands_against_the_rest():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(80, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    model = VennAbers().fit(logits, labels)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    low, high = model.predict_interval(logits[:5])
    for k in range(3):
        odds = np.log(probs[:, k] / (1 - probs[:, k]))
        expected_low, expected_high = direct(odds, (labels == k).astype(float), odds[:5])
        np.testing.assert_allclose(low[:, k], expected_low, atol=1e-9)
        np.testing.assert_allclose(high[:, k], expected_high, atol=1e-9)
    merged = high / (1 - low + high)
    np.testing.assert_allclose(
        model.predict_proba(logits[:5]), merged / merged.sum(axis=1, keepdims=True)
    )


three = partial(logits_and_labels, n_classes=3, spread=1.0, scale=2.0)


def reference(probs, labels, fresh, edges_of, n_classes, smoothing):
    """Bin by bin, sample by sample."""
    raw = np.empty_like(fresh)
    for k in range(n_classes):
        edges = [-np.inf, *edges_of(probs[:, k]), np.inf]
        for low, high in pairwise(edges):
            inside = (probs[:, k] > low) & (probs[:, k] <= high)
            value = (max(low, 0) + min(high, 1)) / 2
            if inside.any():
                hits = (labels[inside] == k).sum() + smoothing / n_classes
                value = hits / (inside.sum() + smoothing)
            raw[(fresh[:, k] > low) & (fresh[:, k] <= high), k] = value
    return raw / raw.sum(axis=1, keepdims=True)


def quantile_edges(n_bins):
    def edges(scores):
        chunks = np.array_split(np.sort(scores), n_bins)  # equal: 300 samples in 10 bins
        return [(before[-1] + after[0]) / 2 for before, after in pairwise(chunks)]

    return edges


def test_values_are_the_bins_smoothed_shares():
    logits, labels = three()
    fresh, _ = three(seed=1)
    model = HistogramBinning(n_bins=10, penalty=2.0).fit(logits, labels)
    expected = reference(softmax(logits), labels, softmax(fresh), quantile_edges(10), 3, 2.0)
    np.testing.assert_allclose(model.predict_proba(fresh), expected, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_a_bin_holds_its_upper_edge_and_an_empty_one_has_its_middle():
    logits = np.log([[0.4, 0.6], [0.4, 0.6], [0.4, 0.6]])
    model = HistogramBinning(n_bins=2, penalty=0).fit(logits, [0, 1, 1])
    np.testing.assert_allclose(model.map_.values, [[1 / 3, 0.7], [2 / 3, 0.8]])


def test_the_number_of_bins_follows_the_classes():
    logits, labels = three(n=1000, n_classes=8)
    assert HistogramBinning().fit(logits, labels).map_.values.shape == (8, 24)
    assert HistogramBinning().fit(logits[:100], labels[:100]).map_.values.shape == (8, 10)


SORTED_BY_SCORES = (
    calibrators.IsotonicCalibration, calibrators.IsotonicMulticlass, calibrators.IsotonicOneVsAll,
    calibrators.HistogramBinning, calibrators.BayesianBinning, calibrators.PlattScaling,
    calibrators.BetaCalibration,
)  # fmt: skip


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0, 1e4, 1e12])
def test_log_odds_are_exact_for_any_margin(scale):
    rng = np.random.default_rng(0)
    two = scale * rng.normal(size=(50, 2))
    np.testing.assert_allclose(class_scores(two)[:, 1], two[:, 1] - two[:, 0], rtol=1e-9)
    many = scale * rng.normal(size=(50, 5))
    for k in range(5):
        exact = many[:, k] - logsumexp(np.delete(many, k, axis=1), axis=1)
        np.testing.assert_allclose(class_scores(many)[:, k], exact, rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def margins():
    """Return the margins of a linear model that was given features of any size, as many do, and
    labels, twice.
    """
    data = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(data.target))
    train, fitting, test = np.split(order, [150, 380])
    model = SGDClassifier(random_state=0).fit(data.data[train], data.target[train])
    scores = model.decision_function(data.data)
    assert np.median(np.abs(scores)) > 700, "softmax of these is 0 or 1"
    logits = np.stack([np.zeros_like(scores), scores], axis=1)
    return logits[fitting], data.target[fitting], logits[test], data.target[test]


@pytest.mark.parametrize("method", SORTED_BY_SCORES, ids=lambda method: method.short_name)
def test_ranking_survives_calibration(method, margins):
    logits, y, fresh, truth = margins
    ranked = roc_auc_score(truth, fresh[:, 1])
    curve = IsotonicRegression(out_of_bounds="clip").fit(logits[:, 1], y).predict(fresh[:, 1])
    answer = roc_auc_score(truth, method().fit(logits, y).predict_proba(fresh)[:, 1])
    assert answer > min(ranked, roc_auc_score(truth, curve)) - 0.015
