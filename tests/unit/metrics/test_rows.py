"""Little work in numpy and much of it compiled: the same bins and answers, and sums equal but for rounding."""

from __future__ import annotations

import numpy as np
import pytest

from recal.engine import binning
from recal.metrics import rows as row_kernels
from recal.metrics.scores import risk_coverage_area

RNG = np.random.default_rng(0)
EDGES = np.arange(11) / 10


def rows(dtype, n=400, k=7):
    odds = np.exp(3 * RNG.normal(size=(n, k)))
    probs = odds / odds.sum(1, keepdims=True)
    probs[:20] = np.eye(k)[RNG.integers(0, k, 20)]
    probs[20:30] = 1 / k  # ties
    probs[30:40, :] = [0.3, 0.7, 0, 0, 0, 0, 0]  # on an edge
    return probs.astype(dtype), RNG.integers(0, k, n)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "name", ["score_rows", "rank_rows", "negative_log_likelihoods", "bin_top_label", "bin_classwise"]
)
def test_numpy_and_compiled_passes_agree(name, dtype, monkeypatch):
    probs, y = rows(dtype)
    n, k = probs.shape
    block = RNG.integers(0, 3, n)
    given = {
        "score_rows": ((), [np.empty(n), np.empty(n, bool), np.empty(n), np.empty(n)]),
        "rank_rows": ((), [np.empty(n), np.empty(n, bool)]),
        "negative_log_likelihoods": ((), [np.empty(n)]),
        "bin_top_label": ((EDGES,), [np.zeros(10) for _ in range(3)]),
        "bin_classwise": ((EDGES, block), [np.zeros((3, k, 10))]),
    }
    more, small = given[name]
    large = [array.copy() for array in small]
    assert getattr(row_kernels, name)(probs, y, *more, *small) == -1
    monkeypatch.setattr(row_kernels, "SMALL", 0)
    assert getattr(row_kernels, name)(probs, y, *more, *large) == -1
    for ours, theirs in zip(small, large):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("row", "value"), [(3, np.nan), (5, -0.1), (7, 1.2), (9, 0.5)])
def test_both_name_the_first_bad_row(row, value):
    probs, y = rows(np.float64)
    probs[row:, 2] = value
    probs[row:, 1] = 0.9
    outs = [np.empty(len(y)) for _ in range(4)]
    assert row_kernels.score_rows(probs, y, *outs) == binning.score_rows(probs, y, *outs) == row
    assert binning.rank_rows(probs, y, *outs[:2]) == binning.truths(probs, y, outs[0]) == row


def test_the_area_is_the_mean_of_the_risks_at_every_coverage():
    sizes, correct = np.array([2.0, 0.0, 1.0, 3.0]), np.array([1.0, 0.0, 0.0, 3.0])
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, 7))])
    # The surest first: three right, one wrong, then a right and a wrong one in either order.
    risks = [0, 0, 0, 1 / 4, 1.5 / 5, 2 / 6]
    assert risk_coverage_area(sizes, correct, harmonic) == pytest.approx(np.mean(risks), abs=1e-15)
    assert binning.risk_coverage_area(sizes, correct) == pytest.approx(np.mean(risks), abs=1e-15)
