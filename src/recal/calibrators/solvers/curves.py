"""Curves of one class's score: isotonic regression kept as its knots, and bins of log-odds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.maps.arrays import TIE

Knots = tuple[NDArray[np.float64], NDArray[np.float64]]


def fit_increasing(scores: NDArray[np.float64], hits: NDArray[np.bool_]) -> Knots:
    """Return the knots (score, value) of the increasing function that best predicts `hits`, in squared error.

    Between knots the function is linear, outside constant, as in scikit-learn's IsotonicRegression with clipping. No
    block of the solution can end between two equal targets, so the misses between neighbouring hits are pooled
    beforehand: the solver sees at most two elements per hit, however many classes' scores were pooled.
    """
    exact = np.sort(scores)
    ordered = merge_ties(exact)
    hit_scores = scores[hits] if ordered is exact else ordered[np.searchsorted(exact, scores[hits])]
    where, counts = np.unique(hit_scores, return_counts=True)
    left, right = np.searchsorted(ordered, where, "left"), np.searchsorted(ordered, where, "right")
    # Elements in turn: the misses before a score with hits, then all samples at that score.
    edges = np.empty(2 * len(where) + 2, dtype=np.intp)
    edges[0], edges[-1] = 0, len(ordered)
    edges[1:-1:2], edges[2:-1:2] = left, right
    weights = np.diff(edges)
    targets = np.zeros(len(weights))
    targets[1::2] = counts / weights[1::2]
    present = weights > 0
    from scipy.optimize import isotonic_regression  # here, since loading what was fitted must not cost its import

    fitted = isotonic_regression(targets[present], weights=weights[present].astype(np.float64)).x
    starts, ends = edges[:-1][present], edges[1:][present] - 1
    first = np.concatenate([[True], fitted[1:] != fitted[:-1]])
    last = np.concatenate([first[1:], [True]])
    low, high = ordered[starts[first]], ordered[ends[last]]
    keep = np.stack([np.ones(len(low), dtype=bool), high > low], axis=1).ravel()
    return np.stack([low, high], axis=1).ravel()[keep], np.repeat(fitted[first], 2)[keep]


def merge_ties(ordered: NDArray[np.float64], tie: float = TIE) -> NDArray[np.float64]:
    """Return sorted scores in which neighbours that are equal but for rounding are equal; the same array if none are.

    A curve with a jump between two such scores would give a sample one value or the other by the last bit of a
    logarithm, which differs between libraries.
    """
    gaps = np.diff(ordered, prepend=-np.inf)
    begins = gaps > tie * (1.0 + np.abs(ordered))
    if not (~begins & (gaps > 0.0)).any():
        return ordered
    return ordered[np.maximum.accumulate(np.where(begins, np.arange(len(ordered)), 0))]


def pack(curves: Sequence[Knots]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Lay curves of different lengths end to end: scores, values, and where each begins and ends."""
    scores, values = (np.concatenate(parts) for parts in zip(*curves))
    return scores, values, np.cumsum([0, *(len(curve[0]) for curve in curves)], dtype=np.int64)


def smooth(values: NDArray[np.float64], n_samples: int, n_classes: int, smoothing: float) -> NDArray[np.float64]:
    """Move frequencies as if `smoothing` more samples had been seen, spread evenly over the classes.

    The move is increasing, so order is kept, and with smoothing > 0 no frequency stays at 0 or 1.
    """
    return (n_samples * values + smoothing / n_classes) / (n_samples + smoothing)


def equal_mass_edges(ordered: NDArray[np.float64], n_bins: int) -> NDArray[np.float64]:
    """Return the n_bins - 1 inner edges that share out sorted scores evenly; equal where scores are.

    An edge lies halfway between two neighbours, so that rounding at predict time moves no sample across.
    """
    position = np.arange(1, n_bins) * len(ordered) // n_bins
    return halfway(ordered[np.maximum(position - 1, 0)], ordered[position])


def halfway(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log-odds halfway between two, as probabilities where these differ, else as log-odds."""
    middle = scipy.special.logit((scipy.special.expit(low) + scipy.special.expit(high)) / 2)
    return np.where((low < middle) & (middle < high), middle, (low + high) / 2)


def equal_width_edges(n_bins: int) -> NDArray[np.float64]:
    """Return the log-odds of the n_bins - 1 inner edges that share out the probabilities evenly."""
    return scipy.special.logit(np.linspace(0.0, 1.0, n_bins + 1)[1:-1])


def frequencies(
    counts: NDArray[np.intp], hits: NDArray[np.intp], middles: NDArray[np.float64], n_classes: int, smoothing: float
) -> NDArray[np.float64]:
    """Return each bin's share of hits among its samples with `smoothing` more, spread evenly over the classes.

    A bin that holds no sample says nothing, and answers with its middle.
    """
    shares = (hits + smoothing / n_classes) / np.maximum(counts + smoothing, np.finfo(np.float64).tiny)
    return np.where(counts > 0, shares, middles)
