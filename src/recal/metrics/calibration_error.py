"""Calibration errors: distances between confidence and accuracy, in bins, or smoothed without bins.

A bin is (lo, hi]; a confidence of exactly 0 belongs to the first bin, and one of exactly 1 to the
last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Labels, Vector, is_graded
from recal.engine import row_blocks
from recal.errors import InputError
from recal.metrics.row_scores import (
    Classes,
    RowScores,
    first_of_each,
    read_pair,
    score,
    score_labelled,
)
from recal.schema import Number, check

COUNT = Number(1, whole=True)


@dataclass(frozen=True)
class BinTable:
    """Sums per bin that binned errors are computed from: rows, confidences, right answers."""

    edges: Vector
    counts: Vector
    confidence_sums: Vector
    correct: Vector

    @property
    def gaps(self) -> Vector:
        """Mean confidence minus accuracy in each bin; 0 in an empty one."""
        return (self.confidence_sums - self.correct) / np.where(self.counts > 0, self.counts, 1.0)

    @property
    def accuracy(self) -> Vector:
        """Share of right answers in each bin; NaN in an empty one."""
        return self.correct / np.where(self.counts > 0, self.counts, np.nan)

    @property
    def confidence(self) -> Vector:
        """Mean confidence in each bin; NaN in an empty one."""
        return self.confidence_sums / np.where(self.counts > 0, self.counts, np.nan)

    def ece(self) -> float:
        return float(np.abs(self.confidence_sums - self.correct).sum() / self.counts.sum())

    def mce(self) -> float:
        return float(np.abs(self.gaps).max())

    def debiased(self) -> float:
        """Return the debiased error; see `debiased_ece`."""
        several = self.counts > 1
        rows, accuracy = self.counts[several], self.accuracy[several]
        squares = self.gaps[several] ** 2 - accuracy * (1 - accuracy) / (rows - 1)
        return float(np.sqrt(max(float(rows @ squares) / self.counts.sum(), 0.0)))


def equal_width_edges(n_bins: int) -> Vector:
    """Edges b / n_bins, compared with confidences as float64 for any dtype of the probabilities."""
    return np.arange(check(n_bins, COUNT, "n_bins") + 1) / n_bins


def equal_mass_edges(confidence: Vector, n_bins: int) -> Vector:
    """Edges of bins with equal numbers of rows; equal confidences share a bin."""
    numbers = np.arange(1, check(n_bins, COUNT, "n_bins") + 1)
    share, extra = divmod(len(confidence), n_bins)
    last = numbers * share + np.minimum(numbers, extra) - 1  # `extra` bins have one row more
    inner = np.unique(np.sort(confidence)[last[last >= 0]])
    return np.concatenate([[0.0], inner[:-1], [1.0]])


def assign_bins(values: NDArray[Any], edges: Vector) -> NDArray[np.intp]:
    """Return the b with edges[b] < value <= edges[b + 1] of each value, or the first or last."""
    return np.searchsorted(edges[1:-1], values, side="left")


def table_of(confidence: Vector, correct: NDArray[np.bool_], edges: Vector) -> BinTable:
    """Bin rows by their confidence, between any edges."""
    bin_of, size = assign_bins(confidence, edges), len(edges) - 1
    counts = np.bincount(bin_of, minlength=size).astype(np.float64)
    sums = [np.bincount(bin_of, column, size).astype(float) for column in (confidence, correct)]
    return BinTable(edges, counts, sums[0], sums[1])


def classwise_gaps(
    probs: Floats,
    labels: Labels,
    edges: Vector,
    part: NDArray[np.intp] | None = None,
    n_parts: int = 1,
) -> Vector:
    """Sums of probability minus outcome for each part of the rows, class and bin, (n_parts,
    n_classes, n_bins).
    """
    k, n_bins = probs.shape[1], len(edges) - 1
    part = np.zeros(len(probs), np.intp) if part is None else part
    gaps = np.zeros((n_parts, k, n_bins))
    for rows, values in _blocks(probs, np.argsort(part, kind="stable") if n_parts > 1 else None):
        # Most probabilities are small: those of the first bin are summed by column, and only the
        # others individually.
        row, column = np.nonzero(values > edges[1])
        place = (part[rows][row] * k + column) * n_bins + assign_bins(values[row, column], edges)
        values[np.arange(len(values)), labels[rows]] -= 1.0
        np.add.at(gaps.reshape(-1), place, values[row, column])
        values[row, column] = 0.0
        starts = first_of_each(part[rows])
        gaps[part[rows][starts], :, 0] += np.add.reduceat(values, starts, axis=0)
    return gaps


def _blocks(probs: Floats, order: Labels | None) -> Iterator[tuple[Any, Vector]]:
    """Yield blocks of rows and a float64 copy of each, small enough for the processor's cache."""
    for part in row_blocks(len(probs), probs.shape[1], 200_000):
        rows = part if order is None else order[part]
        yield rows, np.array(probs[rows], np.float64, order="C")


