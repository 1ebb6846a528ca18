"""Rows gathered into cells of nearly equal confidence, so that a bootstrap draw costs O(cells) and not O(rows)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.metrics.rows import RowScores

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

# Up to this many rows each row is its own cell: a draw is then an ordinary bootstrap sample.
EXACT_ROWS = 16_384  # see `paired_draws`, too
# Enough that intervals of rank metrics do not move: right and wrong make two cells of each.
_SLOTS = 512
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
    cell: NDArray[np.intp]  # of each row

    @property
    def n_samples(self) -> int:
        return int(self.counts.sum())

    def draw(self, draws: int, rng: np.random.Generator) -> Iterator[Matrix]:
        """Yield blocks of resampled counts, (some draws, n_cells), as drawing n rows with replacement gives them."""
        n = self.n_samples
        block = max(1, min(draws, _BLOCK // len(self.counts)))
        for first in range(0, draws, block):
            yield rng.multinomial(n, self.counts / n, size=min(block, draws - first)).astype(np.float64)

    def in_blocks(self, block: NDArray[np.intp], n_blocks: int) -> Matrix:
        """How many rows of each cell lie in each block of rows, (n_blocks, n_cells)."""
        size = len(self.counts)
        held = np.bincount(block * size + self.cell, minlength=n_blocks * size)
        return held.reshape(n_blocks, size).astype(np.float64)

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
    cell, run = _single_cells(rows) if len(rows) <= EXACT_ROWS else _shared_cells(rows, edges)
    counts = np.bincount(cell, minlength=len(run))

    def mean(values: NDArray[Any]) -> Vector:
        return np.bincount(cell, weights=values, minlength=len(run)) / counts

    infinite = np.isinf(rows.nll)
    scores = {"gap": rows.gap, "brier": rows.brier / rows.n_classes, "nll": np.where(infinite, 0.0, rows.nll)}
    means = {name: mean(values) for name, values in scores.items()}
    alone = len(run) == len(rows)
    deviations = {
        name: np.zeros(len(run)) if alone else np.sqrt(mean((values - means[name][cell]) ** 2))
        for name, values in scores.items()
    }
    return Cells(
        counts.astype(np.int64),
        mean(rows.correct) > 0.5,
        _means_inside(rows.confidence, cell, mean(rows.confidence)),
        run,
        means,
        deviations,
        mean(infinite),
        cell,
    )


def _single_cells(rows: RowScores) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Each row is its own cell, in an order that does not depend on that of the rows."""
    order = np.lexsort((rows.nll, rows.correct, rows.confidence))
    confidence = rows.confidence[order]
    cell = np.empty(len(rows), np.intp)
    cell[order] = np.arange(len(rows))
    return cell, np.cumsum(np.r_[False, confidence[1:] != confidence[:-1]])


def _shared_cells(rows: RowScores, edges: Vector) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Cells by quantiles of confidence: a value never lies in two of them, so equal confidences stay together."""
    n, confidence = len(rows), rows.confidence
    quantiles = np.unique(np.sort(confidence)[np.arange(_SLOTS) * n // _SLOTS])
    slot = np.searchsorted(quantiles, confidence, side="right") - 1
    key = slot * len(edges) + np.searchsorted(edges[1:-1], confidence, side="left")
    # Keys that hold rows are numbered anew, in their order, which is that of confidence.
    wide = 2 * key + rows.correct
    held = np.flatnonzero(np.bincount(wide, minlength=2 * len(quantiles) * len(edges)))
    number = np.empty(held[-1] + 1, np.intp)
    number[held] = np.arange(len(held))
    return number[wide], np.unique(held // 2, return_inverse=True)[1]


def _means_inside(confidence: Vector, cell: NDArray[np.intp], means: Vector) -> Vector:
    """Mean confidence of each cell, which rounding must not push over a bin's edge."""
    lowest, highest = np.full(len(means), np.inf), np.full(len(means), -np.inf)
    np.minimum.at(lowest, cell, confidence)
    np.maximum.at(highest, cell, confidence)
    return np.clip(means, lowest, highest)
