"""Calibration errors that compare mean confidence with accuracy inside bins.

A bin is (lo, hi]; a confidence of exactly 0 belongs to the first bin and of exactly 1 to the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_weights
from recal.errors import InputError
from recal.metrics import passes
from recal.metrics.rows import Classes, check_n_bins, check_pair, equal_width_edges, ranked, run

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class BinTable:
    """What the binned errors read: per bin the number of rows, the sum of their confidences, the number right."""

    edges: Vector
    counts: Vector
    confidence_sums: Vector
    correct: Vector

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
        return np.divide(self.correct, self.counts, out=np.full(len(self.counts), np.nan), where=self.counts > 0)

    @property
    def confidence(self) -> Vector:
        """Mean confidence in each bin; NaN in an empty one."""
        return np.divide(
            self.confidence_sums, self.counts, out=np.full(len(self.counts), np.nan), where=self.counts > 0
        )

    def ece(self) -> float:
        return float(np.abs(self.confidence_sums - self.correct).sum() / self.total)

    def mce(self) -> float:
        return float(np.abs(self.gaps).max())

    def debiased(self, norm: Literal[1, 2] = 2) -> float:
        return _debiased(self, norm)


def bin_table(
    probs: ArrayLike, y: ArrayLike, n_bins: int = 15, *, classes: Classes = None, sample_weight: ArrayLike | None = None
) -> BinTable:
    """Bin the rows by the confidence of their top class, in bins of equal width."""
    edges = equal_width_edges(n_bins)
    if sample_weight is not None:
        confidence, correct, weights = ranked(probs, y, classes, sample_weight)
        return table_of(confidence, correct, edges, weights)
    array, labels = check_pair(probs, y, classes)
    table = BinTable(edges, np.zeros(n_bins), np.zeros(n_bins), np.zeros(n_bins))
    run(passes.bin_top_label, array, labels, edges, table.counts, table.confidence_sums, table.correct)
    return table


def ece(
    probs: ArrayLike, y: ArrayLike, n_bins: int = 15, *, classes: Classes = None, sample_weight: ArrayLike | None = None
) -> float:
    """Expected calibration error: the distance of mean confidence and accuracy per bin, weighted by the bin's share.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
    y : array-like of shape (n_samples,)
        Integers are column indices; anything else needs `classes`.
    n_bins : int
        Bins of equal width (lo, hi] over [0, 1].
    classes : sequence of length n_classes, optional
        The columns' names, in the columns' order.
    sample_weight : array-like of shape (n_samples,), optional
        How often each sample counts.

    Examples
    --------
    >>> from recal.metrics import ece
    >>> round(ece([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 3)  # two bins: |0.9 - 1| / 2 + |0.8 - 0| / 2
    0.45
    """
    return bin_table(probs, y, n_bins, classes=classes, sample_weight=sample_weight).ece()


def mce(
    probs: ArrayLike, y: ArrayLike, n_bins: int = 15, *, classes: Classes = None, sample_weight: ArrayLike | None = None
) -> float:
    """Maximum calibration error: the largest distance of mean confidence and accuracy of any bin that holds a row.

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
    """Calibration error without most of the upward bias that finite bins cause (Kumar, Liang and Ma, 2019).

    A plain ECE is above zero even for a perfect model, since a bin's accuracy is noisy. The default subtracts the
    noise's expected square, acc (1 - acc) / (count - 1), from each bin's squared gap, and returns the square root of
    the weighted sum, or 0 where it is negative: an L2 error, so it may exceed the L1 of `ece` where gaps differ much
    between bins. ``norm=1`` returns 2 ece - E[ece] with the accuracies redrawn from normal distributions, the
    expectation taken exactly; this removes less of the bias.

    Bins are those of `ece`. A bin with one row has no measurable noise: it counts 0 in the L2 error. This departs from
    the authors' package, which by default bins into equally many rows and looks at all classes: its values differ.

    Examples
    --------
    >>> from recal.metrics import debiased_ece
    >>> round(debiased_ece([[0.9, 0.1]] * 100, [0] * 70 + [1] * 30), 4)
    0.1946
    """
    if norm not in (1, 2):
        raise InputError("must be 1 or 2", argument="norm", came=f"got {norm!r}")
    return _debiased(bin_table(probs, y, n_bins, classes=classes, sample_weight=sample_weight), norm)


def _debiased(table: BinTable, norm: int) -> float:
    held = table.counts > 0
    counts, gaps, shares = table.counts[held], table.gaps[held], table.shares[held]
    accuracy = table.correct[held] / counts
    if norm == 2:
        noise = accuracy * (1 - accuracy) / np.maximum(counts - 1, 1)
        squares = np.where(counts > 1, gaps**2 - noise, 0.0)
        return float(np.sqrt(max(float(shares @ squares), 0.0)))
    return float(2 * table.ece() - shares @ _folded_normal_mean(gaps, np.sqrt(accuracy * (1 - accuracy) / counts)))


def _folded_normal_mean(mean: Vector, deviation: Vector) -> Vector:
    """E|X| of normal variables."""
    safe = np.where(deviation > 0, deviation, 1.0)
    ratio = np.abs(mean) / safe
    folded = safe * np.sqrt(2 / np.pi) * np.exp(-0.5 * ratio**2) + np.abs(mean) * _erf(ratio / np.sqrt(2))
    return np.where(deviation > 0, folded, np.abs(mean))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def equal_mass_edges(confidence: Vector, n_bins: int, weights: Vector | None = None) -> Vector:
    """Edges that put as nearly equal numbers of rows in each bin as equal confidences, kept together, allow."""
    if weights is not None:
        order = np.argsort(confidence)
        reached = np.cumsum(weights[order]) / weights.sum()
        ends = np.searchsorted(reached, np.arange(1, check_n_bins(n_bins)) / n_bins * (1 - 1e-12))
        inner = np.unique(np.r_[confidence[order][ends], confidence[order][-1]])
        return np.concatenate([[0.0], inner[:-1], [1.0]])
    n, ordered = len(confidence), np.sort(confidence)
    share, extra = divmod(n, check_n_bins(n_bins))
    b = np.arange(1, n_bins + 1)
    last = b * share + np.minimum(b, extra) - 1  # the first `extra` bins hold one row more
    inner = np.unique(ordered[last[last >= 0]])
    return np.concatenate([[0.0], inner[:-1], [1.0]])


def table_of(confidence: Vector, correct: NDArray[np.bool_], edges: Vector, weights: Vector | None = None) -> BinTable:
    """Bin rows whose confidence is already known, between any edges."""
    bin_of = passes.assigned_bins(confidence, edges)

    def total(values: NDArray[Any] | None) -> Vector:
        if weights is not None:
            values = weights if values is None else weights * values
        return np.bincount(bin_of, weights=values, minlength=len(edges) - 1).astype(np.float64)

    return BinTable(edges, total(None), total(confidence), total(correct))


def adaptive_ece(
    probs: ArrayLike, y: ArrayLike, n_bins: int = 15, *, classes: Classes = None, sample_weight: ArrayLike | None = None
) -> float:
    """ECE with bins of equal numbers of rows, so that none is nearly empty.

    Rows of equal confidence share a bin, whatever their order; bins are then fewer, or of unequal size.

    Examples
    --------
    >>> from recal.metrics import adaptive_ece
    >>> round(adaptive_ece([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]], [0, 0, 0, 1], n_bins=2), 3)
    0.15
    """
    confidence, correct, weights = ranked(probs, y, classes, sample_weight)
    return table_of(confidence, correct, equal_mass_edges(confidence, n_bins, weights), weights).ece()


def classwise_ece(
    probs: ArrayLike, y: ArrayLike, n_bins: int = 15, *, classes: Classes = None, sample_weight: ArrayLike | None = None
) -> float:
    """The mean over all classes of the binary ECE of that class's probability.

    Every column counts once, also a class that never occurs in `y`.

    Examples
    --------
    >>> from recal.metrics import classwise_ece
    >>> round(classwise_ece([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 3)
    0.45
    """
    edges = equal_width_edges(n_bins)
    array, labels = check_pair(probs, y, classes)
    if sample_weight is not None:
        ranked(array, labels)  # which checks the values
        weights = check_weights(sample_weight, len(array))
        columns = (table_of(array[:, k].astype(np.float64), labels == k, edges, weights) for k in range(array.shape[1]))
        return float(
            np.mean([np.abs(table.confidence_sums - table.correct).sum() for table in columns]) / weights.sum()
        )
    gaps = np.zeros((1, array.shape[1], n_bins))
    run(passes.bin_classwise, array, labels, edges, np.zeros(len(array), np.intp), gaps)
    return float(np.abs(gaps).sum() / (len(array) * array.shape[1]))