def bin_table(
    probs: ArrayLike, y: ArrayLike, n_bins: int = 15, *, classes: Classes = None
) -> BinTable:
    """Bin rows by the confidence of their prediction, in bins of equal width."""
    edges = equal_width_edges(n_bins)
    rows = score(probs, y, classes)
    return table_of(rows.confidence, rows.correct, edges)


def ece(probs: ArrayLike, y: ArrayLike, n_bins: int = 15, *, classes: Classes = None) -> float:
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

    Examples
    --------
    >>> from recal.metrics import ece
    >>> round(ece([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 3)  # two bins: |0.9 - 1| / 2 + |0.8 - 0| / 2
    0.45
    """
    return bin_table(probs, y, n_bins, classes=classes).ece()


def mce(probs: ArrayLike, y: ArrayLike, n_bins: int = 15, *, classes: Classes = None) -> float:
    """Maximum calibration error: the largest gap between mean confidence and accuracy over all bins
    with rows.

    Examples
    --------
    >>> from recal.metrics import mce
    >>> round(mce([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 3)
    0.8
    """
    return bin_table(probs, y, n_bins, classes=classes).mce()


def debiased_ece(
    probs: ArrayLike, y: ArrayLike, n_bins: int = 15, *, classes: Classes = None
) -> float:
    """Calibration error without most of the upward bias of finite samples (Kumar, Liang and Ma,
    2019).

    A plain ECE is positive even for a calibrated model, because the accuracy of a bin is noisy.
    This error subtracts the expected squared noise, acc (1 - acc) / (count - 1), from each bin's
    squared gap and returns the square root of the weighted sum, or 0 if the sum is negative. It is
    an L2 error: it may exceed `ece`, an L1 error, if gaps differ a lot between bins.

    Bins are those of `ece`. A bin with one row counts 0, because its noise cannot be estimated. The
    authors' package gives other values, because it uses bins of equal mass and all classes by
    default.

    Examples
    --------
    >>> from recal.metrics import debiased_ece
    >>> round(debiased_ece([[0.9, 0.1]] * 100, [0] * 70 + [1] * 30), 4)
    0.1946
    """
    return bin_table(probs, y, n_bins, classes=classes).debiased()


def adaptive_ece(
    probs: ArrayLike, y: ArrayLike, n_bins: int = 15, *, classes: Classes = None
) -> float:
    """ECE with bins of equal numbers of rows, so that no bin is nearly empty.

    Rows of equal confidence share a bin. With many ties there are fewer bins, or bins of unequal
    size.

    Examples
    --------
    >>> from recal.metrics import adaptive_ece
    >>> round(adaptive_ece([0.9, 0.8, 0.7, 0.6], [True, True, True, False], n_bins=2), 3)
    0.15
    """
    rows = score(probs, y, classes)
    return table_of(rows.confidence, rows.correct, equal_mass_edges(rows.confidence, n_bins)).ece()


def classwise_ece(
    probs: ArrayLike, y: ArrayLike, n_bins: int = 15, *, classes: Classes = None
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
            "Class-wise ECE needs the probabilities of all classes, shape (n_samples, "
            "n_classes), got the confidence of each answer only."
        )
    array, labels = read_pair(probs, y, classes)
    score_labelled(array, labels)  # refuses what is no probability
    return classwise_ece_of(array, labels, edges)


def classwise_ece_of(probs: Floats, labels: Labels, edges: Vector) -> float:
    return float(np.abs(classwise_gaps(probs, labels, edges)).sum() / probs.size)


def smooth_ece(probs: ArrayLike, y: ArrayLike, *, classes: Classes = None) -> float:
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
    return smooth_ece_of(score(probs, y, classes))


def smooth_ece_of(rows: RowScores) -> float:
    return fixed_point(cosine_coefficients(rows.confidence, rows.gap / len(rows)))


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
