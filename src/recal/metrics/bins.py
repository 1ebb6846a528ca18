"""Bins of confidence: their edges, and sums of the rows in each of them.

A bin is (lo, hi]; a confidence of exactly 0 belongs to the first bin, and one of exactly 1 to the
last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.metrics.row_scores import Vector
from recal.schema import Number, check

COUNT = Number(1, whole=True)


@dataclass(frozen=True)
class BinTable:
    """Sums per bin from which the binned errors are computed: weights (rows), confidences and right
    answers.

    `squares` holds the sums of squared weights, if rows are weighted; only the proportions of
    weights matter.
    """

    edges: Vector
    counts: Vector
    confidence_sums: Vector
    correct: Vector
    squares: Vector | None = None

    @property
    def effective(self) -> Vector:
        """Effective number of rows in each bin (Kish): the number of equally weighted rows with the
        same variance.
        """
        if self.squares is None:
            return self.counts
        return self.counts**2 / np.where(self.squares > 0, self.squares, 1.0)

    @property
    def total(self) -> float:
        return float(self.counts.sum())

    @property
    def gaps(self) -> Vector:
        """Mean confidence minus accuracy in each bin; 0 in an empty one."""
        return (self.confidence_sums - self.correct) / np.where(self.counts > 0, self.counts, 1.0)

    @property
    def shares(self) -> Vector:
        return self.counts / self.total

    @property
    def accuracy(self) -> Vector:
        """Share of right answers in each bin; NaN in an empty one."""
        return self._mean(self.correct)

    @property
    def confidence(self) -> Vector:
        """Mean confidence in each bin; NaN in an empty one."""
        return self._mean(self.confidence_sums)

    def _mean(self, sums: Vector) -> Vector:
        return sums / np.where(self.counts > 0, self.counts, np.nan)

    def ece(self) -> float:
        return float(np.abs(self.confidence_sums - self.correct).sum() / self.total)

    def mce(self) -> float:
        return float(np.abs(self.gaps).max())

    def debiased(self, norm: Literal[1, 2] = 2) -> float:
        """Return the debiased error; see `debiased_ece`."""
        filled = self.counts > 0
        rows, gaps, shares = self.effective[filled], self.gaps[filled], self.shares[filled]
        variance = self.accuracy[filled] * (1 - self.accuracy[filled])
        if norm == 2:
            single = rows <= 1 + 1e-9
            noise = variance / np.where(single, 1.0, rows - 1)
            squares = np.where(single, 0.0, gaps**2 - noise)
            return float(np.sqrt(max(float(shares @ squares), 0.0)))
        from scipy.special import erf

        # The mean absolute value of a normal variable.
        deviation = np.sqrt(np.maximum(variance / rows, 1e-300))
        ratio = np.abs(gaps) / deviation
        folded = deviation * np.sqrt(2 / np.pi) * np.exp(-0.5 * ratio**2)
        expected = folded + np.abs(gaps) * erf(ratio / np.sqrt(2))
        return float(2 * self.ece() - shares @ expected)


def equal_width_edges(n_bins: int) -> Vector:
    """Edges b / n_bins, compared with confidences as float64 for any dtype of the probabilities."""
    return np.arange(check(n_bins, COUNT, "n_bins") + 1) / n_bins


def equal_mass_edges(confidence: Vector, n_bins: int, weights: Vector | None = None) -> Vector:
    """Edges of bins with equal numbers of rows, as far as ties allow: equal confidences share a
    bin.
    """
    numbers = np.arange(1, check(n_bins, COUNT, "n_bins") + 1)
    if weights is not None and np.ptp(weights) > 0:
        order = np.argsort(confidence)
        ordered = confidence[order]
        shares = np.cumsum(weights[order]) / weights.sum()
        last = np.searchsorted(shares[:-1], numbers / n_bins * (1 - 1e-12))
    else:
        ordered = np.sort(confidence)
        share, extra = divmod(len(confidence), n_bins)
        last = numbers * share + np.minimum(numbers, extra) - 1  # `extra` bins have one row more
    inner = np.unique(ordered[last[last >= 0]])
    return np.concatenate([[0.0], inner[:-1], [1.0]])


def assign_bins(values: NDArray[Any], edges: Vector) -> NDArray[np.intp]:
    """Return the bin of each value: the b with edges[b] < value <= edges[b + 1], or the first or
    last.
    """
    return np.searchsorted(edges[1:-1], values, side="left")


def table_of(
    confidence: Vector, correct: NDArray[np.bool_], edges: Vector, weights: Vector | None = None
) -> BinTable:
    """Bin rows by their confidence, between any edges."""
    bin_of = assign_bins(confidence, edges)

    def total(values: NDArray[Any] | None) -> Vector:
        if weights is not None:
            values = weights if values is None else weights * values
        return np.bincount(bin_of, weights=values, minlength=len(edges) - 1).astype(np.float64)

    squares = None if weights is None else total(weights)
    return BinTable(edges, total(None), total(confidence), total(correct), squares)


def classwise_gaps(
    probs: Floats,
    labels: Labels,
    edges: Vector,
    part: NDArray[np.intp] | None = None,
    n_parts: int = 1,
    weights: Vector | None = None,
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
        if weights is not None:
            values *= weights[rows, None]
        np.add.at(gaps.reshape(-1), place, values[row, column])
        values[row, column] = 0.0
        starts = first_of_each(part[rows])
        gaps[part[rows][starts], :, 0] += np.add.reduceat(values, starts, axis=0)
    return gaps


def _blocks(
    probs: Floats, order: Labels | None, numbers: int = 200_000
) -> Iterator[tuple[Any, Vector]]:
    """Yield blocks of rows and a float64 copy of each, small enough for the processor's cache."""
    step = max(1, numbers // probs.shape[1])
    for start in range(0, len(probs), step):
        rows = slice(start, start + step) if order is None else order[start : start + step]
        yield rows, np.array(probs[rows], np.float64, order="C")


def first_of_each(numbers: NDArray[Any]) -> NDArray[np.intp]:
    """The index at which each run of equal numbers begins."""
    return np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
