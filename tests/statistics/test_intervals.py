"""Intervals against closed forms, hand-made cases and plain resampling."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from recal.calibrators import TemperatureScaling
from recal.maps.guard import MARGIN, keep_answers
from recal.metrics import evaluate, smooth_ece
from recal.metrics.calibration_error import cosine_coefficients, error_at, fixed_point
from recal.metrics.intervals import (
    BootstrapSlots,
    Pattern,
    combined_interval,
    draw_weights,
    percentile_interval,
    rate_interval,
)
from recal.metrics.row_scores import score

RNG = np.random.default_rng


def total(gaps):
    return np.abs(gaps).sum(axis=-1)


@pytest.mark.parametrize(("count", "n"), [(0, 200), (1, 200), (7, 50), (50, 50)])
def test_the_rate_has_the_interval_of_clopper_and_pearson(count, n):
    expected = stats.binomtest(count, n).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(rate_interval(count, n), (expected.low, expected.high), rtol=1e-7)
    confidence, correct = np.linspace(0.9, 0.99, n), np.arange(n) >= count
    result = evaluate(confidence, correct, bootstrap=20)
    assert result.intervals["error_rate"] == pytest.approx((expected.low, expected.high))


def test_two_estimates_combine_as_their_distances_do():
    assert combined_interval(1.0, (0.7, 1.3), 2.0, (1.6, 2.4)) == pytest.approx((2.5, 3.5))
    assert combined_interval(1.0, (0.7, 1.3), 2.0, (1.7, 2.3), 1.0) == pytest.approx((2.4, 3.6))
    assert combined_interval(1.0, (0.7, 1.3), -1.0, (-1.3, -0.7), -1.0) == pytest.approx((0.0, 0.0))


def test_percentiles_leave_two_and_a_half_per_cent_on_either_side():
    draws = np.r_[np.arange(1001.0), np.nan]
    assert percentile_interval(draws) == pytest.approx((25.0, 975.0))
    assert percentile_interval(np.r_[np.zeros(90), np.full(10, np.inf)]) == (0.0, np.inf)


@pytest.mark.parametrize("count", [0, 2, 60])
def test_one_more_unit_gives_the_draws_of_clopper_and_pearson(count):
    """Of n rows, x wrong: Beta(x, n - x + 1) and Beta(x + 1, n - x)."""
    n = 150
    rows = score(np.linspace(0.5, 0.99, n), np.arange(n) >= count)
    drawn = BootstrapSlots(rows, draw_weights(rows, None, 20_000, RNG(0)), 15)
    right, wrong, more = drawn.drawn_right, drawn.drawn_wrong, drawn.missing
    low, high = drawn.ranks(right + more, wrong), drawn.ranks(right, wrong + more)
    exact = rate_interval(count, n)
    assert np.quantile(low["error_rate"], 0.025) == pytest.approx(exact[0], abs=0.002)
    assert np.quantile(high["error_rate"], 0.975) == pytest.approx(exact[1], abs=0.004)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_rare_mistakes_have_the_interval_of_fay_and_feuer(count):
    """Equal scores: the exact interval of a Poisson number, up to the t distribution."""
    confidence, n = np.full(2000, 0.9), 2000
    found = evaluate(confidence, np.arange(n) >= count, bootstrap=8000).intervals["brier"]
    most = stats.chi2.ppf(0.975, 2 * count + 2) / 2
    least = stats.chi2.ppf(0.025, 2 * count) / 2 if count else 0.0
    expected = [0.01 + (0.81 - 0.01) * number / n for number in (least, most)]
    assert found == pytest.approx(expected, rel=0.06)


def test_without_mistakes_the_losses_and_the_area_allow_for_some():
    n = 400
    result = evaluate(np.linspace(0.98, 0.99, n), np.ones(n, bool), bootstrap=4000)
    most = stats.chi2.ppf(0.975, 2) / 2 / n
    assert result.intervals["nll"][1] == pytest.approx(result["nll"] + most * 4.2, rel=0.1)
    assert result.intervals["aurc"] == pytest.approx((0.0, most), rel=0.1)
    assert result.intervals["ece"][1] == pytest.approx(result["ece"] + most, rel=0.25)
    assert np.isnan(result.intervals["auroc"]).all()
    assert result.to_dict()["metrics"]["auroc"]["note"] == "undefined without wrong answers"


def test_a_mistake_of_probability_zero_leaves_no_upper_end():
    found = evaluate([[1.0, 0.0]] * 100, [0] * 100, bootstrap=50)
    assert found.intervals["nll"] == (0.0, np.inf)


@pytest.mark.parametrize("count", [1, 5])
def test_the_area_under_the_curve_of_few_mistakes_may_be_anything(count):
    """A mistake more, at the worst place, leaves Beta(count, 1) of the area."""
    found = evaluate(np.linspace(0.5, 0.99, 200), np.arange(200) >= count, bootstrap=4000)
    assert found["auroc"] == 1.0
    assert found.intervals["auroc"] == pytest.approx((0.025 ** (1 / count), 1.0), abs=0.03)


def test_ranks_of_slots_are_the_metrics_of_tied_confidences():
    confidence = np.round(RNG(0).uniform(0.5, 1, 2000), 1)
    correct = RNG(1).random(2000) < confidence
    rows = score(confidence, correct)
    drawn = BootstrapSlots(rows, draw_weights(rows, None, 10, RNG(0)), 15)
    expected = evaluate(confidence, correct)
    for name, value in drawn.ranks(drawn.right[None], drawn.wrong[None]).items():
        assert value[0] == pytest.approx(expected[name], rel=2e-3), name


def clustered(n_clusters, rows, seed=0):
    rng = RNG(seed)
    level = np.repeat(np.clip(rng.normal(0.75, 0.15, n_clusters), 0, 1), rows)
    confidence = np.clip(level + rng.normal(0, 0.1, len(level)), 0, 1)
    return confidence, rng.random(len(level)) < level, np.repeat(np.arange(n_clusters), rows)


@pytest.mark.parametrize("n_clusters", [40, 300])
def test_clusters_have_the_intervals_of_a_plain_cluster_bootstrap(n_clusters):
    confidence, correct, clusters = clustered(n_clusters, 17)
    found = evaluate(confidence, correct, 2000, clusters=clusters)
    picked = RNG(1).integers(n_clusters, size=(2000, n_clusters))
    for name, column in (("error_rate", ~correct), ("brier", (confidence - correct) ** 2)):
        sums = np.bincount(clusters, column)[picked].sum(axis=1) / len(correct)
        low, high = np.quantile(sums, [0.025, 0.975])
        ends = found.intervals[name]
        assert ends[1] - ends[0] == pytest.approx(high - low, rel=0.2), name
        assert ends[0] <= low + 0.002
        assert ends[1] >= high - 0.002
    assert f"{n_clusters} clusters" in str(found)
    assert found.to_dict()["n_clusters"] == n_clusters
    assert "clusters" not in str(evaluate(confidence, correct, 20))


def test_few_or_unequal_clusters_stretch_an_interval_to_that_of_t():
    rows = score(np.full(40, 0.9), np.arange(40) > 3)
    even = draw_weights(rows, np.repeat(np.arange(8), 5), 10, RNG(0))
    assert even.effective == 8
    assert even.stretch == pytest.approx(
        stats.t.ppf(0.975, 7) / stats.norm.ppf(0.975) * (9 / 7) ** 0.5
    )
    skewed = draw_weights(rows, np.r_[np.zeros(33), np.arange(1, 8)].astype(int), 10, RNG(0))
    assert skewed.effective == pytest.approx(40**2 / (33**2 + 7))
    assert skewed.stretch > even.stretch


def test_too_few_clusters_give_no_interval():
    result = evaluate([0.7, 0.8, 0.9, 0.6], [1, 0, 1, 1], 20, clusters=["a", "a", "b", "b"])
    assert np.isnan(result.intervals["nll"]).all()
    assert "2 clusters" in str(result)


def test_the_factors_of_a_pattern_are_those_that_agree_with_the_error():
    noise = np.linspace(-0.02, 0.02, 4001)[:, None]
    drawn = 0.1 + noise
    pattern = Pattern(np.array([0.1]), drawn, drawn, total, lambda c: 0.1 * c, 1.0)
    assert pattern.interval() == pytest.approx((0.1 - 0.019, 0.1 + 0.019), rel=1e-3)
    wide = Pattern(np.array([0.1]), 0.1 + 6 * noise, 0.1 + 6 * noise, total, lambda c: 0.1 * c, 1.0)
    assert wide.interval()[0] == 0.0, "noise alone gives as large an error"
    none = Pattern(np.zeros(1), noise, noise, total, float, 1.0)
    low, high = none.interval()
    assert (low, high) == (0.0, pytest.approx(0.0195 - 0.01, rel=0.02))


def test_the_error_of_answers_that_are_nearly_all_wrong_is_nearly_one():
    found = evaluate(np.full(400, 0.99), np.arange(400) < 4, 200)
    for name in ("ece", "smooth_ece", "ks_error"):
        low, high = found.intervals[name]
        assert 0.9 < low <= found[name] <= high <= 1.0, name


def test_a_bin_of_few_rows_that_are_all_right_has_noise_that_weights_do_not_show():
    rows = score([[0.95, 0.05]] * 3 + [[0.6, 0.4]] * 4, [0] * 3 + [0, 0, 1, 1])
    drawn = BootstrapSlots(rows, draw_weights(rows, None, 10, RNG(0)), 15)
    # (3 + 1) / (3 + 2) right instead of 3 of 3; (2 + 1) / (4 + 2) is not more than 2 of 4.
    np.testing.assert_allclose(drawn._hidden(), [0.0, np.sqrt(0.8 * 0.2 * 3)])


def test_an_error_within_the_noise_of_four_rows_reaches_zero():
    found = evaluate(np.tile([0.97, 0.03], (4, 1)), np.zeros(4, int), bootstrap=500)
    low, high = found.intervals["classwise_ece"]
    assert low == 0.0
    assert high > 0.04


def test_the_bandwidth_of_smooth_ece_is_its_value():
    """One residual at one half: a Gaussian of any small bandwidth integrates to it."""
    assert smooth_ece([0.5] * 10, [1] * 4 + [0] * 6) == pytest.approx(0.1, abs=1e-6)
    rng = RNG(0)
    confidence = rng.uniform(0, 1, 500)
    gaps = (confidence - (rng.random(500) < 0.5)) / 500  # changes its sign
    value = fixed_point(cosine_coefficients(confidence, gaps))
    points = np.linspace(0, 1, 4001)
    blurred = np.zeros_like(points)
    for shift in (-2, 0, 2):  # reflections at both ends
        for centre in (confidence + shift, -confidence + shift):
            scaled = (points[:, None] - centre) / value
            blurred += np.exp(-0.5 * scaled**2) / (value * np.sqrt(2 * np.pi)) @ gaps
    assert np.trapezoid(np.abs(blurred), points) == pytest.approx(value, rel=1e-3)
    assert error_at(cosine_coefficients(confidence, gaps), value) == pytest.approx(value, rel=1e-6)


@pytest.mark.filterwarnings("ignore::recal.errors.DoubtfulLabelsWarning")
def test_a_sample_of_weight_zero_does_not_count():
    logits = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 3.0]] * 10)
    y = np.array([0, 1, 1, 0] * 10)
    weights = np.r_[np.ones(20), np.zeros(20)]
    weighted = TemperatureScaling().fit(logits, y, sample_weight=weights)
    alone = TemperatureScaling().fit(logits[:20], y[:20])
    assert weighted.temperature_ == pytest.approx(alone.temperature_)
    assert weighted.n_fitted_ == 20


def test_the_guard_lifts_the_answer_by_a_millionth():
    kept = keep_answers(np.array([[0.6, 0.4, 0.0]]), np.array([[1]]))[0]
    assert 0 < kept[1] - kept[0] < 1e-5
    assert 1e-7 < MARGIN < 1e-5
    assert kept.sum() == pytest.approx(1.0)
