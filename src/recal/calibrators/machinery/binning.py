"""Bins of log-odds: which one a score falls in, and how often it hits there. Bins are (low, high], as for the ECE."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.machinery.parameters import check_number
from recal.engine.kernels import SMALL, bins
from recal.engine.kernels.threads import over_rows


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
    smoothing = check_number("penalty", smoothing)
    shares = (hits + smoothing / n_classes) / np.maximum(counts + smoothing, np.finfo(np.float64).tiny)
    return np.where(counts > 0, shares, middles)


def look_up(
    scores: NDArray[np.float64], edges: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Send each column to the values of its bins; edges (n_classes, n_bins - 1), values (n_classes, n_bins)."""
    out = np.empty_like(scores)
    if scores.size >= SMALL:
        over_rows(bins.look_up, scores, edges, values, out)
        return out
    for column in range(scores.shape[1]):
        out[:, column] = values[column][np.searchsorted(edges[column], scores[:, column], side="left")]
    return out
