"""Errors expected from the confidence and errors observed: above a threshold, by class, by any column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.errors import InputError
from recal.metrics.rows import RowScores

Vector = NDArray[np.float64]
Counts = NDArray[np.int64]

# The stops of the slider: every hundredth, and finer near 1, where decisions are made.
THRESHOLDS = (*(round(i / 100, 2) for i in range(100)), 0.995, 0.999, 0.9999)
# If the median part has fewer answers than this, no part can be judged by itself.
FEW = 20


@dataclass(frozen=True)
class Acceptance:
    """Answers with at least one confidence. A calibrated model makes `low` to `high` errors in 95 % of samples."""

    threshold: float
    accepted: int
    n_samples: int
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

    @property
    def reading(self) -> str:
        """How the confidence compares with the errors."""
        if self.low <= self.errors <= self.high:
            return "as expected"
        return "overconfident" if self.errors > self.high else "underconfident"


@dataclass(frozen=True)
class Thresholds:
    """The same for every threshold, as columns."""

    thresholds: Vector
    accepted: Counts
    correct: Counts
    expected: Vector
    low: Counts
    high: Counts
    n_samples: int

    def at(self, threshold: float) -> Acceptance:
        return self.row(int(np.flatnonzero(np.isclose(self.thresholds, threshold, rtol=0, atol=1e-12))[0]))

    def row(self, index: int) -> Acceptance:
        accepted = int(self.accepted[index])
        return Acceptance(
            float(self.thresholds[index]), accepted, self.n_samples, accepted - int(self.correct[index]),
            float(self.expected[index]), int(self.low[index]), int(self.high[index]),
        )  # fmt: skip


def threshold_table(rows: RowScores, thresholds: ArrayLike = THRESHOLDS) -> Thresholds:
    """Count the rows whose confidence reaches each threshold, as `DecisionRule.accept` does."""
    levels = np.asarray(thresholds, dtype=np.float64)
    # Rows between two thresholds count alike, so they need not be sorted.
    place = np.searchsorted(levels, rows.confidence, side="right")
    size = len(levels) + 1

    def reaching(weights: NDArray[Any] | None) -> Vector:
        sums = np.bincount(place, weights=weights, minlength=size).astype(np.float64)
        return np.cumsum(sums[::-1])[::-1][1:]

    doubt = 1.0 - rows.confidence
    expected, variance = reaching(doubt), reaching(doubt * rows.confidence)
    low, high = calibrated_range(expected, variance)
    counts = [np.rint(column).astype(np.int64) for column in (reaching(None), reaching(rows.correct))]
    return Thresholds(levels, counts[0], counts[1], expected, low, high, len(rows))


def calibrated_range(mean: ArrayLike, variance: ArrayLike, level: float = 0.95) -> tuple[Counts, Counts]:
    """Return how many errors a calibrated model makes, with this probability, if its doubts sum to `mean`.

    The number of errors is a sum of independent events with different probabilities (Poisson binomial). A binomial of
    the same mean and variance is close: its ends lie within one error of the exact ones over a wide range of
    confidences. Its number of trials need not be whole, so its tails are read from the incomplete beta function.
    """
    means, variances = np.atleast_1d(np.asarray(mean, np.float64)), np.atleast_1d(np.asarray(variance, np.float64))
    tail = (1 - level) / 2
    return _quantile(means, variances, tail), _quantile(means, variances, 1 - tail)


def p_values(errors: NDArray[Any], mean: Vector, variance: Vector) -> Vector:
    """Return the probability that a calibrated model is at least this far off: twice the smaller tail, at most 1."""
    below = _below(errors.astype(np.float64), mean, variance)
    above = 1 - _below(errors - 1.0, mean, variance)
    return np.minimum(2 * np.minimum(below, above), 1.0)


def _quantile(mean: Vector, variance: Vector, probability: float) -> Counts:
    """Return the smallest count that is not exceeded with at least this probability, by bisection for all at once."""
    reach = 12 * np.sqrt(variance) + 12  # twelve standard deviations contain everything
    low, high = np.floor(np.maximum(mean - reach, 0)) - 1, np.ceil(mean + reach)
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        enough = _below(middle, mean, variance) >= probability
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high.astype(np.int64)


def _below(k: Vector, mean: Vector, variance: Vector) -> Vector:
    """Return the probability of at most k errors: binomial, or Poisson where every single probability is tiny."""
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
    """Parts of the answers, worst first, with errors expected and observed, and the range of a calibrated model.

    Attributes
    ----------
    p_values : corrected for the number of parts (Holm), so that for 95 of 100 calibrated models no part is called off
    """

    by: str
    names: tuple[str, ...]
    counts: Counts
    expected: Vector
    errors: Counts
    low: Counts
    high: Counts
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
        """Which parts are miscalibrated by more than chance explains, corrected for the number of parts."""
        return self.p_values < 0.05

    @property
    def typical(self) -> int:
        """The number of answers of the median part."""
        return int(np.median(self.counts))

    @property
    def words(self) -> str:
        """What these parts can and cannot tell."""
        few = f"Each {self.by} has about {self.typical} answers: too few to judge one by itself. "
        start = few if self.typical < FEW else ""
        count = int(self.off.sum())
        if not count:
            return start + f"No {self.by} is miscalibrated beyond chance (corrected for {len(self.names)} of them)."
        verb = "is" if count == 1 else "are"
        return start + f"{count} of {len(self.names)} {verb} miscalibrated beyond chance (corrected for their number)."

    def of(self, names: Sequence[str]) -> Slices:
        """Return only these parts, in this order."""
        index = [self.names.index(name) for name in names]
        counts, errors, low, high = (column[index] for column in (self.counts, self.errors, self.low, self.high))
        return Slices(self.by, tuple(names), counts, self.expected[index], errors, low, high, self.p_values[index])


def slices_of(rows: RowScores, values: ArrayLike, by: str, names: Sequence[Any] | NDArray[Any] | None = None) -> Slices:
    """Split the answers by `values`, one for each row, such as the predicted class or the camera.

    Parameters
    ----------
    by : what a part is called, such as "class"
    names : what each of the integers in `values` stands for, optional

    Examples
    --------
    >>> import numpy as np
    >>> from recal.metrics.rows import score
    >>> from recal.reporting.expected_errors import slices_of
    >>> probs, y = np.tile([0.9, 0.1], (200, 1)), (np.arange(200) < 60).astype(int)
    >>> slices = slices_of(score(probs, y), np.where(y == 1, "night", "day"), "time of day")
    >>> slices.names, slices.errors.tolist(), slices.off.tolist()
    (('night', 'day'), [60, 0], [True, True])
    """
    column = np.asarray(values)
    if column.shape != (len(rows),):
        raise InputError(f"{by!r} needs one value for each of the {len(rows):,} answers, got shape {column.shape}.")
    levels, place = np.unique(column, return_inverse=True)
    size, doubt = len(levels), 1.0 - rows.confidence
    counts, errors = np.bincount(place, minlength=size), np.bincount(place[~rows.correct], minlength=size)
    expected, variance = (
        np.bincount(place, weights, size).astype(np.float64) for weights in (doubt, doubt * rows.confidence)
    )
    low, high = calibrated_range(expected, variance)
    corrected = holm(p_values(errors, expected, variance))
    # Worst first: the strongest evidence, then the largest gap.
    order = np.lexsort((-np.abs(errors - expected) / counts, corrected))
    labels = tuple(str(levels[i] if names is None else names[int(levels[i])]) for i in order)
    whole = [column.astype(np.int64)[order] for column in (counts, errors, low, high)]
    return Slices(by, labels, whole[0], expected[order], whole[1], whole[2], whole[3], corrected[order])


def holm(values: Vector) -> Vector:
    """Correct p-values for their number (Holm, 1979): never weaker than Bonferroni, and valid for any dependence."""
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * (len(values) - np.arange(len(values))))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected
