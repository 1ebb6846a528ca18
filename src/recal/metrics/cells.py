"""Rows gathered into cells of nearly equal confidence, so that a bootstrap draw costs O(cells) and not O(rows)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.metrics.rows import RowScores

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

# Up to this many rows each row is its own cell: a draw is then an ordinary bootstrap sample.
EXACT_ROWS = 16_384
_SLOTS = 8_192
# Draws are made in blocks of about this many numbers, to keep memory small.
_BLOCK = 1_000_000


@dataclass(frozen=True)
class Cells:
    """Cells in the order of confidence; right and wrong answers are never in the same cell.

    `means` and `deviations` hold the mean and the spread within each cell of "gap" (confidence minus outcome), "brier"
    and "nll"; `infinite` the share of rows whose nll is infinite, which the others leave out. `run` numbers groups of
    cells whose confidences count as equal.
    """

    counts: NDArray[np.int64]
    correct: NDArray[np.bool_]
    confidence: Vector
    run: NDArray[np.intp]
    means: dict[str, Vector]
    deviations: dict[str, Vector]
    infinite: Vector
    order: NDArray[np.intp]  # rows in the order of their cells
    starts: NDArray[np.intp]  # where in `order` each cell begins

    @property
    def n_samples(self) -> int:
        return int(self.counts.sum())

    def draw(self, draws: int, rng: np.random.Generator) -> Iterator[Matrix]:
        """Yield blocks of resampled counts, (some draws, n_cells), as drawing n rows with replacement gives them."""
        n = self.n_samples
        block = max(1, min(draws, _BLOCK // len(self.counts)))
        for first in range(0, draws, block):
            yield rng.multinomial(n, self.counts / n, size=min(block, draws - first)).astype(np.float64)

    def count(self, row_counts: Matrix) -> Matrix:
        """How often each cell was drawn, (draws, n_cells), from how often each row was, (draws, n_samples)."""
        return np.add.reduceat(row_counts[:, self.order], self.starts, axis=1)

    def sums(self, score: str, drawn: Matrix, starts: NDArray[np.intp], rng: np.random.Generator | None) -> Matrix:
        """Resampled sums of a score over consecutive groups of cells, (draws, groups); `starts` is each group's first.

        Within a cell a resampled sum is normal to a very good approximation, and known exactly where rows are alone.
        Without `rng` the sums are those expected.
        """
        total = np.add.reduceat(drawn * self.means[score], starts, axis=1)
        spread = self.deviations[score]
        if rng is not None and spread.any():
            variance = np.add.reduceat(drawn * spread**2, starts, axis=1)
            total += np.sqrt(variance) * rng.standard_normal(variance.shape)
        return total


def gather(rows: RowScores, edges: Vector) -> Cells:
    """Gather rows into cells that never straddle one of the `edges`, a run of equal confidence, or right and wrong."""
    n = len(rows)
    order = np.lexsort((rows.nll, rows.correct, rows.confidence))
    confidence, correct = rows.confidence[order], rows.correct[order]
    new_run = np.r_[True, confidence[1:] != confidence[:-1]]
    run = np.cumsum(new_run) - 1
    if n <= EXACT_ROWS:
        new_cell = np.ones(n, np.bool_)
    else:
        # A run belongs to the slot in which it begins, so that equal confidences are never parted.
        slot = (np.flatnonzero(new_run) * _SLOTS // n)[run]
        bin_of = np.searchsorted(edges[1:-1], confidence, side="left")
        key = slot * len(edges) + bin_of
        new_run = np.r_[True, key[1:] != key[:-1]]
        run = np.cumsum(new_run) - 1
        within = np.lexsort((correct, run))
        order, correct, run = order[within], correct[within], run[within]
        new_cell = np.r_[True, (run[1:] != run[:-1]) | (correct[1:] != correct[:-1])]
    starts = np.flatnonzero(new_cell)
    counts = np.diff(np.r_[starts, n])
    nll = rows.nll[order]
    infinite = np.isinf(nll)
    scores = {"gap": rows.gap[order], "brier": rows.brier[order] / rows.n_classes, "nll": np.where(infinite, 0.0, nll)}
    means = {name: np.add.reduceat(value, starts) / counts for name, value in scores.items()}
    deviations = {
        name: _deviations(value, means[name], starts, counts) if n > EXACT_ROWS else np.zeros(n)
        for name, value in scores.items()
    }
    return Cells(
        counts.astype(np.int64),
        correct[starts],
        _means_inside(rows.confidence[order], starts, counts),
        run[starts],
        means,
        deviations,
        np.add.reduceat(infinite.astype(np.float64), starts) / counts,
        order,
        starts,
    )


def _deviations(values: Vector, means: Vector, starts: NDArray[np.intp], counts: NDArray[np.int64]) -> Vector:
    return np.sqrt(np.add.reduceat((values - np.repeat(means, counts)) ** 2, starts) / counts)


def _means_inside(confidence: Vector, starts: NDArray[np.intp], counts: NDArray[np.int64]) -> Vector:
    """Mean confidence of each cell, which rounding must not push over a bin's edge."""
    means = np.add.reduceat(confidence, starts) / counts
    return np.clip(means, np.minimum.reduceat(confidence, starts), np.maximum.reduceat(confidence, starts))
