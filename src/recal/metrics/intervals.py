"""Bootstrap intervals for every metric, from resampled buckets.

Shares and ranks (error rate, AURC, AUROC) get percentile intervals. NLL and Brier score are means of skewed numbers, of
which a sample with few large ones shows too little spread: each draw is measured in its own standard errors (the
bootstrap-t; Efron, 1981), which makes the interval longer where that is so. A calibration error is a norm of gaps,
and noise can only raise a norm: the error of a resample lies above that of the sample, as that lies above the truth,
so percentiles would miss the truth. Its interval is found the other way round: it holds the sizes c of the observed
pattern of gaps for which the error that was observed is not among the 2.5 % lowest or highest that resampling noise
around c x pattern gives. The observed pattern holds noise of its own, which makes the upper end too low for small
errors; but since noise only raises an error, the truth lies below the observed one plus 1.96 standard deviations in at
least 97.5 % of cases, so the upper end is never taken lower than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.metrics.calibration_error import BinTable, cosine_coefficients, fixed_point, smooth_residuals, transform_grid
from recal.metrics.resampling import Buckets
from recal.metrics.rows import RowScores, assign_bins, bin_classwise
from recal.metrics.scores import Runs, aurc_of, auroc_of, harmonic_numbers

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Starts = NDArray[np.intp]
Interval = tuple[float, float]

LEVEL = 0.95
# Of a normal variable, below which 97.5 % lie.
_DEVIATIONS = 1.96
_STEPS = 40
# Means of skewed numbers, and the rows from which on a draw knows its own standard error.
_SKEWED, _ENOUGH_ROWS = ("nll", "brier"), 30
# No draw's standard error counts as less than this part of the sample's: one that misses the few large numbers knows
# nothing of its own error, and an upper end without bound would come of it.
_LEAST_ERROR = 0.2
# Points at which the running gap and the blurred gap are followed in a draw.
_POINTS = 512
# Class-wise errors resample blocks of rows, since each row touches every class.
_BLOCKS = 500
_CLASSWISE_NUMBERS = 4_000_000


@dataclass
class Field:
    """Gaps as observed, the resampling noise around them, and the norm that makes an error of them."""

    observed: Vector
    norm: Callable[[Matrix], Vector]
    noise: list[Matrix] = field(default_factory=list)

    def add(self, drawn: Matrix) -> None:
        self.noise.append(drawn - self.observed)

    def middle(self) -> float:
        """The factor at which the observed error is the median of what noise gives: it takes the noise's part away."""
        noise = np.concatenate(self.noise)
        seen = float(self.norm(self.observed[None])[0])
        return _solve(lambda c: float(np.median(self.norm(c * self.observed + noise))) - seen)

    def factors(self) -> Interval:
        """The smallest and largest factor on the observed pattern that agree with the observed error."""
        noise = np.concatenate(self.noise)
        seen = float(self.norm(self.observed[None])[0])
        tail = (1 - LEVEL) / 2
        low = _solve(lambda c: float(np.quantile(self.norm(c * self.observed + noise), 1 - tail)) - seen)
        high = _solve(lambda c: float(np.quantile(self.norm(c * self.observed + noise), tail)) - seen)
        cautious = seen + _DEVIATIONS * float(self.norm(self.observed + noise).std())
        return low, max(high, _solve(lambda c: float(self.norm(c * self.observed[None])[0]) - cautious))


def _solve(rising: Callable[[float], float]) -> float:
    """The c >= 0 at which a rising function becomes positive; 0 where it is positive from the start."""
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


@dataclass
class TrackedError:
    """A calibration error that is followed through the draws.

    `starts` groups the buckets, `field_of` makes gaps of the groups' sums of gaps and sizes, and `error` says which
    error a factor on the observed gaps stands for.
    """

    starts: Starts
    field_of: Callable[[Matrix, Matrix], Matrix]
    norm: Callable[[Matrix], Vector]
    error: Callable[[float], float]
    hidden: Vector | None = None  # deviation of noise that resampling cannot show, for each gap


