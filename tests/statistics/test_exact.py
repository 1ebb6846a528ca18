"""Exact intervals and the constants of the bootstrap, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from recal.metrics import (
    LABELS,
    adaptive_ece,
    bin_table,
    classwise_ece,
    debiased_ece,
    ece,
    evaluate,
    mce,
    smooth_ece,
)
from recal.metrics.calibration_error import cosine_coefficients, error_at, fixed_point, table_of
from recal.metrics.intervals import combined_interval, loss_if_wrong, rate_interval, sum_interval
from recal.metrics.resampling import (
    Pattern,
    TrackedError,
    cluster_stretch,
    design_effect,
    percentile_interval,
    tracked_errors,
)
from recal.metrics.row_scores import draw_clusters, equal_width_edges, gather, score


@pytest.mark.parametrize(("count", "n"), [(0, 200), (1, 200), (7, 50), (50, 50)])
def test_the_rate_has_the_interval_of_clopper_and_pearson(count, n):
    expected = stats.binomtest(count, n).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(rate_interval(count, n), (expected.low, expected.high), rtol=1e-7)


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_a_sum_of_equal_scores_has_the_exact_interval_of_poisson(count):
    low, high = sum_interval(np.full(count, 2.0), 2.0)
    assert low == pytest.approx(2.0 * stats.chi2.ppf(0.025, 2 * count) / 2 if count else 0.0)
    assert high == pytest.approx(2.0 * stats.chi2.ppf(0.975, 2 * count + 2) / 2)


def test_a_sum_of_unequal_scores_has_the_interval_of_fay_and_feuer():
    scores, pseudo = np.array([1.0, 3.0]), 2.0
    low, high = sum_interval(scores, pseudo)
    assert low == pytest.approx(10 / (2 * 4) * stats.chi2.ppf(0.025, 2 * 16 / 10))
    assert high == pytest.approx(14 / (2 * 6) * stats.chi2.ppf(0.975, 2 * 36 / 14))
    assert sum_interval(np.array([np.inf]), 1.0) == (np.inf, np.inf)
    assert sum_interval(np.zeros(0), np.inf) == (0.0, np.inf)


def test_two_estimates_combine_as_their_distances_do():
    assert combined_interval(1.0, (0.7, 1.3), 2.0, (1.6, 2.4)) == pytest.approx((2.5, 3.5))
    assert combined_interval(1.0, (0.7, 1.3), 2.0, (1.7, 2.3), 1.0) == pytest.approx((2.4, 3.6))
    assert combined_interval(1.0, (0.7, 1.3), -1.0, (-1.3, -0.7), -1.0) == pytest.approx((0.0, 0.0))


def test_percentiles_leave_two_and_a_half_per_cent_on_either_side():
    draws = np.r_[np.arange(1001.0), np.nan]
    assert percentile_interval(draws) == pytest.approx((25.0, 975.0))
    assert percentile_interval(np.r_[np.zeros(90), np.full(10, np.inf)]) == (0.0, np.inf)


def test_the_error_rate_of_evaluate_is_exact():
    correct = np.arange(200) >= 3
    result = evaluate(np.linspace(0.9, 0.99, 200), correct, bootstrap=20)
    expected = stats.binomtest(3, 200).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(result.intervals["error_rate"], (expected.low, expected.high))


def test_without_mistakes_the_area_allows_three_to_four_of_them_at_random_ranks():
    result = evaluate(np.linspace(0.9, 0.99, 200), np.ones(200, bool), bootstrap=20)
    assert result.intervals["aurc"] == pytest.approx((0.0, stats.chi2.ppf(0.975, 2) / 2 / 200))
    assert np.isnan(result.intervals["auroc"]).all()
    assert result.notes == {"auroc": "undefined without wrong answers"}
    assert "undefined without wrong answers" in str(result)
    assert result.to_dict()["metrics"]["auroc"]["note"] == "undefined without wrong answers"


def test_without_mistakes_the_losses_allow_for_one_that_the_sample_lacks():
    confidence = np.full(400, 0.99)
    result = evaluate(confidence, np.ones(400, bool), bootstrap=50)
    missing = stats.chi2.ppf(0.975, 2) / 2 / 400
    assert result.intervals["nll"][1] == pytest.approx(-np.log(0.99) - missing * np.log(0.01))
    assert result.intervals["brier"][1] == pytest.approx(0.01**2 + missing * (1 + 0.99**2) / 2)
    assert result.intervals["nll"][0] == pytest.approx(-np.log(0.99))


def test_the_area_of_one_mistake_is_the_logarithm_of_its_coverage():
    """The mistake has rank 51 of 100; the pseudo-observation has the mean score of random ranks, 1."""
    confidence = np.linspace(0.99, 0.5, 100)
    correct = np.arange(100) != 50
    low, high = evaluate(confidence, correct, bootstrap=20).intervals["aurc"]
    expected = sum_interval(np.array([-np.log(0.505)]), 1.0)
    assert low == 0.0, "draws without the mistake"
    assert high == pytest.approx(expected[1] / 100)


def test_the_loss_of_a_mistake_follows_the_other_classes():
    probs = np.tile([0.98, 0.015, 0.005], (10, 1))
    expected = -(0.75 * np.log(0.015) + 0.25 * np.log(0.005))
    assert loss_if_wrong(probs, probs.max(axis=1)) == pytest.approx(expected)
    assert loss_if_wrong(np.tile([1.0, 0.0], (3, 1)), np.ones(3)) == np.inf


@pytest.mark.parametrize(("mistakes", "exact"), [(28, True), (31, False)])
def test_exact_intervals_end_where_mistakes_are_enough(mistakes, exact):
    n = 10_000
    confidence = np.linspace(0.5, 1.0, n)
    correct = np.ones(n, bool)
    correct[:: n // mistakes][:mistakes] = False
    correct[np.flatnonzero(~correct)[mistakes:]] = True
    wrong = -np.log((n - np.flatnonzero(~correct) - 0.5) / n)
    high = evaluate(confidence, correct, bootstrap=100).intervals["aurc"][1]
    assert (high >= sum_interval(wrong, 1.0)[1] / n * (1 - 1e-9)) is exact


@pytest.mark.parametrize(("largest", "low"), [(0.102, 0.0), (0.098, 0.9)])
def test_the_lower_end_is_zero_if_a_calibrated_model_gives_as_large_an_error(largest, low):
    pattern = Pattern(np.array([0.1]), lambda gaps: np.abs(gaps).sum(axis=-1))
    pattern.add(np.array([[0.11], [0.09]] * 50))
    pattern.calibrated.append(
        np.r_[np.zeros(960), np.full(40, largest)]
    )  # 4 % of calibrated models
    assert pattern.factors()[0] == pytest.approx(low, rel=1e-4)
    pattern.calibrated[0] = np.r_[np.zeros(980), np.full(20, 0.102)]  # 2 % are too few
    assert pattern.factors()[0] == pytest.approx(0.9, rel=1e-4)


def test_few_clusters_stretch_an_interval_to_that_of_t():
    clusters = np.repeat(np.arange(8), 5)
    assert cluster_stretch(clusters) == pytest.approx(
        stats.t.ppf(0.975, 7) / 1.96 * np.sqrt(8 / 7), rel=1e-6
    )
    assert cluster_stretch(None) == 1.0


def test_clusters_are_drawn_whole():
    clusters = np.array([0, 1, 1, 2, 2, 2])
    weights = draw_clusters(clusters, 200, np.random.default_rng(0))
    assert (weights[:, 1] == weights[:, 2]).all()
    assert (weights[:, 3] == weights[:, 5]).all()
    assert (weights[:, [0, 1, 3]].sum(axis=1) == 3).all()
    assert weights[:, 0].mean() == pytest.approx(1.0, abs=0.2)


def test_copies_in_clusters_have_the_intervals_of_single_rows():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 300)
    correct = rng.random(300) < confidence**1.3
    single = evaluate(confidence, correct, bootstrap=800)
    copies = evaluate(
        np.repeat(confidence, 10),
        np.repeat(correct, 10),
        800,
        clusters=np.repeat(np.arange(300), 10),
    )
    for name in ("error_rate", "nll", "brier", "aurc", "ece", "ks_error"):
        width, expected = np.diff(copies.intervals[name])[0], np.diff(single.intervals[name])[0]
        assert width == pytest.approx(expected, rel=0.25), name


def test_too_few_clusters_give_no_interval():
    result = evaluate(
        [0.7, 0.8, 0.9, 0.6], [1, 0, 1, 1], bootstrap=20, clusters=["a", "a", "b", "b"]
    )
    assert np.isnan(result.intervals["nll"]).all()
    assert "2 clusters" in str(result)


def test_the_bandwidth_of_smooth_ece_is_its_value():
    """One residual at one half: a Gaussian of any small bandwidth integrates to it."""
    assert smooth_ece([0.5] * 10, [1] * 4 + [0] * 6) == pytest.approx(0.1, abs=1e-6)
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0, 1, 500)
    gaps = (confidence - (rng.random(500) < 0.5)) / 500  # changes its sign
    value = fixed_point(cosine_coefficients(confidence, gaps))
    points = np.linspace(0, 1, 4001)
    blurred = np.zeros_like(points)
    for shift in (-2, 0, 2):  # reflections at both ends
        for centre in (confidence + shift, -confidence + shift):
            kernel = np.exp(-0.5 * ((points[:, None] - centre) / value) ** 2) / (
                value * np.sqrt(2 * np.pi)
            )
            blurred += kernel @ gaps
    assert np.trapezoid(np.abs(blurred), points) == pytest.approx(value, rel=1e-3)
    assert error_at(cosine_coefficients(confidence, gaps), value) == pytest.approx(value, rel=1e-6)


def one_bin(right=70, n=100):
    rows = score(np.full(n, 0.9), np.arange(n) < right)
    tables = [table_of(rows.confidence, rows.correct, equal_width_edges(15))] * 2
    buckets = gather(rows, equal_width_edges(15))
    return buckets, tracked_errors(buckets, dict.fromkeys(LABELS, 0.2), *tables)


def test_the_debiased_error_is_followed_as_the_square_minus_its_noise():
    _, errors = one_bin()
    error = errors["debiased_ece"]
    assert error.norm(np.array([[0.2]])) == pytest.approx(0.2**2 - 0.7 * 0.3 / 99)
    assert error.error(1.0) == pytest.approx(0.2)


def test_a_bin_that_a_draw_leaves_empty_keeps_its_gap():
    _, errors = one_bin()
    gaps = errors["mce"].gaps_of(np.array([[0.0], [0.5], [6.0]]), np.array([[0.0], [1.0], [12.0]]))
    np.testing.assert_allclose(gaps[:, 0], [0.2, 0.5, 0.5])


def test_gaps_that_are_all_zero_have_an_upper_end_from_their_noise():
    error = TrackedError(
        np.zeros(1),
        lambda gaps: np.abs(gaps).sum(axis=-1),
        starts=np.zeros(1, int),
        gaps_of=lambda sums, _: sums,
        error=lambda _: 0.0,
        hidden=np.zeros(1),
    )
    error.add(np.array([[0.0], [0.02]] * 50))
    assert error.interval() == pytest.approx((0.0, 1.96 * 0.01))


def test_rare_right_answers_are_treated_as_rare_mistakes_are():
    confidence = np.linspace(0.99, 0.5, 200)
    correct = np.isin(np.arange(200), (10, 60, 150))
    result = evaluate(confidence, correct, bootstrap=40)
    scores = -np.log((np.array([10, 60, 150]) + 0.5) / 200)
    pseudo = max(1.0, scores.mean())
    assert result.intervals["aurc"][0] == pytest.approx(1 - sum_interval(scores, pseudo)[1] / 200)
    expected = stats.binomtest(197, 200).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(result.intervals["error_rate"], (expected.low, expected.high))
    assert result.intervals["auroc"] == pytest.approx(
        rate_interval(3 * result["auroc"], 3), abs=1e-9
    )


@pytest.mark.parametrize(("mistakes", "n", "exact"), [(17, 85, True), (18, 90, False)])
def test_common_mistakes_need_fewer_of_them(mistakes, n, exact):
    """At an error rate of 20 %, 30 x (1 - 2 x 0.2) = 18 mistakes are enough."""
    confidence = np.linspace(0.99, 0.5, n)
    correct = np.arange(n) % 5 != 0
    low, high = evaluate(confidence, correct, bootstrap=300).intervals["auroc"]
    flips = np.diff(rate_interval(mistakes * 0.5, mistakes))[0]
    assert bool(high - low > 0.98 * flips) is exact


def test_a_mistake_that_the_sample_lacks_would_show_in_two_classes():
    result = evaluate(np.tile([0.99, 0.01], (200, 1)), np.zeros(200, int), bootstrap=100)
    margin = rate_interval(0, 200)[1]
    assert result.intervals["classwise_ece"][1] == pytest.approx(0.01 + 2 * margin / 2)
    assert result.intervals["ece"][1] == pytest.approx(0.01 + margin)


def test_the_design_effect_of_copies_is_their_number():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 200)
    correct = rng.random(200) < confidence
    single = gather(score(confidence, correct), equal_width_edges(15))
    copies = score(np.repeat(confidence, 10), np.repeat(correct, 10))
    assert design_effect(single) == 1.0
    clusters = np.repeat(np.arange(200), 10)
    assert design_effect(gather(copies, equal_width_edges(15), clusters)) == pytest.approx(10.0)


def test_fifteen_bins_are_the_default():
    rng = np.random.default_rng(0)
    probs, y = rng.dirichlet(np.ones(3), 300), rng.integers(0, 3, 300)
    for metric in (ece, mce, adaptive_ece, classwise_ece, debiased_ece):
        assert metric(probs, y) == metric(probs, y, n_bins=15) != metric(probs, y, n_bins=30)
    assert len(bin_table(probs, y).counts) == 15
    table = bin_table(probs, y)
    np.testing.assert_allclose(np.nansum(table.confidence * table.shares), probs.max(axis=1).mean())
