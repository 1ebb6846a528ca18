"""Watching answers of which only the confidence is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from recal import profile, watch
from recal.decisions.profiles import _fit_platt
from recal.errors import InputError


def graded(
    n: int, seed: int, low: float = 0.5, *, slope: float = 0.7
) -> tuple[np.ndarray, np.ndarray]:
    """Return overconfident confidences, from `low` on, and whether answers are right."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(low, 0.99, n)
    chance = 1 / (1 + np.exp(-slope * np.log(confidence / (1 - confidence))))
    return confidence, rng.random(n) < chance


def test_a_change_of_confidences_raises_an_alarm_and_hides_the_accuracy():
    kept = profile(*graded(1000, 0))
    same, changed = watch(kept, graded(500, 1)[0]), watch(kept, graded(500, 2, low=0.1)[0])
    assert (same.alarm, changed.alarm) == (False, True)
    assert [finding.name for finding in same.findings] == ["confidence"]
    assert same.known
    assert not changed.known
    assert math.isnan(changed.accuracy)
    assert "may no longer mean the same" in str(changed)
    assert (same.beta, same.ratio) == (1.0, 1.0)


def test_the_interval_of_the_accuracy_covers_it_as_often_as_promised():
    covered, widths = [], []
    for seed in range(300):
        kept = profile(*graded(300, 2 * seed))
        confidence, right = graded(400, 2 * seed + 1)
        result = watch(kept, confidence, permutations=99)
        if result.known:
            covered.append(result.interval[0] <= right.mean() <= result.interval[1])
            widths.append(result.interval[1] - result.interval[0])
    assert len(covered) > 280
    assert 0.95 - 2.5 * math.sqrt(0.05 * 0.95 / 300) <= np.mean(covered) <= 0.985
    assert np.mean(widths) < 0.16


def test_the_interval_covers_the_accuracy_of_clusters_too():
    """Half of the time, answers of a cluster are right or wrong together; new ones are larger."""

    def sample(n, size, seed):
        rng, clusters = np.random.default_rng(seed), np.repeat(np.arange(n), size)
        luck = np.where(rng.random(n * size) < 0.5, rng.random(n)[clusters], rng.random(n * size))
        confidence = rng.uniform(0.5, 0.99, n)[clusters]
        return confidence, luck < confidence, clusters

    covered = []
    for seed in range(100):
        confidence, right, clusters = sample(60, 10, 2 * seed)
        kept = profile(confidence, right, clusters=clusters)
        confidence, right, clusters = sample(30, 20, 2 * seed + 1)
        found = watch(kept, confidence, clusters=clusters, permutations=99)
        covered.append(found.interval[0] <= right.mean() <= found.interval[1])
    assert np.mean(covered) >= 0.95 - 2.5 * math.sqrt(0.05 * 0.95 / 100)


def test_clusters_of_one_row_change_nothing():
    (confidence, right), (new, _) = graded(300, 0), graded(200, 1)
    alone = watch(profile(confidence, right), new)
    single = watch(profile(confidence, right, clusters=range(300)), new, clusters=range(200))
    assert (single.interval, single.p_value) == (alone.interval, alone.p_value)


def test_platt_scaling_by_its_equations():
    confidence, right = graded(2000, 3)
    scores = np.log(confidence / (1 - confidence))
    (slope, intercept), covariance = _fit_platt(scores, right)
    chance = 1 / (1 + np.exp(-(slope * scores + intercept)))
    assert abs((chance - right).sum()) < 0.6  # the prior counts half an answer of each kind
    assert abs(((chance - right) * scores).sum()) < 0.6
    assert slope == pytest.approx(0.7, abs=3 * math.sqrt(covariance[0, 0]))


def test_the_accuracy_is_uncertain_where_no_answer_is_wrong():
    kept = profile(np.full(50, 0.9), np.ones(50, bool))
    low, high = watch(kept, np.full(30, 0.9)).interval
    assert low < 1 - 3 / 50  # the rule of three
    assert high > 0.99


def test_signals_with_missing_values_are_compared():
    def signals(n, seed, missing):
        rng = np.random.default_rng(seed)
        return {"stated": np.where(rng.random(n) < missing, np.nan, rng.random(n))}

    kept = profile(*graded(800, 4), signals=signals(800, 5, 0.1))
    same = watch(kept, graded(300, 6)[0], signals=signals(300, 7, 0.1))
    more, none = (watch(kept, graded(300, 6)[0], signals=signals(300, 7, m)) for m in (0.3, 1.0))
    assert [result.alarm for result in (same, more, none)] == [False, True, True]
    assert same.findings[1].at_fit == pytest.approx(0.5, abs=0.05)
    assert math.isnan(none.findings[1].today)
    for given in (None, {"size": np.zeros(300)}, {"stated": ["a"] * 300}):
        with pytest.raises(InputError, match="stated"):
            watch(kept, graded(300, 6)[0], signals=given)


def test_without_grades_the_accuracy_is_unknown():
    result = watch(profile(graded(500, 8)[0]), graded(300, 9)[0])
    assert result.alarm is False
    assert "without grades" in result.reason


def test_a_profile_of_confidences_takes_confidences_only():
    kept = profile(*graded(500, 10))
    with pytest.raises(InputError, match="a profile of confidences"):
        watch(kept, np.random.default_rng(0).normal(size=(50, 3)))
    with pytest.raises(InputError, match="classes"):
        watch(profile(np.random.default_rng(0).normal(size=(50, 3))), np.linspace(-2, 2, 50))


def test_other_numbers_in_one_column_are_log_odds_of_two_classes():
    rng = np.random.default_rng(11)
    y = rng.integers(0, 2, 300)
    kept = profile(3 * (2 * y - 1) + rng.normal(0, 2, 300), y)
    assert kept.n_classes == 2
    assert not kept.graded