def tracked_errors(
    buckets: Buckets, values: dict[str, float], width: BinTable, mass: BinTable
) -> dict[str, TrackedError]:
    """All calibration errors of the top class, as norms of gaps. `width`, `mass`: the bins of `ece`, `adaptive_ece`."""
    n = buckets.n_samples
    by_width, by_mass = (_first_buckets(buckets.confidence, table.edges) for table in (width, mass))
    held = width.counts > 0
    shares, gaps, accuracy = width.shares[held], width.gaps[held], width.accuracy[held]
    chance = float(shares @ (accuracy * (1 - accuracy) / np.maximum(width.counts[held] - 1, 1)))
    plain_l2 = float(np.sqrt(shares @ gaps**2))
    nearest = (buckets.confidence * _POINTS + 0.5).astype(np.intp)
    by_point = _firsts(nearest)
    coefficients = cosine_coefficients(buckets.confidence, buckets.counts * buckets.means["gap"] / n)
    bandwidth = max(values["smooth_ece"], 1e-3)

    # Resampling a bin of few rows, all right or all wrong, shows less noise than there is.
    cautious = (width.correct[held] + 1) / (width.counts[held] + 2)
    unseen = np.maximum(cautious * (1 - cautious) - accuracy * (1 - accuracy), 0.0) / width.counts[held]

    def share(sums: Matrix, sizes: Matrix) -> Matrix:
        return sums / n

    def mean(sums: Matrix, sizes: Matrix) -> Matrix:
        # A bin that a draw leaves empty says nothing: its noise is taken as none.
        return np.where(sizes > 0, sums / np.maximum(sizes, 1), gaps)

    def running(sums: Matrix, sizes: Matrix) -> Matrix:
        return np.cumsum(sums, axis=1) / n

    def blurred(sums: Matrix, sizes: Matrix) -> Matrix:
        grid = np.zeros((len(sums), _POINTS + 1))
        grid[:, nearest[by_point]] = sums / n
        return smooth_residuals(transform_grid(grid), bandwidth)

    def times(value: float) -> Callable[[float], float]:
        return lambda factor: min(factor * value, 1.0)

    return {
        "ece": TrackedError(by_width, share, _absolute_sum, times(values["ece"])),
        "mce": TrackedError(by_width, mean, _largest, times(values["mce"]), np.sqrt(unseen)),
        "adaptive_ece": TrackedError(by_mass, share, _absolute_sum, times(values["adaptive_ece"])),
        "debiased_ece": TrackedError(by_width, mean, lambda field: field**2 @ shares - chance, times(plain_l2)),
        "smooth_ece": TrackedError(by_point, blurred, _absolute_sum, lambda factor: fixed_point(factor * coefficients)),
        "ks_error": TrackedError(_thin(_firsts(buckets.run), _POINTS), running, _largest, times(values["ks_error"])),
    }


def bootstrap(
    buckets: Buckets, values: dict[str, float], width: BinTable, mass: BinTable, draws: int, rng: np.random.Generator
) -> dict[str, Interval]:
    """Intervals for all metrics but the class-wise one, which `classwise_interval` finds."""
    watched = tracked_errors(buckets, values, width, mass)
    observed = buckets.counts.astype(np.float64)[None]
    fields = {
        name: Field(one.field_of(*grouped(buckets, observed, one.starts, None))[0], one.norm)
        for name, one in watched.items()
    }
    plain: dict[str, list[Vector]] = {}
    errors: dict[str, list[Vector]] = {name: [] for name in _SKEWED}
    for drawn in buckets.draw(draws, rng):
        for name, one in watched.items():
            gaps = one.field_of(*grouped(buckets, drawn, one.starts, rng))
            if one.hidden is not None:
                gaps = gaps + one.hidden * rng.standard_normal(gaps.shape)
            fields[name].add(gaps)
        for name, spread in plain_metrics(buckets, drawn, rng).items():
            plain.setdefault(name, []).append(spread)
        for name in _SKEWED:
            errors[name].append(standard_error(buckets, name, drawn))
    found = {}
    for name, one in watched.items():
        low, high = fields[name].factors()
        found[name] = (one.error(low), one.error(high))
    # Buckets count near confidences as equal, which moves a rank metric by a hair; its draws are moved back.
    centre = plain_metrics(buckets, observed, None)
    for name, parts in plain.items():
        moved = values[name] - centre[name][0] if name in ("aurc", "auroc") else 0.0
        found[name] = percentile_interval(np.concatenate(parts) + moved)
    for name in _SKEWED:
        means, error = np.concatenate(plain[name]), np.concatenate(errors[name])
        own = float(standard_error(buckets, name, observed)[0])
        if buckets.n_samples >= _ENOUGH_ROWS and np.isfinite(means).all() and own > 0:
            low, high = percentile_interval((means - centre[name][0]) / np.maximum(error, _LEAST_ERROR * own))
            found[name] = max(values[name] - high * own, 0.0), values[name] - low * own
    return found


def standard_error(buckets: Buckets, score: str, drawn: Matrix) -> Vector:
    """The standard error of a mean score in each draw."""
    n, means, squares = (
        buckets.n_samples,
        buckets.means[score],
        buckets.means[score] ** 2 + buckets.deviations[score] ** 2,
    )
    return np.asarray(np.sqrt(np.maximum(drawn @ squares / n - (drawn @ means / n) ** 2, 0.0) / n))


def grouped(buckets: Buckets, drawn: Matrix, starts: Starts, rng: np.random.Generator | None) -> tuple[Matrix, Matrix]:
    return buckets.sums("gap", drawn, starts, rng), np.add.reduceat(drawn, starts, axis=1)


