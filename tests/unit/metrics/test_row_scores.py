"""Scores of rows, in one pass that refuses what are no probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from recal.errors import InputError
from recal.metrics.calibration_error import classwise_gaps, equal_width_edges
from recal.metrics.row_scores import score
from tests.problems import probs_with_ties

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_many_rows_get_what_each_gets_alone(dtype, order):
    probs, y = probs_with_ties(dtype=dtype)
    many = score(np.asarray(np.tile(probs, (40, 1)), order=order), np.tile(y, 40))
    for row in range(0, len(y), 7):
        alone = score(probs[row : row + 1], y[row : row + 1])
        for name in ("confidence", "correct", "brier", "nll"):
            assert getattr(many, name)[row + 39 * len(y)] == getattr(alone, name)[0]
    expected = ((probs - np.eye(probs.shape[1])[y]) ** 2).sum(axis=1)
    np.testing.assert_allclose(many.brier[: len(y)], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("bad", [[0.5, 0.6], [-0.1, 1.1], [np.nan, 0.5], [1.0005, 0.0]])
def test_a_row_that_is_no_probability_is_refused(bad):
    with pytest.raises(InputError, match=r"row 2|NaN"):
        score([[0.5, 0.5], [1.0, 0.0], bad], [0, 1, 0])


def test_classwise_gaps_are_probability_minus_outcome_by_part_class_and_bin():
    probs, y = probs_with_ties(60)
    part, edges = RNG.integers(0, 3, len(y)), equal_width_edges(10)
    expected = np.zeros((3, 7, 10))
    for row, of_part, label in zip(probs, part, y):
        for column, value in enumerate(row):
            place = max(int(np.ceil(round(10 * value, 9))) - 1, 0)
            expected[of_part, column, place] += value - (column == label)
    np.testing.assert_allclose(
        classwise_gaps(probs, y, edges, part, 3), expected, rtol=0, atol=1e-12
    )
