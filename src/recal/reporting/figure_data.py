"""Confidence against outcomes: errors expected and made, and the numbers behind the figures.

Nothing here draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Vector
from recal.decisions.decision import holm
from recal.errors import InputError
from recal.metrics.calibration_error import BinTable, equal_width_edges, table_of
from recal.metrics.intervals import LEVEL
from recal.metrics.row_scores import RowScores
from recal.reporting.chart import sentences

ErrorCounts = NDArray[np.int64]

# The stops of the slider: every hundredth, and finer near 1, where decisions are made.
THRESHOLDS = (*(round(i / 100, 2) for i in range(100)), 0.995, 0.999, 0.9999)


@dataclass(frozen=True)
class Acceptance:
    """Answers with at least one confidence.

    A calibrated model makes `low` to `high` errors in 95 % of samples.
    """

    threshold: float
    n_samples: int
    accepted: int
    errors: int
    expected: float
    low: int
    high: int

    @property
    def share(self) -> float:
        return self.accepted / self.n_samples

    @property
    def accuracy(self) -> float:
        """The share of correct answers among the accepted; NaN if there are none."""
        return 1 - self.errors / self.accepted if self.accepted else float("nan")


# One acceptance for each threshold.
Thresholds = dict[float, Acceptance]


def threshold_table(rows: RowScores, thresholds: Sequence[float] = THRESHOLDS) -> Thresholds:
    """Count the rows whose confidence reaches each threshold, as `DecisionRule.accept` does."""
    # Rows between two thresholds count alike, so they need not be sorted.
    sums = _sums(
        rows, np.searchsorted(thresholds, rows.confidence, side="right"), len(thresholds) + 1
    )
    accepted, errors, expected, variance = (np.cumsum(column[::-1])[::-1][1:] for column in sums)
    columns = (accepted, errors, expected, *calibrated_range(expected, variance))
    lines = zip(thresholds, *(column.tolist() for column in columns))
    n = len(rows)
    return {threshold: Acceptance(threshold, n, *numbers) for threshold, *numbers in lines}


def _sums(rows: RowScores, place: NDArray[np.intp], size: int) -> tuple[NDArray[Any], ...]:
    """Return rows, errors, errors expected and their variance by place."""
    doubt = 1.0 - rows.confidence
    errors = np.bincount(place[~rows.correct], minlength=size)
    expected, variance = (
        np.bincount(place, weights, size) for weights in (doubt, doubt * rows.confidence)
    )
    return np.bincount(place, minlength=size), errors, expected, variance


def calibrated_range(
    mean: ArrayLike, variance: ArrayLike, level: float = LEVEL
) -> tuple[ErrorCounts, ErrorCounts]:
    """Return how many errors a calibrated model makes, with this probability, if its doubts sum to
    `mean`.

    The number of errors is a sum of independent events with different probabilities (Poisson
    binomial). A binomial of the same mean and variance is close: its ends lie within one error of
    the exact ones over a wide range of confidences. Its number of trials need not be whole, so its
    tails are read from the incomplete beta function.
    """
    means, variances = (
        np.atleast_1d(np.asarray(mean, np.float64)),
        np.atleast_1d(np.asarray(variance, np.float64)),
    )
    tail = (1 - level) / 2
    return _quantile(means, variances, tail), _quantile(means, variances, 1 - tail)


def p_values(errors: NDArray[Any], mean: Vector, variance: Vector) -> Vector:
    """Return the probability that a calibrated model is at least this far off: twice the smaller
    tail, at most 1.
    """
    below = _below(errors.astype(np.float64), mean, variance)
    above = 1 - _below(errors - 1.0, mean, variance)
    return np.minimum(2 * np.minimum(below, above), 1.0)


def _quantile(mean: Vector, variance: Vector, probability: float) -> ErrorCounts:
    """Return the smallest count that is not exceeded with at least this probability, by bisection
    for all at once.
    """
    reach = 12 * np.sqrt(variance) + 12  # twelve standard deviations contain everything
    low, high = np.floor(np.maximum(mean - reach, 0)) - 1, np.ceil(mean + reach)
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        enough = _below(middle, mean, variance) >= probability
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high.astype(np.int64)


def _below(k: Vector, mean: Vector, variance: Vector) -> Vector:
    """Return the probability of at most k errors: binomial, or Poisson where every single
    probability is tiny.
    """
    from scipy.special import betainc, pdtr

    success = 1 - np.divide(variance, mean, out=np.ones_like(mean), where=mean > 0)
    rare = success <= 1e-9
    trials = np.divide(mean, success, out=np.full_like(mean, np.inf), where=~rare)
    inside = (k >= 0) & (k < trials) & ~rare
    probability = np.where(rare, pdtr(np.maximum(k, 0), mean), 1.0)
    probability[inside] = betainc(trials[inside] - k[inside], k[inside] + 1, 1 - success[inside])
    return np.where(k < 0, 0.0, probability)


@dataclass(frozen=True)
class Slices:
    """Parts of the answers, worst first, with errors expected and observed, and the range of a
    calibrated model.

    Attributes
    ----------
    p_values : corrected for the number of parts (Holm), so that for 95 of 100 calibrated models no
    part is called off
    """

    by: str
    names: tuple[str, ...]
    counts: ErrorCounts
    expected: Vector
    errors: ErrorCounts
    low: ErrorCounts
    high: ErrorCounts
    p_values: Vector

    @property
    def gaps(self) -> Vector:
        """Mean confidence minus accuracy: positive where the model is overconfident."""
        return (self.errors - self.expected) / self.counts

    @property
    def gap_ranges(self) -> tuple[Vector, Vector]:
        """The 95 % range of the gaps of a calibrated model."""
        return (self.low - self.expected) / self.counts, (self.high - self.expected) / self.counts

    @property
    def off(self) -> NDArray[np.bool_]:
        """Which parts are miscalibrated by more than chance explains, corrected for the number of
        parts.
        """
        return self.p_values < 1 - LEVEL

    @property
    def words(self) -> str:
        """What these parts can and cannot tell."""
        return sentences("parts", self, int(np.median(self.counts)))[0]

    def of(self, names: Sequence[str]) -> Slices:
        """Return only these parts, in this order."""
        index = [self.names.index(name) for name in names]
        columns: dict[str, Any] = {
            key: column[index]
            for key, column in vars(self).items()
            if isinstance(column, np.ndarray)
        }
        return replace(self, names=tuple(names), **columns)


def slices_of(
    rows: RowScores, values: ArrayLike, by: str, names: Sequence[Any] | NDArray[Any] | None = None
) -> Slices:
    """Split the answers by `values`, one for each row, such as the predicted class or the camera.

    Parameters
    ----------
    by : what a part is called, such as "class"
    names : what each of the integers in `values` stands for, optional

    Examples
    --------
    >>> import numpy as np
    >>> from recal.metrics.row_scores import score
    >>> from recal.reporting.figure_data import slices_of
    >>> probs, y = np.tile([0.9, 0.1], (200, 1)), (np.arange(200) < 60).astype(int)
    >>> slices = slices_of(score(probs, y), np.where(y == 1, "night", "day"), "time of day")
    >>> slices.names, slices.errors.tolist(), slices.off.tolist()
    (('night', 'day'), [60, 0], [True, True])
    """
    column = np.asarray(values)
    if column.shape != (len(rows),):
        raise InputError(
            f"{by!r} needs one value for each of the {len(rows):,} answers, got shape {column.shape}."
        )
    levels, place = np.unique(column, return_inverse=True)
    counts, errors, expected, variance = _sums(rows, place, len(levels))
    low, high = calibrated_range(expected, variance)
    corrected = holm(p_values(errors, expected, variance))
    # Worst first: the strongest evidence, then the largest gap.
    order = np.lexsort((-np.abs(errors - expected) / counts, corrected))
    labels = tuple(str(levels[i] if names is None else names[int(levels[i])]) for i in order)
    columns: tuple[NDArray[Any], ...] = (counts, expected, errors, low, high, corrected)
    return Slices(by, labels, *(column[order] for column in columns))


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: edges, rows, mean confidence, accuracy and 95 % band of each bin that
    has rows.
    """

    low: Vector
    high: Vector
    counts: Vector
    confidence: Vector
    accuracy: Vector
    band_low: Vector
    band_high: Vector


def reliability(rows: RowScores, n_bins: int = 15) -> Reliability:
    """Return the accuracy in bins of confidence. The band contains 95 % of the accuracies of
    resampled bins.

    The number of correct rows in a resampled bin is binomial, so no draws are needed. Its rate is
    (correct + 1/2) / (rows + 1); otherwise a bin with a few rows, all correct, would look certain.
    """
    return reliability_of(table_of(rows.confidence, rows.correct, equal_width_edges(n_bins)))


def reliability_of(table: BinTable) -> Reliability:
    """Return the diagram of bins that are already filled; see `reliability`."""
    from scipy.stats import binom

    filled = table.counts > 0
    counts = table.counts[filled]
    rate = (table.correct[filled] + 0.5) / (counts + 1)
    band = [binom.ppf(q, counts, rate) / counts for q in (0.025, 0.975)]
    accuracy = table.accuracy[filled]
    return Reliability(
        table.edges[:-1][filled],
        table.edges[1:][filled],
        counts,
        table.confidence[filled],
        accuracy,
        np.minimum(band[0], accuracy),
        np.maximum(band[1], accuracy),
    )