def plain_metrics(buckets: Buckets, drawn: Matrix, rng: np.random.Generator | None) -> dict[str, Vector]:
    """Metrics that are means or ranks, one value for each draw."""
    n, everything, by_run = buckets.n_samples, np.zeros(1, np.intp), _firsts(buckets.run)
    sizes = np.add.reduceat(drawn, by_run, axis=1)
    right = np.add.reduceat(drawn * buckets.correct, by_run, axis=1)
    harmonic = harmonic_numbers(int(sizes.sum(axis=1).max()))
    nll = buckets.sums("nll", drawn, everything, rng)[:, 0] / n
    return {
        "brier": buckets.sums("brier", drawn, everything, rng)[:, 0] / n,
        "nll": np.where(drawn @ buckets.infinite > 0, np.inf, nll),
        "error_rate": 1.0 - (drawn @ buckets.correct) / n,
        "aurc": np.array([aurc_of(Runs(s, r, s), harmonic) for s, r in zip(sizes, right)]),
        "auroc": np.array([auroc_of(Runs(s, r, s)) for s, r in zip(sizes, right)]),
    }


def percentile_interval(draws: Vector) -> Interval:
    """The middle 95 % of the draws; NaN ones, where a metric is undefined, are left out."""
    kept = draws[~np.isnan(draws)]
    if len(kept) == 0:
        return (float("nan"), float("nan"))
    tail = (1 - LEVEL) / 2
    # Infinite draws cannot be interpolated.
    low, high = np.quantile(kept, [tail, 1 - tail], method="linear" if np.isfinite(kept).all() else "inverted_cdf")
    return float(low), float(high)


def _first_buckets(confidence: Vector, edges: Vector) -> Starts:
    """The first bucket of each bin that holds one."""
    bin_of = assign_bins(confidence, edges)
    return _firsts(bin_of)


def _firsts(numbers: NDArray[np.intp]) -> Starts:
    """Where each run of equal numbers begins."""
    return np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])


def _thin(starts: Starts, most: int) -> Starts:
    """At most `most` of the starts, evenly spread, with the first."""
    return starts[np.unique(np.linspace(0, len(starts) - 1, min(most, len(starts))).astype(np.intp))]


def _absolute_sum(gaps: Matrix) -> Vector:
    return np.abs(gaps).sum(axis=-1)


def _largest(gaps: Matrix) -> Vector:
    return np.abs(gaps).max(axis=-1)


def classwise_interval(
    probs: Floats, labels: Labels, rows: RowScores, edges: Vector, draws: int, rng: np.random.Generator
) -> tuple[Interval, int]:
    """The class-wise error's interval and the draws it used: fewer for many classes."""
    n, k = probs.shape
    size = k * (len(edges) - 1)
    blocks = min(n, _BLOCKS)
    draws = max(min(draws, 100), min(draws, _CLASSWISE_NUMBERS // size))
    block = np.empty(n, np.intp)
    # Blocks are dealt to rows sorted by content, so that the order of rows in the data does not matter.
    # Rows that agree in both to nine digits are as good as equal.
    block[np.argsort(rows.confidence + 1e-9 * rows.brier)] = rng.permutation(n) % blocks
    gaps = np.zeros((blocks, k, len(edges) - 1))
    bin_classwise(probs, labels, edges, block, gaps)
    flat = gaps.reshape(blocks, size)
    hidden = np.sqrt(_unseen_variance(probs, labels, edges, flat.sum(axis=0)))
    held = np.any(flat != 0, axis=0)
    flat, hidden = flat[:, held] / (n * k), hidden[held] / (n * k)
    pattern = Field(flat.sum(axis=0), _absolute_sum)
    drawn = rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=draws).astype(np.float64) @ flat
    pattern.add(drawn + hidden * rng.standard_normal(drawn.shape))
    value = float(np.abs(pattern.observed).sum())
    low, high = pattern.factors()
    return (min(low * value, 1.0), min(high * value, 1.0)), draws


def _unseen_variance(probs: Floats, labels: Labels, edges: Vector, gaps: Vector) -> Vector:
    """Of each class's and bin's sum of gaps: the variance that resampling does not show, (n_classes * n_bins,).

    Most bins of a class hold few rows and no outcome, or few; resampled, they hardly vary. Their share of outcomes is
    taken to be what it would be with one row more, of the mean probability.
    """
    k, n_bins = probs.shape[1], len(edges) - 1
    counts = np.concatenate([np.bincount(assign_bins(column, edges), minlength=n_bins) for column in probs.T])
    own = probs[np.arange(len(labels)), labels]
    outcomes = np.bincount(labels * n_bins + assign_bins(own, edges), minlength=k * n_bins)
    rows = np.maximum(counts, 1)
    seen = outcomes / rows
    cautious = (outcomes + (gaps + outcomes) / rows) / (rows + 1)  # gaps + outcomes: the sum of probabilities
    return np.asarray(np.maximum(cautious * (1 - cautious) - seen * (1 - seen), 0.0) * counts)
