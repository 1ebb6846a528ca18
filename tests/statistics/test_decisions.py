"""Constants and edges of the rules that carry a promise, each pinned from both sides by a case made
by hand.
"""

from __future__ import annotations

import numpy as np
import pytest

from recal.decisions import profile, watch
from recal.decisions.certify import growing_sizes, ranked
from recal.decisions.sets import PredictionSets


def answers(confidence, wrong=()):
    mistakes = np.zeros(len(confidence), bool)
    mistakes[list(wrong)] = True
    return ranked(np.asarray(confidence, float), mistakes)


def two_columns(confidence):
    return np.column_stack([confidence, 1 - np.asarray(confidence)])


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_a_threshold_between_rounded_confidences_parts_them(digits):
    step = 10.0**-digits
    for low in np.arange(1, 10**digits) * step:
        low, high = round(float(low), digits), round(float(low) + step, digits)
        threshold = answers([high, low]).threshold(1)
        assert low < threshold <= high


def test_sets_grow_by_half_a_per_cent_and_by_one_at_least():
    sizes = growing_sizes(5000, 0.01, 0.05)
    grown = np.diff(sizes) / sizes[:-1]
    assert (sizes[0], sizes[-1]) == (299, 5000)
    assert 0.004 <= grown[sizes[:-1] > 1000][:-1].min() <= grown[sizes[:-1] > 1000].max() <= 0.006


def test_a_class_whose_score_is_the_limit_stays_in_the_set():
    kept = PredictionSets("lac", 0.9, (0.5,)).predict([[0.5, 0.5], [0.25, 0.75]])
    assert kept.tolist() == [[True, True], [False, True]]


def test_a_shuffle_as_different_as_today_counts_against_an_alarm():
    """All rows are alike, so every shuffle looks like today: the p-value is 1, not 0."""
    fit = profile(np.tile([2.0, 0.0], (30, 1)))
    assert watch(fit, np.tile([2.0, 0.0], (20, 1)), alpha=0.1, permutations=19).p_value == 1.0
    other = watch(fit, np.tile([0.0, 9.0], (20, 1)), alpha=0.05, permutations=19)
    assert other.p_value == 0.05
    assert other.alarm
