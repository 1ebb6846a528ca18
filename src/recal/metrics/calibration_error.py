"""Calibration errors: distances between confidence and accuracy, in bins, or smoothed without bins."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from recal.checks import Floats, Labels, check_weights, is_graded
from recal.errors import InputError
from recal.metrics.bins import (
    BinTable,
    classwise_gaps,
    equal_mass_edges,
    equal_width_edges,
    table_of,
)
from recal.metrics.row_scores import (
    Classes,
    RowScores,
    Vector,
    read_pair,
    score_labelled,
    weighted_rows,
)


def bin_table(
    probs: ArrayLike,
    y: ArrayLike,
    n_bins: int = 15,
    *,
    classes: Classes = None,
    sample_weight: ArrayLike | None = None,
) -> BinTable:
    """Bin rows by the confidence of their prediction, in bins of equal width."""
    edges = equal_width_edges(n_bins)
    rows, weights = weighted_rows(probs, y, classes, sample_weight)
    return table_of(rows.confidence, rows.correct, edges, weights)


def ece(
    probs: ArrayLike,
    y: ArrayLike,
    n_bins: int = 15,
    *,
    classes: Classes = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Expected calibration error: the mean gap between confidence and accuracy over bins, weighted
    by their rows.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities; a 1-D array is the confidence of each answer.
    y : array-like of shape (n_samples,)
        Integers are column indices; other labels need `classes`. With a 1-D `probs`: which answers
        are right.
    n_bins : int
        Bins of equal width (lo, hi] over [0, 1].
    classes : sequence of length n_classes, optional
        Names of the columns, in order.
    sample_weight : array-like of shape (n_samples,), optional
        Relative weights: multiplying all of them by a number changes nothing.

    Examples
    --------
    >>> from recal.metrics import ece
    >>> round(ece([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 3)  # two bins: |0.9 - 1| / 2 + |0.8 - 0| / 2
    0.45
    """
    return bin_table(probs, y, n_bins, classes=classes, sample_weight=sample_weight).ece()


