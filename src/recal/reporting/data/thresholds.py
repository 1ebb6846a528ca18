"""What happens when only answers above a confidence are accepted: how many, how many errors, how many were expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.metrics.rows import RowScores

Vector = NDArray[np.float64]
Counts = NDArray[np.int64]

# Where the slider stops: every hundredth, and finer near certainty, where decisions are made.
THRESHOLDS = (*(round(i / 100, 2) for i in range(100)), 0.995, 0.999, 0.9999)


@dataclass(frozen=True)
class Acceptance:
    """The answers above one threshold. `low` to `high` errors are what a calibrated model makes in 95 % of cases."""

    threshold: float
    accepted: int
    n_samples: int
    made: int
    promised: float
    low: int
    high: int

    @property
    def share(self) -> float:
        return self.accepted / self.n_samples

    @property
    def accuracy(self) -> float:
        """Share right among the accepted; NaN where there are none."""
        return 1 - self.made / self.accepted if self.accepted else float("nan")

    @property
    def kept(self) -> str:
        """How the confidence compares with the errors made."""
        return "overconfident" if self.made > self.high else "underconfident" if self.made < self.low else "as expected"


@dataclass(frozen=True)
class Thresholds:
    """The same for every threshold, as columns."""

    thresholds: Vector
    accepted: Counts
    right: Counts
    promised_errors: Vector
    low: Counts
    high: Counts
    n_samples: int

    def at(self, threshold: float) -> Acceptance:
        index = int(np.flatnonzero(np.isclose(self.thresholds, threshold))[0])
        accepted = int(self.accepted[index])
        return Acceptance(
            threshold, accepted, self.n_samples, accepted - int(self.right[index]), float(self.promised_errors[index]),
            int(self.low[index]), int(self.high[index]),
        )  # fmt: skip


def threshold_table(rows: RowScores, thresholds: ArrayLike = THRESHOLDS) -> Thresholds:
    """Count the rows whose confidence is above each threshold, strictly."""
    levels = np.asarray(thresholds, dtype=np.float64)
    # Rows between two thresholds count alike: no need to sort them.
    place = np.searchsorted(levels, rows.confidence, side="left")
    size = len(levels) + 1

    def above(weights: NDArray[Any] | None) -> Vector:
        held = np.bincount(place, weights=weights, minlength=size).astype(np.float64)
        return np.cumsum(held[::-1])[::-1][1:]

    doubt = 1.0 - rows.confidence
    promised, variance = above(doubt), above(doubt * rows.confidence)
    low, high = calibrated_range(promised, variance)
    whole = [np.rint(column).astype(np.int64) for column in (above(None), above(rows.correct))]
    return Thresholds(levels, whole[0], whole[1], promised, low, high, len(rows))


def calibrated_range(mean: ArrayLike, variance: ArrayLike, level: float = 0.95) -> tuple[Counts, Counts]:
    """How many errors a calibrated model makes, with this probability, when its doubts sum to `mean`.

    The number of errors is a sum of independent events of different chances (Poisson binomial). The binomial of the
    same mean and variance is near enough to it: over a wide range of confidences its ends lie within one error of the
    exact ones. A binomial of a number of trials that is not whole is read from the incomplete beta function.
    """
    means, variances = np.atleast_1d(np.asarray(mean, np.float64)), np.atleast_1d(np.asarray(variance, np.float64))
    tail = (1 - level) / 2
    return _quantile(means, variances, tail), _quantile(means, variances, 1 - tail)


def chance_of(made: NDArray[Any], mean: Vector, variance: Vector) -> Vector:
    """How likely a calibrated model makes so few or so many errors: twice the smaller tail, at most 1."""
    below = _below(made.astype(np.float64), mean, variance)
    above = 1 - _below(made - 1.0, mean, variance)
    return np.minimum(2 * np.minimum(below, above), 1.0)


def _quantile(mean: Vector, variance: Vector, chance: float) -> Counts:
    """The smallest whole number that is not exceeded with at least this chance, by bisection for all at once."""
    reach = 12 * np.sqrt(variance) + 12  # deviations: everywhere
    low, high = np.floor(np.maximum(mean - reach, 0)) - 1, np.ceil(mean + reach)
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        enough = _below(middle, mean, variance) >= chance
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high.astype(np.int64)


def _below(k: Vector, mean: Vector, variance: Vector) -> Vector:
    """The chance of at most k errors: a binomial of this mean and variance, or Poisson's where all chances are tiny."""
    from scipy.special import betainc, pdtr

    success = 1 - np.divide(variance, mean, out=np.ones_like(mean), where=mean > 0)
    rare = success <= 1e-9
    trials = np.divide(mean, success, out=np.full_like(mean, np.inf), where=~rare)
    inside = (k >= 0) & (k < trials) & ~rare
    chance = np.where(rare, pdtr(np.maximum(k, 0), mean), 1.0)
    chance[inside] = betainc(trials[inside] - k[inside], k[inside] + 1, 1 - success[inside])
    return np.where(k < 0, 0.0, chance)
