"""Logits with one scale per row. The logits are never copied or changed: rescaling a sample is one multiplication."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.engine.kernels import fast, rows
from recal.engine.kernels.threads import over_rows
from recal.mapped import PIECE_VALUES, MappedRows

Vector = NDArray[np.float64]
Columns = NDArray[np.intp]


def as_rows(logits: Floats) -> Floats:
    """Return logits as the kernels read them: row by row in memory, float32 or float64."""
    if isinstance(logits, MappedRows):
        return logits
    dtype = np.float32 if logits.dtype == np.float16 else logits.dtype
    return np.ascontiguousarray(logits, dtype=dtype)


class ScaledLogits:
    """Rows of logits, each multiplied by a scale of its own.

    Attributes
    ----------
    logits : (n_samples, n_classes), read only
    scales : (n_samples,) float64
    maxima, columns : each row's largest logit and where it stands; a positive scale moves neither
    """

    # No sequence of betas takes a scale out of this range, so nothing over- or underflows to inf or 0.
    SCALE_RANGE = (1e-100, 1e100)

    def __init__(self, logits: Floats, scales: Vector | None = None) -> None:
        self.logits = as_rows(logits)
        n_samples = len(self.logits)
        self.scales = np.ones(n_samples) if scales is None else scales
        self.maxima = np.empty(n_samples, dtype=self.logits.dtype)
        self.columns = np.empty(n_samples, dtype=np.intp)
        over_rows(rows.row_maxima, self.logits, self.maxima, self.columns)

    def rescale(self, factors: Vector | float) -> None:
        """Multiply every row's scale by its factor."""
        self.scales = np.clip(self.scales * factors, *self.SCALE_RANGE)

    def log_partition(self) -> Vector:
        """Return log sum_j exp(s (z_j - max z)) of each row: minus the log of its confidence."""
        return self.log_partition_at(1.0)

    def log_partition_at(self, factors: Vector | float) -> Vector:
        """Return the same as it would be after `rescale(factors)`."""
        out = np.empty((1, len(self.scales)))
        over_rows(rows.log_partition, self.logits, self.maxima, self.scales * factors, out)
        return out[0]

    def slopes(self, factors: Vector, quick: bool = False) -> tuple[Vector, Vector]:
        """Return the first two derivatives of the log-partition in the scale, at scales * factors.

        Rows whose factor is 0 are left out and get 0. `quick` trades digits (1e-6) for a quarter of the time.
        """
        kernel = fast.log_partition_and_slopes if quick else rows.log_partition_and_slopes
        out = np.zeros((3, len(self.scales)))
        over_rows(kernel, self.logits, self.maxima, self.scales * factors, out)
        return out[1], out[2]

    def drop_at(self, columns: Columns) -> Vector:
        """Return how far the logit at each row's column lies below the row's largest, unscaled; at most 0."""
        step = max(1, PIECE_VALUES // self.logits.shape[1])  # of what is mapped, no more is held at a time
        parts = [slice(first, first + step) for first in range(0, len(columns), step)]
        rows = np.arange(len(columns))
        picked = np.concatenate([self.logits[rows[part], columns[part]] for part in parts])
        return picked.astype(np.float64) - self.maxima.astype(np.float64)

    def runner_up_drop(self) -> Vector:
        """Return how far each row's second logit lies below its largest, unscaled; at most 0."""
        second = np.empty(len(self.scales))
        over_rows(rows.runners_up, self.logits, self.columns, second)
        return second - self.maxima.astype(np.float64)

    def probs(self) -> NDArray[np.float64]:
        """Return softmax(s * z)."""
        out = np.empty(self.logits.shape)
        over_rows(rows.softmax, self.logits, self.maxima, self.scales, out)
        return out


class FlooredLogits(ScaledLogits):
    """Log-probabilities that never fall below log(floor).

    A floor breaks the proportion between a row's logits, so each rescaling writes the rows anew: this is the one
    dense state, kept for comparison with published results.
    """

    def __init__(self, logits: Floats, floor: float) -> None:
        super().__init__(np.asarray(logits, dtype=np.float64))
        self._floor = floor
        self.rescale(1.0)

    def rescale(self, factors: Vector | float) -> None:
        scales = np.broadcast_to(np.asarray(factors, dtype=np.float64), self.scales.shape)
        dense = np.empty(self.logits.shape)
        over_rows(rows.floored_log_softmax, self.logits, self.maxima, np.ascontiguousarray(scales), self._floor, dense)
        self.logits = dense
        self.maxima = dense[np.arange(len(dense)), self.columns]
