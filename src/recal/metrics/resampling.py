"""Rows gathered into buckets of nearly equal confidence: a bootstrap draw then costs O(buckets), not O(rows)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.metrics.rows import RowScores

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

# Up to this many rows, each row is its own bucket, and a draw is an ordinary bootstrap sample.
EXACT_ROWS = 16_384
# Enough that intervals of rank metrics do not change; right and wrong rows make two buckets of each.
_SLOTS = 512
# Draws come in blocks of about this many numbers, to limit memory.
_BLOCK = 1_000_000


@dataclass(frozen=True)
class Buckets:
    """Buckets in the order of confidence; right and wrong answers are never in the same bucket.

    `means` and `deviations` hold the mean and the standard deviation within each bucket of "gap" (confidence minus
    outcome), "brier" and "nll". `infinite` is the share of rows with an infinite NLL, which "nll" leaves out. `run`
    numbers groups of buckets whose confidences count as equal.
    """

    counts: NDArray[np.int64]
    correct: NDArray[np.bool_]
    confidence: Vector
    run: NDArray[np.intp]
    means: dict[str, Vector]
    deviations: dict[str, Vector]
    infinite: Vector
    bucket: NDArray[np.intp]  # of each row
    clusters: NDArray[np.intp] | None = None  # of each row; rows of one cluster are drawn together

    @property
    def n_samples(self) -> int:
        return int(self.counts.sum())

    def draw(self, draws: int, rng: np.random.Generator) -> Iterator[Matrix]:
        """Yield blocks of resampled counts, (some draws, n_buckets): rows, or clusters of rows, with replacement."""
        n = self.n_samples
        block = max(1, min(draws, _BLOCK // (len(self.counts) if self.clusters is None else n)))
        for first in range(0, draws, block):
            size = min(block, draws - first)
            if self.clusters is None:
                yield rng.multinomial(n, self.counts / n, size=size).astype(np.float64)
            else:
                yield self.count(draw_clusters(self.clusters, size, rng))

    def count(self, weights: Matrix) -> Matrix:
        """Turn weights of rows, (draws, n_samples), into weights of buckets."""
        if len(self.counts) == self.n_samples:
            return weights[:, np.argsort(self.bucket)]
        return np.stack([np.bincount(self.bucket, weights=row, minlength=len(self.counts)) for row in weights])

    def in_blocks(self, block: NDArray[np.intp], n_blocks: int) -> Matrix:
        """Number of rows of each bucket in each block of rows, (n_blocks, n_buckets)."""
        size = len(self.counts)
        numbers = np.bincount(block * size + self.bucket, minlength=n_blocks * size)
        return numbers.reshape(n_blocks, size).astype(np.float64)

    def simulate_calibrated(self, draws: int, rng: np.random.Generator) -> Iterator[Matrix]:
        """Yield blocks of sums of gaps, (some draws, n_buckets), of a calibrated model with these confidences.

        Each row is right with a probability equal to its confidence. The sum of a run is put into its first bucket.
        """
        starts = np.flatnonzero(np.r_[True, self.run[1:] != self.run[:-1]])
        sizes = np.add.reduceat(self.counts, starts)
        confidence = np.clip(np.add.reduceat(self.counts * self.confidence, starts) / sizes, 0.0, 1.0)
        block = max(1, min(draws, _BLOCK // len(self.counts)))
        for first in range(0, draws, block):
            shape = (min(block, draws - first), len(starts))
            if sizes.max() == 1:
                right: NDArray[Any] = rng.random(shape) < confidence
            else:
                right = rng.binomial(sizes, confidence, size=shape)
            gaps = np.zeros((shape[0], len(self.counts)))
            gaps[:, starts] = sizes * confidence - right
            yield gaps

    def sums(self, score: str, drawn: Matrix, starts: NDArray[np.intp], rng: np.random.Generator | None) -> Matrix:
        """Resampled sums of a score over consecutive groups of buckets, (draws, groups).

        `starts` holds the first bucket of each group. The sum within a bucket is drawn from a normal distribution; it
        is exact if the bucket is a single row. Without `rng` the sums are expectations.
        """
        total = np.add.reduceat(drawn * self.means[score], starts, axis=1)
        spread = self.deviations[score]
        if rng is not None and spread.any():
            variance = np.add.reduceat(drawn * spread**2, starts, axis=1)
            total += np.sqrt(variance) * rng.standard_normal(variance.shape)
        return total


def draw_clusters(clusters: NDArray[np.intp], draws: int, rng: np.random.Generator) -> Matrix:
    """How often each row is drawn if whole clusters are drawn with replacement, (draws, n_samples)."""
    n_clusters = int(clusters.max()) + 1
    drawn = rng.multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters), size=draws)
    return drawn[:, clusters].astype(np.float64)


def gather(rows: RowScores, edges: Vector, clusters: NDArray[np.intp] | None = None) -> Buckets:
    """Gather rows into buckets that never straddle an edge, a run of equal confidence, or right and wrong."""
    bucket, run = _single_buckets(rows) if len(rows) <= EXACT_ROWS else _shared_buckets(rows, edges)
    counts = np.bincount(bucket, minlength=len(run))

    def mean(values: NDArray[Any]) -> Vector:
        return np.bincount(bucket, weights=values, minlength=len(run)) / counts

    infinite = np.isinf(rows.nll)
    scores = {"gap": rows.gap, "brier": rows.brier / rows.n_classes, "nll": np.where(infinite, 0.0, rows.nll)}
    means = {name: mean(values) for name, values in scores.items()}
    single = len(run) == len(rows)
    deviations = {
        name: np.zeros(len(run)) if single else np.sqrt(mean((values - means[name][bucket]) ** 2))
        for name, values in scores.items()
    }
    return Buckets(
        counts.astype(np.int64),
        mean(rows.correct) > 0.5,
        _means_inside(rows.confidence, bucket, mean(rows.confidence)),
        run,
        means,
        deviations,
        mean(infinite),
        bucket,
        clusters,
    )


def _single_buckets(rows: RowScores) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """One bucket per row, in an order that does not depend on the order of the rows."""
    order = np.lexsort((rows.nll, rows.correct, rows.confidence))
    confidence = rows.confidence[order]
    bucket = np.empty(len(rows), np.intp)
    bucket[order] = np.arange(len(rows))
    return bucket, np.cumsum(np.r_[False, confidence[1:] != confidence[:-1]])


def _shared_buckets(rows: RowScores, edges: Vector) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Buckets by quantiles of confidence; equal confidences share a bucket."""
    n, confidence = len(rows), rows.confidence
    quantiles = np.unique(np.sort(confidence)[np.arange(_SLOTS) * n // _SLOTS])
    slot = np.searchsorted(quantiles, confidence, side="right") - 1
    key = slot * len(edges) + np.searchsorted(edges[1:-1], confidence, side="left")
    # Renumber the keys in use; their order is that of confidence.
    wide = 2 * key + rows.correct
    used = np.flatnonzero(np.bincount(wide, minlength=2 * len(quantiles) * len(edges)))
    number = np.empty(used[-1] + 1, np.intp)
    number[used] = np.arange(len(used))
    return number[wide], np.unique(used // 2, return_inverse=True)[1]


def _means_inside(confidence: Vector, bucket: NDArray[np.intp], means: Vector) -> Vector:
    """Mean confidence of each bucket, clipped so that rounding cannot move it across an edge."""
    lowest, highest = np.full(len(means), np.inf), np.full(len(means), -np.inf)
    np.minimum.at(lowest, bucket, confidence)
    np.maximum.at(highest, bucket, confidence)
    return np.clip(means, lowest, highest)