def mce(
    probs: ArrayLike,
    y: ArrayLike,
    n_bins: int = 15,
    *,
    classes: Classes = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Maximum calibration error: the largest gap between mean confidence and accuracy over all bins
    with rows.

    Examples
    --------
    >>> from recal.metrics import mce
    >>> round(mce([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 3)
    0.8
    """
    return bin_table(probs, y, n_bins, classes=classes, sample_weight=sample_weight).mce()


def debiased_ece(
    probs: ArrayLike,
    y: ArrayLike,
    n_bins: int = 15,
    *,
    norm: Literal[1, 2] = 2,
    classes: Classes = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Calibration error without most of the upward bias of finite samples (Kumar, Liang and Ma,
    2019).

    A plain ECE is positive even for a calibrated model, because the accuracy of a bin is noisy. The
    default subtracts the expected squared noise, acc (1 - acc) / (count - 1), from each bin's
    squared gap and returns the square root of the weighted sum, or 0 if the sum is negative. This
    is an L2 error: it may exceed `ece`, an L1 error, if gaps differ a lot between bins. ``norm=1``
    returns 2 ece - E[ece], where the accuracies are redrawn from normal distributions and the
    expectation is exact; this removes less of the bias.

    Bins are those of `ece`. A bin with one row counts 0 in the L2 error, because its noise cannot
    be estimated. With weights, the count of a bin is its effective number of rows. The authors'
    package gives other values, because it uses bins of equal mass and all classes by default.

    Examples
    --------
    >>> from recal.metrics import debiased_ece
    >>> round(debiased_ece([[0.9, 0.1]] * 100, [0] * 70 + [1] * 30), 4)
    0.1946
    """
    if norm not in (1, 2):
        raise InputError(f"must be 1 or 2, got {norm!r}", argument="norm")
    return bin_table(probs, y, n_bins, classes=classes, sample_weight=sample_weight).debiased(norm)


def adaptive_ece(
    probs: ArrayLike,
    y: ArrayLike,
    n_bins: int = 15,
    *,
    classes: Classes = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """ECE with bins of equal numbers of rows, so that no bin is nearly empty.

    Rows of equal confidence share a bin. With many ties there are fewer bins, or bins of unequal
    size.

    Examples
    --------
    >>> from recal.metrics import adaptive_ece
    >>> round(adaptive_ece([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]], [0, 0, 0, 1], n_bins=2), 3)
    0.15
    """
    rows, weights = weighted_rows(probs, y, classes, sample_weight)
    edges = equal_mass_edges(rows.confidence, n_bins, weights)
    return table_of(rows.confidence, rows.correct, edges, weights).ece()


def classwise_ece(
    probs: ArrayLike,
    y: ArrayLike,
    n_bins: int = 15,
    *,
    classes: Classes = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean over all classes of the binary ECE of the class's probability.

    Every column counts once, including classes that never occur in `y`.

    Examples
    --------
    >>> from recal.metrics import classwise_ece
    >>> round(classwise_ece([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 3)
    0.45
    """
    edges = equal_width_edges(n_bins)
    if is_graded(probs):
        raise InputError(
            "Class-wise ECE needs the probabilities of all classes, shape (n_samples, n_classes), got the confidence "
            "of each answer only."
        )
    array, labels = read_pair(probs, y, classes)
    score_labelled(array, labels)  # refuses what is no probability
    weights = None if sample_weight is None else check_weights(sample_weight, len(array))
    return classwise_ece_of(array, labels, edges, weights)


def classwise_ece_of(
    probs: Floats, labels: Labels, edges: Vector, weights: Vector | None = None
) -> float:
    total = len(probs) if weights is None else float(weights.sum())
    return float(
        np.abs(classwise_gaps(probs, labels, edges, weights=weights)).sum()
        / (total * probs.shape[1])
    )


def smooth_ece(
    probs: ArrayLike,
    y: ArrayLike,
    *,
    classes: Classes = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Smooth ECE of the prediction's confidence: no bins (Blasiok and Nakkiran, 2023).

    The residuals, confidence minus outcome, are smoothed over [0, 1] with a Gaussian kernel that is
    reflected at both ends. The error at bandwidth s is the integral of their absolute value. It
    falls as s grows; the smooth ECE is the error at the bandwidth that equals it. It has no
    parameter and is continuous in the probabilities.

    Examples
    --------
    >>> from recal.metrics import smooth_ece
    >>> round(smooth_ece([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 3)
    0.35
    """
    return smooth_ece_of(*weighted_rows(probs, y, classes, sample_weight))


def smooth_ece_of(rows: RowScores, weights: Vector | None = None) -> float:
    shares = 1.0 / len(rows) if weights is None else weights / weights.sum()
    return fixed_point(cosine_coefficients(rows.confidence, rows.gap * shares))


def cosine_coefficients(confidence: Vector, weights: Vector, grid_size: int = 4096) -> Vector:
    """Cosine transform of weighted points on a grid; a reflected Gaussian kernel multiplies it
    elementwise.

    Each point is split between the two nearest points of the grid; with 4,096 of them the error
    changes by less than 1e-6.
    """
    place = confidence * grid_size
    left = np.minimum(place.astype(np.intp), grid_size - 1)
    right_share = place - left
    grid = np.zeros(grid_size + 1)
    grid += np.bincount(left, weights * (1.0 - right_share), minlength=grid_size + 1)
    grid += np.bincount(left + 1, weights * right_share, minlength=grid_size + 1)
    return transform_grid(grid)


def transform_grid(grid: Vector) -> Vector:
    mirrored = grid.copy()
    mirrored[..., [0, -1]] *= 2  # a point on the border coincides with its own mirror image
    return _cosines(mirrored)


def _cosines(values: Vector) -> Vector:
    """Cosine transform of type 1: x_0 + (-1)^k x_N + 2 sum x_j cos(pi j k / N)."""
    return np.fft.rfft(np.concatenate([values, values[..., -2:0:-1]], axis=-1), axis=-1).real


def smooth_residuals(coefficients: Vector, bandwidth: float) -> Vector:
    """Smoothed residuals at the grid points, times their spacing."""
    size = coefficients.shape[-1] - 1
    waves = np.pi * np.arange(size + 1)
    return _cosines(coefficients * np.exp(-0.5 * (bandwidth * waves) ** 2)) / (2 * size)


def error_at(coefficients: Vector, bandwidth: float) -> float:
    """Smooth error at a bandwidth: the integral of the absolute smoothed residuals."""
    field = np.abs(smooth_residuals(coefficients, bandwidth))
    return float(field.sum() - 0.5 * (field[0] + field[-1]))


def fixed_point(coefficients: Vector) -> float:
    """The bandwidth that equals the error at that bandwidth, by bisection."""
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        if error_at(coefficients, middle) > middle:
            low = middle
        else:
            high = middle
    return high if low > 0.0 else 0.0
