"""95 % intervals of every metric from bootstrap draws; `exact` extends them if mistakes are few.

**Rates and ranks.** The error rate has a Clopper-Pearson interval. AURC and AUROC have percentile
intervals.

**NLL and Brier score** are means of skewed numbers. A sample with few large losses underestimates
its own spread, so each draw is divided by its own standard error (bootstrap-t; Efron, 1981).

**Calibration errors** are norms of gaps, and noise can only raise a norm: the error of a resample
lies above that of the sample, just as that lies above the true error. Percentiles would miss the
true error. The interval therefore contains the factors c for which the observed error is not among
the 2.5 % lowest or highest errors that noise around c times the observed gaps gives. Three rules
correct what resampling cannot show:

- the lower end is 0 unless a calibrated model with these confidences has such a large error in at
  most 2.5 % of cases;
- a bin with no mistakes, or with mistakes only, gets the noise of one more right and one more wrong
  answer;
- the upper end is at least the observed error plus 1.96 standard deviations, because noise only
  raises an error; and
  with few mistakes at least the observed error plus the distance to the upper end of the error
  rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.metrics.calibration_error import (
    BinTable,
    cosine_coefficients,
    fixed_point,
    smooth_residuals,
    transform_grid,
)
from recal.metrics.intervals import DEVIATIONS, LEVEL, NO_INTERVAL, Interval
from recal.metrics.row_scores import (
    Buckets,
    RowScores,
    Starts,
    Vector,
    assign_bins,
    classwise_gaps,
    first_of_each,
)
from recal.metrics.scores import Runs, aurc_of, auroc_of, harmonic_numbers

_TAIL = (1 - LEVEL) / 2
_STEPS = 40
# Means of skewed numbers, and the fewest rows with which a draw can estimate its own standard
# error.
_SKEWED, _ENOUGH_ROWS = ("nll", "brier"), 30
# Smallest standard error of a draw, as a share of the sample's: a draw without the few large losses
# would otherwise make the upper end unbounded.
_LEAST_ERROR = 0.2
# Grid of the cumulative and of the smoothed gaps.
_POINTS = 512
# Class-wise errors resample blocks of rows, because each row contributes to every class.
_BLOCKS = 500
_CLASSWISE_NUMBERS = 4_000_000
# Fewer clusters give no interval: their variance is unknown.
FEWEST_CLUSTERS = 5


@dataclass
class Pattern:
    """Observed gaps, resampling noise around them, and the norm that turns gaps into an error."""

    observed: Vector
    norm: Callable[[Vector], Vector]
    noise: list[Vector] = field(default_factory=list)
    calibrated: list[Vector] = field(default_factory=list)  # errors of simulated calibrated models

    def add(self, drawn: Vector, stretch: float = 1.0) -> None:
        self.noise.append(stretch * (drawn - self.observed))

    @property
    def size(self) -> float:
        """The observed error, in units of the norm."""
        return float(self.norm(self.observed[None])[0])

    def factor(self, quantile: float) -> float:
        """The factor on the observed gaps for which the observed error is this quantile of the
        noisy errors.
        """
        noise, size = np.concatenate(self.noise), self.size
        return _solve(
            lambda c: float(np.quantile(self.norm(c * self.observed + noise), quantile)) - size
        )

    def factors(self) -> Interval:
        """Smallest and largest factor on the observed gaps that agree with the observed error."""
        low = self.factor(1 - _TAIL)
        if self.calibrated and self.size <= float(
            np.quantile(np.concatenate(self.calibrated), 1 - _TAIL)
        ):
            low = 0.0
        high, cautious = self.factor(_TAIL), self.cautious()
        return low, max(
            high, _solve(lambda c: float(self.norm(c * self.observed[None])[0]) - cautious)
        )

    def cautious(self) -> float:
        """The observed error plus 1.96 standard deviations of its noise, in units of the norm."""
        return self.size + DEVIATIONS * float(
            self.norm(self.observed + np.concatenate(self.noise)).std()
        )


def _solve(rising: Callable[[float], float]) -> float:
    """The c >= 0 at which an increasing function becomes positive;

    0 if it is positive from the start.
    """
    if rising(0.0) >= 0:
        return 0.0
    low, high = 0.0, 1.0
    while rising(high) < 0 and high < 64:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
        if high - low < 1e-6 * high:
            break
    return 0.5 * (low + high)


@dataclass(kw_only=True)
class TrackedError(Pattern):
    """A calibration error that is computed in every draw.

    `starts` groups the buckets, `gaps_of` turns the groups' sums of gaps and sizes into gaps, and
    `error` returns the error for a factor on the observed gaps. `in_units` turns a norm into an
    error if all gaps are zero. `hidden` is the standard deviation of each group's sum that
    resampling does not show.
    """

    starts: Starts
    gaps_of: Callable[[Vector, Vector], Vector]
    error: Callable[[float], float]
    hidden: Vector
    in_units: Callable[[float], float] = float

    def drawn_gaps(
        self, buckets: Buckets, drawn: Vector, rng: np.random.Generator | None = None
    ) -> Vector:
        """Gaps of each draw, with the noise within buckets if a generator is given."""
        sums = buckets.sums("gap", drawn, self.starts, rng)
        return self.gaps_of(sums, np.add.reduceat(drawn, self.starts, axis=1))

    def interval(self) -> Interval:
        if not self.observed.any():
            return 0.0, min(self.in_units(max(self.cautious(), 0.0)), 1.0)
        low, high = self.factors()
        return self.error(low), self.error(high)


def tracked_errors(
    buckets: Buckets, values: dict[str, float], width: BinTable, mass: BinTable
) -> dict[str, TrackedError]:
    """All calibration errors as norms of gaps;

    `width` and `mass` are the bins of equal width and of equal mass.
    """
    n, observed = buckets.n_samples, buckets.counts.astype(np.float64)[None]
    by_width, by_mass = (
        first_of_each(assign_bins(buckets.confidence, table.edges)) for table in (width, mass)
    )
    by_run = first_of_each(buckets.run)
    few_runs = by_run[
        np.unique(np.linspace(0, len(by_run) - 1, min(_POINTS, len(by_run))).astype(np.intp))
    ]
    filled = width.counts > 0
    shares, gaps, accuracy = width.shares[filled], width.gaps[filled], width.accuracy[filled]
    chance = float(shares @ (accuracy * (1 - accuracy) / np.maximum(width.counts[filled] - 1, 1)))
    plain_l2 = float(np.sqrt(shares @ gaps**2))
    nearest = (buckets.confidence * _POINTS + 0.5).astype(np.intp)
    by_point = first_of_each(nearest)
    coefficients = cosine_coefficients(
        buckets.confidence, buckets.counts * buckets.means["gap"] / n
    )
    bandwidth = max(values["smooth_ece"], 1e-3)
    # Variance per row that resampling hides: a bin with few rows, all right or all wrong, seems to
    # have no noise.
    cautious = (width.correct[filled] + 1) / (width.counts[filled] + 2)
    unseen = np.maximum(cautious * (1 - cautious) - accuracy * (1 - accuracy), 0.0)
    per_bucket = buckets.counts * np.repeat(unseen, np.diff(np.r_[by_width, len(buckets.counts)]))

    def share(sums: Vector, sizes: Vector) -> Vector:
        return sums / sizes.sum(axis=1, keepdims=True)

    def mean(sums: Vector, sizes: Vector) -> Vector:
        # A bin that is empty in a draw keeps its observed gap.
        return np.where(sizes > 0, sums / np.maximum(sizes, 1), gaps)

    def running(sums: Vector, sizes: Vector) -> Vector:
        return np.cumsum(sums, axis=1) / sizes.sum(axis=1, keepdims=True)

    def smoothed(sums: Vector, sizes: Vector) -> Vector:
        grid = np.zeros((len(sums), _POINTS + 1))
        grid[:, nearest[by_point]] = sums / sizes.sum(axis=1, keepdims=True)
        return smooth_residuals(transform_grid(grid), bandwidth)

    def tracked(
        starts: Starts,
        gaps_of: Callable[[Vector, Vector], Vector],
        norm: Callable[[Vector], Vector],
        error: float | Callable[[float], float],
        in_units: Callable[[float], float] = float,
    ) -> TrackedError:
        return TrackedError(
            gaps_of(
                buckets.sums("gap", observed, starts, None),
                np.add.reduceat(observed, starts, axis=1),
            )[0],
            norm,
            starts=starts,
            gaps_of=gaps_of,
            error=error if callable(error) else lambda factor: min(factor * error, 1.0),
            hidden=np.sqrt(np.add.reduceat(per_bucket, starts)),
            in_units=in_units,
        )

    return {
        "ece": tracked(by_width, share, _absolute_sum, values["ece"]),
        "mce": tracked(by_width, mean, _largest, values["mce"]),
        "adaptive_ece": tracked(by_mass, share, _absolute_sum, values["adaptive_ece"]),
        "debiased_ece": tracked(
            by_width, mean, lambda gaps: gaps**2 @ shares - chance, plain_l2, math.sqrt
        ),
        "smooth_ece": tracked(
            by_point, smoothed, _absolute_sum, lambda factor: fixed_point(factor * coefficients)
        ),
        "ks_error": tracked(few_runs, running, _largest, values["ks_error"]),
    }


def bootstrap(
    buckets: Buckets,
    values: dict[str, float],
    width: BinTable,
    mass: BinTable,
    draws: int,
    rng: np.random.Generator,
) -> dict[str, Interval]:
    """Bootstrap intervals of all metrics except the class-wise ECE, see `classwise_interval`."""
    errors = tracked_errors(buckets, values, width, mass)
    observed, stretch = buckets.counts.astype(np.float64)[None], cluster_stretch(buckets.clusters)
    sizes = {
        name: np.add.reduceat(observed, error.starts, axis=1) for name, error in errors.items()
    }
    plain: list[dict[str, Vector]] = []
    for drawn in buckets.draw(draws, rng):
        for name, error in errors.items():
            gaps = error.drawn_gaps(buckets, drawn, rng)
            if error.hidden.any():
                noise = rng.standard_normal((len(drawn), len(error.starts)))
                gaps = gaps + error.gaps_of(error.hidden * noise, sizes[name])
            error.add(gaps, stretch)
        plain.append(plain_metrics(buckets, drawn, rng))
        plain[-1] |= {f"{name} deviation": standard_error(buckets, name, drawn) for name in _SKEWED}
    inflation = math.sqrt(design_effect(buckets))
    for gaps in buckets.simulate_calibrated(draws, rng):
        for name, error in errors.items():
            null = error.gaps_of(
                inflation * np.add.reduceat(gaps, error.starts, axis=1), sizes[name]
            )
            error.calibrated.append(error.norm(null))
    intervals = {name: error.interval() for name, error in errors.items()}
    by_name = {name: np.concatenate([part[name] for part in plain]) for name in plain[0]}
    # Buckets treat similar confidences as equal, which shifts a rank metric slightly; shift its
    # draws back.
    centre = plain_metrics(buckets, observed, None)
    for name in centre:
        shift = values[name] - centre[name][0] if name in ("aurc", "auroc") else 0.0
        intervals[name] = _stretched(
            percentile_interval(by_name[name] + shift), values[name], stretch
        )
    for name in _SKEWED if buckets.clusters is None and buckets.n_samples >= _ENOUGH_ROWS else ():
        deviation, own = (
            by_name[f"{name} deviation"],
            float(standard_error(buckets, name, observed)[0]),
        )
        if np.isfinite(by_name[name]).all() and own > 0:
            ratios = (by_name[name] - centre[name][0]) / np.maximum(deviation, _LEAST_ERROR * own)
            low, high = percentile_interval(ratios)
            intervals[name] = max(values[name] - high * own, 0.0), values[name] - low * own
    return intervals


def cluster_stretch(clusters: NDArray[np.intp] | None) -> float:
    """Factor on the spread of draws of G clusters:

    they show (G - 1) / G of the variance, and G is small.
    """
    if clusters is None:
        return 1.0
    from scipy.special import stdtrit

    n_clusters = int(clusters.max()) + 1
    if n_clusters < 2:
        return math.nan
    return (
        float(stdtrit(n_clusters - 1, 0.5 + LEVEL / 2))
        / DEVIATIONS
        * math.sqrt(n_clusters / (n_clusters - 1))
    )


def design_effect(buckets: Buckets) -> float:
    """The variance of the mean gap divided by its variance for independent rows, at least 1."""
    if buckets.clusters is None:
        return 1.0
    gaps = buckets.means["gap"][buckets.bucket]
    gaps = gaps - gaps.mean()
    return max(
        float(
            np.square(np.bincount(buckets.clusters, weights=gaps)).sum() / max(gaps @ gaps, 1e-300)
        ),
        1.0,
    )


def _stretched(interval: Interval, value: float, stretch: float) -> Interval:
    if stretch == 1.0 or not math.isfinite(value):
        return interval
    return value - stretch * (value - interval[0]), value + stretch * (interval[1] - value)


def standard_error(buckets: Buckets, score: str, drawn: Vector) -> Vector:
    """Standard error of a mean score in each draw."""
    n, means = buckets.n_samples, buckets.means[score]
    squares = means**2 + buckets.deviations[score] ** 2
    return np.asarray(np.sqrt(np.maximum(drawn @ squares / n - (drawn @ means / n) ** 2, 0.0) / n))


def plain_metrics(
    buckets: Buckets, drawn: Vector, rng: np.random.Generator | None
) -> dict[str, Vector]:
    """Metrics that are means or ranks, one value for each draw."""
    total, everything, by_run = drawn.sum(axis=1), np.zeros(1, np.intp), first_of_each(buckets.run)
    sizes = np.add.reduceat(drawn, by_run, axis=1)
    right = np.add.reduceat(drawn * buckets.correct, by_run, axis=1)
    harmonic = harmonic_numbers(int(total.max()))
    nll = buckets.sums("nll", drawn, everything, rng)[:, 0] / total
    return {
        "brier": buckets.sums("brier", drawn, everything, rng)[:, 0] / total,
        "nll": np.where(drawn @ buckets.infinite > 0, np.inf, nll),
        "error_rate": 1.0 - (drawn @ buckets.correct) / total,
        "aurc": np.array([aurc_of(Runs(s, r, s), harmonic) for s, r in zip(sizes, right)]),
        "auroc": np.array([auroc_of(Runs(s, r, s)) for s, r in zip(sizes, right)]),
    }


def percentile_interval(draws: Vector) -> Interval:
    """Middle 95 % of the draws; draws in which a metric is undefined are left out."""
    defined = draws[~np.isnan(draws)]
    if len(defined) == 0:
        return NO_INTERVAL
    # Infinite draws cannot be interpolated.
    method: Any = "linear" if np.isfinite(defined).all() else "inverted_cdf"
    low, high = np.quantile(defined, [_TAIL, 1 - _TAIL], method=method)
    return float(low), float(high)


def _absolute_sum(gaps: Vector) -> Vector:
    return np.abs(gaps).sum(axis=-1)


def _largest(gaps: Vector) -> Vector:
    return np.abs(gaps).max(axis=-1)


def classwise_interval(
    probs: Floats,
    labels: Labels,
    rows: RowScores,
    edges: Vector,
    draws: int,
    rng: np.random.Generator,
    clusters: NDArray[np.intp] | None = None,
) -> tuple[Interval, int]:
    """Interval of the class-wise ECE, and the number of draws, which is smaller for many classes."""
    n, k = probs.shape
    size = k * (len(edges) - 1)
    draws = max(min(draws, 100), min(draws, _CLASSWISE_NUMBERS // size))
    if clusters is None:
        blocks = min(n, _BLOCKS)
        block = np.empty(n, np.intp)
        # Blocks are assigned to rows sorted by content, so that the order of rows in the data does
        # not matter. Rows whose confidence and Brier score agree to nine digits are practically
        # equal.
        block[np.argsort(rows.confidence + 1e-9 * rows.brier)] = rng.permutation(n) % blocks
    else:
        blocks = min(int(clusters.max()) + 1, _BLOCKS)
        block = (rng.permutation(int(clusters.max()) + 1) % blocks)[clusters]
    flat = classwise_gaps(probs, labels, edges, block, blocks).reshape(blocks, size)
    hidden, expected = _classwise_variances(probs, labels, edges, flat.sum(axis=0))
    used = np.any(flat != 0, axis=0)
    flat, hidden = flat[:, used] / (n * k), np.sqrt(hidden[used]) / (n * k)
    pattern = Pattern(flat.sum(axis=0), _absolute_sum)
    weights = rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=draws).astype(np.float64)
    drawn = weights @ flat * (n / (weights @ np.bincount(block, minlength=blocks)))[:, None]
    pattern.add(drawn + hidden * rng.standard_normal(drawn.shape), cluster_stretch(clusters))
    # Outcomes of a calibrated model. Each mistake affects two classes, so the errors spread sqrt(2)
    # times as widely.
    counts = rng.poisson(expected[used], size=drawn.shape)
    null = np.abs(counts - expected[used]).sum(axis=1) / (n * k)
    pattern.calibrated.append(null.mean() + math.sqrt(2) * (null - null.mean()))
    value = float(np.abs(pattern.observed).sum())
    low, high = pattern.factors()
    return (min(low * value, 1.0), min(high * value, 1.0)), draws


def _classwise_variances(
    probs: Floats, labels: Labels, edges: Vector, gaps: Vector
) -> tuple[Vector, Vector]:
    """Variances of the sum of gaps of each class and bin, (n_classes * n_bins,): hidden ones, and
    those if calibrated.

    Most bins of a class have few rows and hardly any outcomes, and resampling shows almost no
    variance. Their rate of outcomes is therefore computed with one more row of the mean
    probability; the variance that this adds is hidden.
    """
    k, n_bins = probs.shape[1], len(edges) - 1
    columns = [(assign_bins(column, edges), column * (1.0 - column)) for column in probs.T]
    counts = np.concatenate([np.bincount(bin_of, minlength=n_bins) for bin_of, _ in columns])
    calibrated = np.concatenate(
        [np.bincount(bin_of, weights, n_bins) for bin_of, weights in columns]
    )
    own = probs[np.arange(len(labels)), labels]
    outcomes = np.bincount(labels * n_bins + assign_bins(own, edges), minlength=k * n_bins)
    rows = np.maximum(counts, 1)
    rate = outcomes / rows
    cautious = (outcomes + (gaps + outcomes) / rows) / (
        rows + 1
    )  # gaps + outcomes: the sum of probabilities
    hidden = np.maximum(cautious * (1 - cautious) - rate * (1 - rate), 0.0) * counts
    return np.asarray(hidden), np.maximum(calibrated, 0.0)
