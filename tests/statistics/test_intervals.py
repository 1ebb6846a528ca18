"""Intervals against closed forms, hand-made cases and simulations with a known truth."""

from __future__ import annotations

import numpy as np
import pytest

from recal.calibrators import TemperatureScaling
from recal.copies import count_fitted, kept_hashes
from recal.maps.guard import MARGIN, keep_answers
from recal.metrics import evaluate
from recal.metrics.calibration_error import equal_mass_edges, table_of
from recal.metrics.resampling import (
    Pattern,
    _absolute_sum,
    _classwise_variances,
    bootstrap,
    classwise_interval,
    tracked_errors,
)
from recal.metrics.row_scores import equal_width_edges, gather, score


def scored(n: int = 300):
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.5, 1, n)
    rows = score(np.column_stack([sure, 1 - sure]), (rng.random(n) > sure).astype(int))
    tables = [
        table_of(rows.confidence, rows.correct, edges)
        for edges in (equal_width_edges(15), equal_mass_edges(rows.confidence, 15))
    ]
    return rows, *tables


def test_the_upper_end_is_at_least_the_error_and_1_96_deviations_of_its_noise():
    field = Pattern(np.array([0.1]), _absolute_sum)
    field.add(np.array([[0.11], [0.09]] * 50))
    low, high = field.factors()
    assert high == pytest.approx((0.1 + 1.96 * 0.01) / 0.1, rel=1e-4)
    assert low == pytest.approx((0.1 - 0.01) / 0.1, rel=1e-4)


def test_rank_metrics_are_centred_at_their_value():
    rows, width, mass = scored()
    buckets = gather(rows, equal_width_edges(15))
    names = (
        "ece",
        "mce",
        "adaptive_ece",
        "smooth_ece",
        "ks_error",
        "aurc",
        "auroc",
        "brier",
        "nll",
        "error_rate",
    )
    values = dict.fromkeys((*names, "debiased_ece"), 0.2)
    moved = values | {"aurc": 0.3}
    found = [
        bootstrap(buckets, given, width, mass, 50, np.random.default_rng(0))
        for given in (values, moved)
    ]
    np.testing.assert_allclose(np.subtract(found[1]["aurc"], found[0]["aurc"]), 0.1)
    assert found[0]["brier"] == found[1]["brier"]


def test_the_nll_is_studentised_so_that_a_long_tail_lengthens_the_upper_end():
    """Nearly all rows lose 0.1 and some much more: draws without these look too sure of themselves."""
    rng = np.random.default_rng(0)
    truth = np.where(rng.random(200) < 0.04, np.exp(-rng.uniform(3, 6, 200)), np.exp(-0.1))
    rows = score(np.column_stack([truth, 1 - truth]), np.zeros(200, int))
    buckets, edges = gather(rows, equal_width_edges(15)), equal_width_edges(15)
    tables = [table_of(rows.confidence, rows.correct, edges)] * 2
    values = dict.fromkeys(
        ("ece", "mce", "adaptive_ece", "debiased_ece", "smooth_ece", "ks_error"), 0.1
    )
    values |= {"aurc": 0.1, "auroc": 0.9, "error_rate": 0.0}
    values |= {"nll": float(rows.nll.mean()), "brier": float(rows.brier.mean() / 2)}
    low, high = bootstrap(buckets, values, *tables, 2000, np.random.default_rng(1))["nll"]
    drawn = rows.nll[np.random.default_rng(2).integers(200, size=(2000, 200))]
    t = (drawn.mean(axis=1) - rows.nll.mean()) / (drawn.std(axis=1) / np.sqrt(200))
    own = rows.nll.std() / np.sqrt(200)
    expected = rows.nll.mean() - np.quantile(t, [0.975, 0.025]) * own
    np.testing.assert_allclose([low, high], expected, rtol=0.05)
    assert high - rows.nll.mean() > 1.3 * (rows.nll.mean() - low)


@pytest.mark.parametrize(("n", "studentised"), [(29, False), (30, True)])
def test_few_rows_get_percentiles_of_the_nll(n, studentised):
    truth = np.exp(-np.exp(np.linspace(-3, 2.2, n)))
    found = evaluate(np.column_stack([truth, 1 - truth]), np.zeros(n, int), bootstrap=300)
    low, high = found.intervals["nll"]
    assert ((high - found["nll"]) > 1.4 * (found["nll"] - low)) is studentised


def test_a_bin_of_few_rows_that_are_all_right_has_noise_that_resampling_does_not_show():
    rows = score([[0.95, 0.05]] * 3 + [[0.6, 0.4]] * 4, [0] * 3 + [0, 0, 1, 1])
    tables = [table_of(rows.confidence, rows.correct, equal_width_edges(15))] * 2
    values = dict.fromkeys(("ece", "mce", "adaptive_ece", "smooth_ece", "ks_error"), 0.1)
    errors = tracked_errors(gather(rows, equal_width_edges(15)), values, *tables)
    # (3 + 1) / (3 + 2) right instead of 3 of 3; (2 + 1) / (4 + 2) is not more than 2 of 4.
    np.testing.assert_allclose(errors["mce"].hidden, [0.0, np.sqrt(0.8 * 0.2 * 3)])
    np.testing.assert_allclose(errors["smooth_ece"].hidden, [0.0, np.sqrt(0.8 * 0.2 * 3)])


def test_class_wise_bins_of_few_rows_have_noise_that_resampling_does_not_show():
    """Class 0 has 4 rows in the last bin, all of which came; class 1 has them in the first, where
    none did.
    """
    probs, y = np.tile([0.97, 0.03], (4, 1)), np.zeros(4, int)
    edges = equal_width_edges(15)
    gaps = np.zeros(30)
    gaps[14], gaps[15] = 4 * 0.97 - 4, 4 * 0.03
    unseen, calibrated = _classwise_variances(probs, y, edges, gaps)
    # With one row more, of the mean probability: (4 + 0.97) / 5 and 0.03 / 5.
    assert unseen[14] == pytest.approx(4 * 0.994 * 0.006)
    assert unseen[15] == pytest.approx(4 * 0.994 * 0.006)
    assert unseen.sum() == pytest.approx(unseen[14] + unseen[15])
    np.testing.assert_allclose(calibrated[[14, 15]], 4 * 0.97 * 0.03)
    rows = score(probs, y)
    (low, high), _ = classwise_interval(probs, y, rows, edges, 500, np.random.default_rng(0))
    assert low == 0.0, "an error of 0.03 is within the noise of four rows"
    assert high > 0.04


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


def test_as_many_equal_rows_as_pairs_within_one_set_are_chance():
    fit = np.column_stack(
        [np.r_[np.arange(100.0), np.arange(40.0)], np.ones(140)]
    )  # 40 rows appear twice
    new = np.column_stack(
        [np.arange(60.0, 160.0), np.ones(100)]
    )  # 40 equal rows that appear once in either
    assert count_fitted(new, kept_hashes(fit), 140) == 0
    assert count_fitted(new, kept_hashes(fit[:100]), 100) == 40


def test_a_row_that_comes_again_and_again_is_no_sign_of_the_fit():
    """Only rows that stand alone on both sides can tell one set from another."""
    fit = np.column_stack([np.arange(100.0), np.ones(100)])
    assert count_fitted(np.repeat(fit[:60], 3, axis=0), kept_hashes(fit), 100) == 0
    assert count_fitted(fit[:60], kept_hashes(fit), 100) == 60
    assert count_fitted(fit[:60], kept_hashes(np.repeat(fit, 3, axis=0)), 300) == 0
