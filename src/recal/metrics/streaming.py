"""Metrics of a stream: batches come and go, and only sums per bin stay."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from recal.errors import InputError
from recal.metrics import passes
from recal.metrics.binned import BinTable
from recal.metrics.evaluation import Evaluation
from recal.metrics.rows import Classes, check_pair, equal_width_edges, run


class StreamingMetrics:
    """Collects ECE, MCE, class-wise and debiased ECE, Brier, NLL and error rate without keeping a row.

    Memory is O(n_classes x n_bins) however many rows come, and results are those of the whole at once. The other
    metrics need the order of all rows, so they are not here.

    Parameters
    ----------
    n_bins : int
    classes : sequence of length n_classes, optional
        The columns' names, when labels are not column indices.

    Examples
    --------
    >>> from recal.metrics import StreamingMetrics
    >>> stream = StreamingMetrics(n_bins=10)
    >>> stream = stream.update([[0.9, 0.1]], [0]).update([[0.8, 0.2]], [1])
    >>> round(stream.result()["ece"], 3)
    0.45
    """

    def __init__(self, n_bins: int = 15, *, classes: Classes = None) -> None:
        self._edges = equal_width_edges(n_bins)
        self._classes = classes
        self.n_bins = n_bins
        self.n_samples = 0
        self.n_classes: int | None = None
        self._table = BinTable(self._edges, np.zeros(n_bins), np.zeros(n_bins), np.zeros(n_bins))
        self._classwise = np.zeros((1, 0, n_bins))
        self._brier = self._nll = 0.0

    def update(self, probs: ArrayLike, y: ArrayLike) -> Self:
        """Add a batch; one that is refused changes nothing."""
        array, labels = check_pair(probs, y, self._classes)
        n, k = array.shape
        self._expect(k)
        rows = [np.empty(n), np.empty(n, np.bool_), np.empty(n), np.empty(n)]
        run(passes.score_rows, array, labels, *rows)
        # All rows are known to be good from here on.
        if self.n_classes is None:
            self.n_classes = k
            self._classwise = np.zeros((1, k, self.n_bins))
        passes.bin_classwise(array, labels, self._edges, np.zeros(n, np.intp), self._classwise)
        table = self._table
        passes.bin_top_label(array, labels, self._edges, table.counts, table.confidence_sums, table.correct)
        self._brier += float(rows[2].sum())
        self._nll += float(rows[3].sum())
        self.n_samples += n
        return self

    def merge(self, other: StreamingMetrics) -> Self:
        """Add what another stream has seen, such as that of another process."""
        if other.n_bins != self.n_bins:
            raise InputError(f"Streams of {self.n_bins} and {other.n_bins} bins cannot be merged.")
        if other.n_classes is None:
            return self
        self._expect(other.n_classes)
        if self.n_classes is None:
            self.n_classes = other.n_classes
            self._classwise = np.zeros_like(other._classwise)
        for name in ("counts", "confidence_sums", "correct"):
            getattr(self._table, name)[:] += getattr(other._table, name)
        self._classwise += other._classwise
        self._brier += other._brier
        self._nll += other._nll
        self.n_samples += other.n_samples
        return self

    def result(self) -> Evaluation:
        """Metrics of all rows so far."""
        if self.n_classes is None:
            raise InputError("No rows have come yet; call update(probs, y) first.")
        n, k, table = self.n_samples, self.n_classes, self._table
        values = {
            "ece": table.ece(),
            "mce": table.mce(),
            "classwise_ece": float(np.abs(self._classwise).sum() / (n * k)),
            "debiased_ece": table.debiased(),
            "brier": self._brier / (n * k),
            "nll": self._nll / n,
            "error_rate": 1.0 - float(table.correct.sum()) / n,
        }
        return Evaluation(values, n, k, self.n_bins)

    def _expect(self, n_classes: int) -> None:
        if self.n_classes not in (None, n_classes):
            raise InputError(f"This stream has {self.n_classes} classes; a batch came with {n_classes}.")
