"""Curves of one class's score: isotonic regression stored as its knots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recal.maps.arrays import TIE

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]


def fit_increasing(scores: NDArray[np.float64], hits: NDArray[np.bool_]) -> Curve:
    """Return the knots (score, value) of the increasing function that best predicts `hits`, in
    squared error.

    The function is linear between knots and constant outside, as in scikit-learn's
    IsotonicRegression with clipping. No block of the solution can end between two equal targets, so
    misses between neighbouring hits are pooled first. The solver then sees at most two elements per
    hit, even if the scores of all classes are pooled.
    """
    exact = np.sort(scores)
    ordered = merge_ties(exact)
    hit_scores = scores[hits] if ordered is exact else ordered[np.searchsorted(exact, scores[hits])]
    where, counts = np.unique(hit_scores, return_counts=True)
    left, right = np.searchsorted(ordered, where, "left"), np.searchsorted(ordered, where, "right")
    # The elements alternate: the misses before a score with hits, then all samples at that score.
    edges = np.empty(2 * len(where) + 2, dtype=np.intp)
    edges[0], edges[-1] = 0, len(ordered)
    edges[1:-1:2], edges[2:-1:2] = left, right
    weights = np.diff(edges)
    targets = np.zeros(len(weights))
    targets[1::2] = counts / weights[1::2]
    present = weights > 0
    from scipy.optimize import isotonic_regression  # not needed to load a fitted curve

    fitted = isotonic_regression(targets[present], weights=weights[present].astype(np.float64)).x
    starts, ends = edges[:-1][present], edges[1:][present] - 1
    first = np.concatenate([[True], fitted[1:] != fitted[:-1]])
    last = np.concatenate([first[1:], [True]])
    low, high = ordered[starts[first]], ordered[ends[last]]
    keep = np.stack([np.ones(len(low), dtype=bool), high > low], axis=1).ravel()
    return np.stack([low, high], axis=1).ravel()[keep], np.repeat(fitted[first], 2)[keep]


def merge_ties(ordered: NDArray[np.float64], tie: float = TIE) -> NDArray[np.float64]:
    """Return sorted scores in which neighbours that differ only by rounding are equal; the same
    array if none do.

    If a curve jumped between two such scores, the last bit of a logarithm, which differs between
    libraries, would decide which value a sample gets.
    """
    gaps = np.diff(ordered, prepend=-np.inf)
    begins = gaps > tie * (1.0 + np.abs(ordered))
    if not (~begins & (gaps > 0.0)).any():
        return ordered
    return ordered[np.maximum.accumulate(np.where(begins, np.arange(len(ordered)), 0))]


def pack(
    curves: Sequence[Curve],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Concatenate curves of different lengths: scores, values, and the indices where each curve
    begins and ends.
    """
    scores, values = (np.concatenate(parts) for parts in zip(*curves))
    return scores, values, np.cumsum([0, *(len(curve[0]) for curve in curves)], dtype=np.int64)


def smooth(
    values: NDArray[np.float64], n_samples: int, n_classes: int, smoothing: float
) -> NDArray[np.float64]:
    """Smooth frequencies as if there were `smoothing` more samples, spread evenly over the classes.

    Smoothing keeps the order of frequencies; with smoothing > 0 none stays at 0 or 1.
    """
    return (n_samples * values + smoothing / n_classes) / (n_samples + smoothing)
