"""Numbers that most metrics need from (probs, y): each row's confidence, whether it is right, and
two proper scores.

Probabilities are read in blocks of rows, as float64, so that a large array needs little additional
memory. For resampling, rows are gathered into buckets of nearly equal confidence: a bootstrap draw
then costs O(buckets), not O(rows).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import (
    Floats,
    Labels,
    check_confidences,
    check_graded,
    check_labels,
    check_probs,
    check_weights,
    is_graded,
)
from recal.schema import Number, check

Vector = NDArray[np.float64]
Classes = Sequence[Any] | NDArray[Any] | None

Starts = NDArray[np.intp]

# Up to this many rows, each row is its own bucket, and a draw is an ordinary bootstrap sample.
EXACT_ROWS = 16_384
# With more slots, intervals of rank metrics do not change. Each slot has a bucket of right and one
# of wrong rows.
_SLOTS = 512
# Draws come in blocks of about this many numbers, to limit memory.
DRAWN_AT_ONCE = 1_000_000
COUNT = Number(1, whole=True)
# Numbers per block: small enough for the processor's cache.
_BLOCK = 200_000


@dataclass(frozen=True)
class RowScores:
    """Per-row numbers, each of shape (n_samples,), in the order of the rows.

    `graded` is True if only the confidence of each answer and whether it is right are known.
    `brier` and `nll` are then those of the two outcomes "right" and "wrong", and `n_classes` is 2.
    """

    confidence: Vector
    correct: NDArray[np.bool_]
    brier: Vector
    nll: Vector
    n_classes: int
    graded: bool = False

    @property
    def gap(self) -> Vector:
        """Confidence minus outcome; zero on average if the confidence is calibrated."""
        return self.confidence - self.correct

    def __len__(self) -> int:
        return len(self.confidence)

    def __getitem__(self, rows: NDArray[Any]) -> RowScores:
        return replace(
            self,
            confidence=self.confidence[rows],
            correct=self.correct[rows],
            brier=self.brier[rows],
            nll=self.nll[rows],
        )


def score(
    probs: ArrayLike, y: ArrayLike, classes: Classes = None, confidences: ArrayLike | None = None
) -> RowScores:
    """Check and score every row.

    This is the one place that accepts both kinds of input: probabilities of shape (n_samples,
    n_classes) with labels, and a 1-D array with the confidence of each answer; `y` then says which
    answers are right.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes) or (n_samples,)
    y : array-like of shape (n_samples,)
        Labels; booleans, or 0 and 1, if `probs` is 1-D.
    classes : sequence of length n_classes, optional
    confidences : array-like of shape (n_samples,), optional
        Confidence of each prediction; by default the largest probability of the row.

    Examples
    --------
    >>> from recal.metrics.row_scores import score
    >>> score([[0.9, 0.1], [0.2, 0.8]], [0, 0]).correct
    array([ True, False])
    >>> score([0.9, 0.8], [True, False]).correct
    array([ True, False])
    """
    if is_graded(probs):
        confidence, correct = check_graded(probs, y, classes, confidences)
        losses = _negative_log(np.where(correct, confidence, 1.0 - confidence))
        return RowScores(
            confidence, correct, 2.0 * (confidence - correct) ** 2, losses, 2, graded=True
        )
    array, labels = check_pair(probs, y, classes)
    n = len(array)
    rows = RowScores(np.empty(n), np.empty(n, np.bool_), np.empty(n), np.empty(n), array.shape[1])
    for block, values in _blocks(array):
        row, truth, predictions = np.arange(len(values)), labels[block], values.argmax(axis=1)
        rows.confidence[block], rows.correct[block] = values[row, predictions], predictions == truth
        rows.nll[block] = _negative_log(values[row, truth])
        values[row, truth] -= 1.0
        rows.brier[block] = np.einsum("ij,ij->i", values, values)
    return (
        rows if confidences is None else replace(rows, confidence=check_confidences(confidences, n))
    )


def weighted_rows(
    probs: ArrayLike, y: ArrayLike, classes: Classes = None, sample_weight: ArrayLike | None = None
) -> tuple[RowScores, Vector | None]:
    """Return the rows with a positive weight, and their weights; None means equal weights."""
    rows = score(probs, y, classes)
    if sample_weight is None:
        return rows, None
    weights = check_weights(sample_weight, len(rows))
    positive = weights > 0.0  # 0 times an infinite loss would be NaN
    return rows[positive], weights[positive]


def check_pair(probs: ArrayLike, y: ArrayLike, classes: Classes) -> tuple[Floats, Labels]:
    """Check probabilities and labels."""
    array = check_probs(probs)
    return array, check_labels(y, len(array), array.shape[1], classes)


def _blocks(probs: Floats, order: Labels | None = None) -> Iterator[tuple[Any, Vector]]:
    """Yield blocks of rows with a copy of their probabilities in float64, for any layout and dtype."""
    step = max(1, _BLOCK // probs.shape[1])
    for start in range(0, len(probs), step):
        rows = slice(start, start + step) if order is None else order[start : start + step]
        yield rows, np.array(probs[rows], np.float64, order="C")


def _negative_log(values: Vector) -> Vector:
    with np.errstate(divide="ignore"):  # a label with the probability 0 has an infinite loss
        return np.asarray(-np.log(values))


def equal_width_edges(n_bins: int) -> Vector:
    """Edges b / n_bins, compared with confidences as float64 for any dtype of the probabilities."""
    return np.arange(check(n_bins, COUNT, "n_bins") + 1) / n_bins


def assign_bins(values: NDArray[Any], edges: Vector) -> NDArray[np.intp]:
    """Return the bin of each value: the b with edges[b] < value <= edges[b + 1], or the first or
    last.
    """
    return np.searchsorted(edges[1:-1], values, side="left")


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


@dataclass(frozen=True)
class Buckets:
    """Buckets in the order of confidence; right and wrong answers are never in the same bucket.

    `means` and `deviations` hold the mean and the standard deviation within each bucket of "gap"
    (confidence minus outcome), "brier" and "nll". `infinite` is the share of rows with an infinite
    NLL, which "nll" leaves out. `run` numbers groups of buckets whose confidences count as equal.
    """

    counts: NDArray[np.int64]
    correct: NDArray[np.bool_]
    confidence: Vector
    run: NDArray[np.intp]
    means: dict[str, Vector]
    deviations: dict[str, Vector]
    infinite: Vector
    bucket: NDArray[np.intp]  # the bucket of each row
    clusters: NDArray[np.intp] | None = (
        None  # the cluster of each row; rows of one cluster are drawn together
    )

    @property
    def n_samples(self) -> int:
        return int(self.counts.sum())

    def draw(self, draws: int, rng: np.random.Generator) -> Iterator[Vector]:
        """Yield blocks of resampled counts, (some draws, n_buckets); rows or clusters are drawn
        with replacement.
        """
        n = self.n_samples
        block = max(
            1, min(draws, DRAWN_AT_ONCE // (len(self.counts) if self.clusters is None else n))
        )
        for first in range(0, draws, block):
            size = min(block, draws - first)
            if self.clusters is None:
                yield rng.multinomial(n, self.counts / n, size=size).astype(np.float64)
            else:
                yield self.count(draw_clusters(self.clusters, size, rng))

    def count(self, weights: Vector) -> Vector:
        """Turn weights of rows, (draws, n_samples), into weights of buckets."""
        if len(self.counts) == self.n_samples:
            return weights[:, np.argsort(self.bucket)]
        return np.stack(
            [np.bincount(self.bucket, weights=row, minlength=len(self.counts)) for row in weights]
        )

    def in_blocks(self, block: NDArray[np.intp], n_blocks: int) -> Vector:
        """Number of rows of each bucket in each block of rows, (n_blocks, n_buckets)."""
        size = len(self.counts)
        numbers = np.bincount(block * size + self.bucket, minlength=n_blocks * size)
        return numbers.reshape(n_blocks, size).astype(np.float64)

    def runs(self) -> tuple[Starts, NDArray[np.int64], Vector]:
        """First bucket, number of rows and confidence of each run; a calibrated model depends on
        nothing else.
        """
        starts = first_of_each(self.run)
        sizes = np.add.reduceat(self.counts, starts)
        return (
            starts,
            sizes,
            np.clip(np.add.reduceat(self.counts * self.confidence, starts) / sizes, 0.0, 1.0),
        )

    def simulate_calibrated(self, draws: int, rng: np.random.Generator) -> Iterator[Vector]:
        """Yield blocks of sums of gaps, (some draws, n_buckets), of a calibrated model with these
        confidences.

        Each row is right with a probability equal to its confidence. The sum of a run is put into
        its first bucket.
        """
        starts, sizes, confidence = self.runs()
        block = max(1, min(draws, DRAWN_AT_ONCE // len(self.counts)))
        for first in range(0, draws, block):
            shape = (min(block, draws - first), len(starts))
            if sizes.max() == 1:
                right: NDArray[Any] = rng.random(shape) < confidence
            else:
                right = rng.binomial(sizes, confidence, size=shape)
            gaps = np.zeros((shape[0], len(self.counts)))
            gaps[:, starts] = sizes * confidence - right
            yield gaps

    def sums(
        self, score: str, drawn: Vector, starts: Starts, rng: np.random.Generator | None
    ) -> Vector:
        """Resampled sums of a score over consecutive groups of buckets, (draws, groups).

        `starts` holds the first bucket of each group. The sum within a bucket is drawn from a
        normal distribution; it is exact if the bucket is a single row. Without `rng` the sums are
        expectations.
        """
        total = np.add.reduceat(drawn * self.means[score], starts, axis=1)
        spread = self.deviations[score]
        if rng is not None and spread.any():
            variance = np.add.reduceat(drawn * spread**2, starts, axis=1)
            total += np.sqrt(variance) * rng.standard_normal(variance.shape)
        return total


def first_of_each(numbers: NDArray[np.intp]) -> Starts:
    """The index at which each run of equal numbers begins."""
    return np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])


def draw_clusters(clusters: NDArray[np.intp], draws: int, rng: np.random.Generator) -> Vector:
    """How often each row is drawn if whole clusters are drawn with replacement, (draws, n_samples)."""
    n_clusters = int(clusters.max()) + 1
    drawn = rng.multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters), size=draws)
    return drawn[:, clusters].astype(np.float64)


def gather(rows: RowScores, edges: Vector, clusters: NDArray[np.intp] | None = None) -> Buckets:
    """Gather rows into buckets that never straddle an edge, a run of equal confidence, or right and
    wrong.
    """
    bucket, run = _single_buckets(rows) if len(rows) <= EXACT_ROWS else _shared_buckets(rows, edges)
    counts = np.bincount(bucket, minlength=len(run))

    def mean(values: NDArray[Any]) -> Vector:
        return np.bincount(bucket, weights=values, minlength=len(run)) / counts

    infinite = np.isinf(rows.nll)
    scores = {
        "gap": rows.gap,
        "brier": rows.brier / rows.n_classes,
        "nll": np.where(infinite, 0.0, rows.nll),
    }
    means = {name: mean(values) for name, values in scores.items()}
    single = len(run) == len(rows)
    deviations = {
        name: np.zeros(len(run)) if single else np.sqrt(mean((values - means[name][bucket]) ** 2))
        for name, values in scores.items()
    }
    lowest, highest = np.full(len(run), np.inf), np.full(len(run), -np.inf)
    np.minimum.at(lowest, bucket, rows.confidence)
    np.maximum.at(highest, bucket, rows.confidence)
    return Buckets(
        counts.astype(np.int64),
        mean(rows.correct) > 0.5,
        np.clip(
            mean(rows.confidence), lowest, highest
        ),  # rounding must not move a mean across an edge
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
    # The keys have the order of the confidences.
    keys, bucket = np.unique(
        2 * (slot * len(edges) + assign_bins(confidence, edges)) + rows.correct, return_inverse=True
    )
    return bucket, np.unique(keys // 2, return_inverse=True)[1]
