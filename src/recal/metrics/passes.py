"""One pass over probabilities: checked, argmaxed and binned together. Little of it runs in numpy, much of it compiled.

Both ways give the same bins and answers, and sums that differ by rounding alone. A command on a small file never
waits for a compiler. Every pass over probabilities returns the first row that breaks their rules, or -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.engine.kernels import bins

Array = NDArray[Any]

# Values up to which numpy is done before a compiler is loaded.
SMALL = 100_000
# As in the compiled passes: rows in float32 do not sum to one exactly.
_SUM_TOLERANCE = 1e-3


def bin_top_label(probs: Array, y: Array, edges: Array, counts: Array, confidences: Array, correct: Array) -> int:
    """Add every row's confidence and correctness to its bin."""
    if probs.size > SMALL:
        return int(bins.bin_top_label(probs, y, edges, counts, confidences, correct))
    if (bad := _first_bad(probs)) >= 0:
        return bad
    confidence = probs.max(axis=1).astype(np.float64)
    bin_of = assigned_bins(confidence, edges)
    counts += np.bincount(bin_of, minlength=len(counts))
    confidences += np.bincount(bin_of, weights=confidence, minlength=len(counts))
    correct += np.bincount(bin_of[probs.argmax(axis=1) == y], minlength=len(counts))
    return -1


def score_rows(probs: Array, y: Array, confidence: Array, correct: Array, brier: Array, nll: Array) -> int:
    """Write each row's confidence, correctness, squared error and negative log-likelihood."""
    if probs.size > SMALL:
        bad = int(bins.score_rows(probs, y, confidence, correct, brier, nll))
        if bad < 0:
            _negative_log(nll)
        return bad
    if (bad := _first_bad(probs)) >= 0:
        return bad
    rows, gaps = np.arange(len(probs)), probs.astype(np.float64)
    confidence[:], correct[:] = probs.max(axis=1), probs.argmax(axis=1) == y
    nll[:] = gaps[rows, y]
    _negative_log(nll)
    gaps[rows, y] -= 1.0
    brier[:] = np.square(gaps).sum(axis=1)
    return -1


def rank_rows(probs: Array, y: Array, confidence: Array, correct: Array) -> int:
    """Write each row's confidence and correctness."""
    if probs.size > SMALL:
        return int(bins.rank_rows(probs, y, confidence, correct))
    if (bad := _first_bad(probs)) >= 0:
        return bad
    confidence[:], correct[:] = probs.max(axis=1), probs.argmax(axis=1) == y
    return -1


def negative_log_likelihoods(probs: Array, y: Array, out: Array) -> int:
    """Write each row's negative log-likelihood."""
    if probs.size > SMALL:
        bad = int(bins.truths(probs, y, out))
    elif (bad := _first_bad(probs)) < 0:
        out[:] = probs[np.arange(len(probs)), y]
    if bad < 0:
        _negative_log(out)
    return bad


def _negative_log(values: Array) -> None:
    with np.errstate(divide="ignore"):  # a truth of probability 0 costs infinity
        np.log(values, out=values)
    np.negative(values, out=values)


def bin_classwise(probs: Array, y: Array, edges: Array, block: Array, gaps: Array) -> int:
    """Add probability minus outcome to gaps[block[i], class, bin] for each row and class."""
    if probs.size > SMALL:
        return int(bins.bin_classwise(probs, y, edges, block, gaps))
    if (bad := _first_bad(probs)) >= 0:
        return bad
    (n, k), n_bins = probs.shape, len(edges) - 1
    values = probs.astype(np.float64)
    cells = (block[:, None] * k + np.arange(k)) * n_bins + assigned_bins(values.ravel(), edges).reshape(n, k)
    values[np.arange(n), y] -= 1.0
    gaps += np.bincount(cells.ravel(), weights=values.ravel(), minlength=gaps.size).reshape(gaps.shape)
    return -1


def _first_bad(probs: Array) -> int:
    sums = probs.sum(axis=1, dtype=np.float64)
    fine = (probs.min(axis=1) >= 0.0) & (probs.max(axis=1) <= 1.0) & (np.abs(sums - 1.0) <= _SUM_TOLERANCE)
    return -1 if fine.all() else int(np.argmin(fine))


def assigned_bins(values: Array, edges: Array) -> NDArray[np.intp]:
    """Return the bin of each value: the b with edges[b] < value <= edges[b + 1], or the first or last."""
    return np.searchsorted(edges[1:-1], values, side="left")


def spread_on_grid(positions: Array, weights: Array, grid: Array) -> None:
    """Share each weight between the two grid points around its position in [0, 1], nearer gets more."""
    last = len(grid) - 1
    place = positions * last
    left = np.minimum(place.astype(np.intp), last - 1)
    right_share = place - left
    grid += np.bincount(left, weights=weights * (1.0 - right_share), minlength=len(grid))
    grid += np.bincount(left + 1, weights=weights * right_share, minlength=len(grid))


def risk_coverage_area(sizes: Array, correct: Array, harmonic: Array) -> float:
    """Mean risk over all coverages, from runs of equal confidence, least confident first.

    Within a run errors are spread evenly, which is the expectation over the order of its rows: the risks at its
    m coverages after s rows with e errors, (e + r j) / (s + j) for j = 1..m, add up to r m + (e - r s)(H(s+m) - H(s)).
    """
    held = np.flatnonzero(sizes)[::-1]
    size = sizes[held].astype(np.intp)
    wrong = sizes[held] - correct[held]
    rate, after = wrong / sizes[held], np.cumsum(size)
    before, errors = after - size, np.cumsum(wrong) - wrong
    area = (rate * size + (errors - rate * before) * (harmonic[after] - harmonic[before])).sum()
    return float(area / after[-1])
