"""Slices, corrected for their number, and the inputs to look at."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from recal import InputError, Views
from recal.decisions import confident_mistakes, doubted_answers, slices
from recal.decisions.bounds import share_interval
from recal.decisions.slices import _holm, honest_chance


def columns(sure):
    return np.column_stack([sure, 1 - np.asarray(sure)])


def test_the_chance_of_an_honest_slice_is_summed_over_all_outcomes():
    sure = np.array([0.9, 0.6, 0.7, 0.55])
    chances = dict.fromkeys(range(5), 0.0)
    for outcome in product([0, 1], repeat=4):
        chances[sum(outcome)] += math.prod(p if hit else 1 - p for p, hit in zip(sure, outcome))
    for count in range(5):
        below = sum(chances[k] for k in range(count + 1))
        above = sum(chances[k] for k in range(count, 5))
        assert honest_chance(sure, np.arange(4) < count) == pytest.approx(min(1, 2 * min(below, above)))


def test_many_samples_agree_with_the_exact_sum():
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.6, 1, 2000)
    right = rng.random(2000) < sure - 0.02
    both = np.tile(sure, 2)[:2001], np.tile(right, 2)[:2001]
    assert honest_chance(*both) == pytest.approx(honest_chance(sure, right), rel=0.2)


def test_holm_by_hand():
    assert _holm(np.array([0.01, 0.04, 0.03])).tolist() == pytest.approx([0.03, 0.06, 0.06])


def test_honest_slices_are_seldom_blamed():
    """Over many draws of 20 honest slices, any is blamed in at most 5 %."""
    blamed = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        sure = rng.uniform(0.5, 1, 400)
        found = slices(columns(sure), (rng.random(400) > sure).astype(int), rng.integers(0, 20, 400))
        blamed += any("confident" in one.verdict for one in found)
    assert blamed <= 10


def test_intervals_are_those_of_all_slices_at_once_and_the_worst_comes_first():
    y = np.r_[np.zeros(90), np.ones(10), np.zeros(50), np.ones(50)].astype(int)
    found = slices(columns(np.full(200, 0.9)), y, ["a"] * 100 + ["b"] * 100)
    assert [one.name for one in found] == ["b", "a"]
    assert found[1].accuracy_interval == share_interval(90, 100, 1 - 0.05 / 2)
    assert found[0].verdict == "over-confident"
    assert found[0].gap_interval[0] == pytest.approx(0.9 - found[0].accuracy_interval[1])


def test_four_answers_are_called_too_few():
    (found,) = slices(columns(np.full(4, 0.8)), [0, 0, 0, 1], ["x"] * 4)
    assert found.verdict == "too few to tell"


def test_a_column_of_another_length_is_refused():
    with pytest.raises(InputError, match="each of 4 samples"):
        slices(columns(np.full(4, 0.8)), [0, 0, 0, 1], ["x"] * 3)


def test_the_surest_mistakes_come_first():
    found = confident_mistakes(columns([0.7, 0.95, 0.9, 0.99]), [1, 1, 0, 1], top=2)
    assert [(pick.row, pick.answer, pick.truth) for pick in found] == [(3, 0, 1), (1, 0, 1)]


def test_the_most_doubted_answers_come_first_and_need_no_labels():
    views = Views([[3.0, 0.0]] * 3, {"zoom:0.5": [[3.0, 0.0], [-3.0, 0.0], [0.0, 0.0]], "zoom:0.7": [[3.0, 0.0]] * 3})
    found = doubted_answers(views)
    assert [pick.row for pick in found] == [1, 2, 0]
    assert found[0].truth is None
    assert found[2].doubt == pytest.approx(0.0)
    with pytest.raises(InputError, match="hold no transformations"):
        doubted_answers(Views([[2.0, 0.0]]))
