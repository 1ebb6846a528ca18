"""Scores of rows: one block of rows gives what several give, and the area under the risk-coverage
curve.
"""

from __future__ import annotations

import numpy as np
import pytest

from recal.metrics import row_scores as module
from recal.metrics.row_scores import classwise_gaps, equal_width_edges, score
from recal.metrics.scores import risk_coverage_area
from tests.problems import probs_with_ties

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_size_of_blocks_changes_nothing(dtype, monkeypatch):
    probs, y = probs_with_ties(dtype=dtype)
    part, weights, edges = RNG.integers(0, 3, len(y)), RNG.random(len(y)), equal_width_edges(10)
    rows, gaps = score(probs, y), classwise_gaps(probs, y, edges, part, 3, weights)
    monkeypatch.setattr(module, "_BLOCK", 100)
    for name in ("confidence", "correct", "brier", "nll"):
        np.testing.assert_array_equal(getattr(score(probs, y), name), getattr(rows, name))
    np.testing.assert_allclose(
        classwise_gaps(probs, y, edges, part, 3, weights), gaps, rtol=0, atol=1e-12
    )


def test_classwise_gaps_are_probability_minus_outcome_by_part_class_and_bin():
    probs, y = probs_with_ties(60)
    part, weights, edges = RNG.integers(0, 3, len(y)), RNG.random(len(y)), equal_width_edges(10)
    expected = np.zeros((3, 7, 10))
    for row, of_part, weight, label in zip(probs, part, weights, y):
        for column, value in enumerate(row):
            place = max(int(np.ceil(round(10 * value, 9))) - 1, 0)
            expected[of_part, column, place] += weight * (value - (column == label))
    np.testing.assert_allclose(
        classwise_gaps(probs, y, edges, part, 3, weights), expected, rtol=0, atol=1e-12
    )


def test_the_area_is_the_mean_of_the_risks_at_every_coverage():
    sizes, correct = np.array([2.0, 0.0, 1.0, 3.0]), np.array([1.0, 0.0, 0.0, 3.0])
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, 7))])
    # The most confident first: three right, one wrong, then a right and a wrong one in either
    # order.
    risks = [0, 0, 0, 1 / 4, 1.5 / 5, 2 / 6]
    assert risk_coverage_area(sizes, correct, harmonic) == pytest.approx(np.mean(risks), abs=1e-15)
