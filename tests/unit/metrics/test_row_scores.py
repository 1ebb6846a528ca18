"""Scores of rows: the compiled pass gives what numpy gives, and refuses what numpy refuses."""

from __future__ import annotations

import numpy as np
import pytest

from recal.errors import InputError
from recal.metrics import row_scores
from recal.metrics.calibration_error import classwise_gaps, equal_width_edges
from recal.metrics.row_scores import score
from tests.problems import probs_with_ties

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_compiled_pass_gives_what_numpy_gives(dtype, order, monkeypatch):
    probs, y = probs_with_ties(dtype=dtype)
    probs = np.asarray(probs, order=order)
    small = score(probs, y)
    monkeypatch.setattr(row_scores, "SMALL", 0)
    large = score(probs, y)
    for name in ("confidence", "correct", "brier", "nll"):
        np.testing.assert_allclose(
            getattr(large, name), getattr(small, name), rtol=0, atol=1e-12, err_msg=name
        )


@pytest.mark.parametrize("bad", [[0.5, 0.6], [-0.1, 1.1], [np.nan, 0.5], [1.0005, 0.0]])
@pytest.mark.parametrize("small", [0, 100_000])
def test_a_row_that_is_no_probability_is_refused(bad, small, monkeypatch):
    monkeypatch.setattr(row_scores, "SMALL", small)
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
