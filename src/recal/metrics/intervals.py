"""95 % intervals of every metric, from bootstrap draws, and from exact methods if mistakes are few.

**Rates and ranks.** The error rate has a Clopper-Pearson interval. AURC and AUROC have percentile intervals.

**NLL and Brier score** are means of skewed numbers. A sample with few large losses underestimates its own spread, so
each draw is divided by its own standard error (bootstrap-t; Efron, 1981).

**Few mistakes.** A bootstrap cannot draw a mistake that the sample lacks. With fewer than 30 mistakes, or 30 right
answers (fewer still if both are common), the intervals of NLL, Brier score, AURC and AUROC are extended to those of
`recal.metrics.exact`. All of these are sums over the mistakes; the AURC, for one, is the sum of -log(coverage at which
the mistake is accepted) / n.

**Calibration errors** are norms of gaps, and noise can only raise a norm: the error of a resample lies above that of
the sample, as that lies above the truth. Percentiles would miss the truth. The interval therefore holds the factors c
for which the observed error is not among the 2.5 % lowest or highest that noise around c times the observed gaps gives.
Three rules correct what resampling cannot show:

- the lower end is 0 unless a calibrated model with these confidences gives so large an error in at most 2.5 % of cases;
- a bin with no mistakes, or with mistakes only, gets the noise of one more right and one more wrong answer;
- the upper end is at least the observed error plus 1.96 standard deviations, because noise only raises an error; and
  with few mistakes at least the observed error plus the distance to the upper end of the error rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.metrics.calibration_error import BinTable, cosine_coefficients, fixed_point, smooth_residuals, transform_grid
from recal.metrics.exact import (
    LEVEL,
    NO_INTERVAL,
    Interval,
    bounded_mean_interval,
    combined_interval,
    rate_interval,
    sum_interval,
)
from recal.metrics.resampling import Buckets
from recal.metrics.rows import RowScores, assign_bins, bin_classwise
from recal.metrics.scores import Runs, aurc_of, auroc_of, harmonic_numbers

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Starts = NDArray[np.intp]

# 97.5 % quantile of the normal distribution.
DEVIATIONS = 1.96
# Below this number of mistakes (or of right answers), intervals are extended to the exact ones. The exact ones assume
# rare events; the number falls to 0 as the error rate goes to one half.
FEW = 30
_STEPS = 40
# Means of skewed numbers, and the number of rows from which a draw can estimate its own standard error.
_SKEWED, _ENOUGH_ROWS = ("nll", "brier"), 30
# Smallest standard error of a draw, as a share of the sample's: a draw without the few large losses would otherwise
# make the upper end unbounded.
_LEAST_ERROR = 0.2
# Grid of the cumulative and of the smoothed gaps.
_POINTS = 512
# Class-wise errors resample blocks of rows, because each row contributes to every class.
_BLOCKS = 500
_CLASSWISE_NUMBERS = 4_000_000
# A probability of a wrong answer below this counts as this: the resolution of float32 next to 1.
_LEAST_DOUBT = 2.0**-24
# Fewer clusters give no interval: their variance is unknown.
FEWEST_CLUSTERS = 5


@dataclass
class Pattern:
    """Observed gaps, resampling noise around them, and the norm that turns gaps into an error."""

    observed: Vector
    norm: Callable[[Matrix], Vector]
    noise: list[Matrix] = field(default_factory=list)
    calibrated: list[Vector] = field(default_factory=list)  # errors of simulated calibrated models

    def add(self, drawn: Matrix, stretch: float = 1.0) -> None:
        self.noise.append(stretch * (drawn - self.observed))

    @property
    def size(self) -> float:
        """The observed error, in units of the norm."""
        return float(self.norm(self.observed[None])[0])

    def middle(self) -> float:
        """The factor for which the observed error is the median over the noise: it removes the bias of noise."""
        noise, size = np.concatenate(self.noise), self.size
        return _solve(lambda c: float(np.median(self.norm(c * self.observed + noise))) - size)

    def factors(self) -> Interval:
        """Smallest and largest factor on the observed gaps that agree with the observed error."""
        noise, size, tail = np.concatenate(self.noise), self.size, (1 - LEVEL) / 2
        low = _solve(lambda c: float(np.quantile(self.norm(c * self.observed + noise), 1 - tail)) - size)
        if self.calibrated and size <= float(np.quantile(np.concatenate(self.calibrated), 1 - tail)):
            low = 0.0
        high = _solve(lambda c: float(np.quantile(self.norm(c * self.observed + noise), tail)) - size)
        cautious = self.cautious()
        return low, max(high, _solve(lambda c: float(self.norm(c * self.observed[None])[0]) - cautious))

    def cautious(self) -> float:
        """The observed error plus 1.96 standard deviations of its noise, in units of the norm."""
        return self.size + DEVIATIONS * float(self.norm(self.observed + np.concatenate(self.noise)).std())


def _solve(rising: Callable[[float], float]) -> float:
    """The c >= 0 at which a rising function becomes positive; 0 if it is positive from the start."""
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

    `starts` groups the buckets, `gaps_of` turns the groups' sums of gaps and sizes into gaps, and `error` gives the
    error of a factor on the observed gaps. `in_units` turns a norm into an error, for gaps that are all zero. `hidden`
    is the standard deviation of each group's sum that resampling does not show.
    """

    starts: Starts
    gaps_of: Callable[[Matrix, Matrix], Matrix]
    norm: Callable[[Matrix], Vector]
    error: Callable[[float], float]
    hidden: Vector
    in_units: Callable[[float], float]

    def interval(self, pattern: Pattern) -> Interval:
        low, high = pattern.factors()
        if not pattern.observed.any():
            return 0.0, min(self.in_units(max(pattern.cautious(), 0.0)), 1.0)
        return self.error(low), self.error(high)


def tracked_errors(
    buckets: Buckets, values: dict[str, float], width: BinTable, mass: BinTable
) -> dict[str, TrackedError]:
    """All calibration errors as norms of gaps; `width` and `mass` are the bins of equal width and of equal mass."""
    n = buckets.n_samples
    by_width, by_mass = (_first_buckets(buckets.confidence, table.edges) for table in (width, mass))
    filled = width.counts > 0
    shares, gaps, accuracy = width.shares[filled], width.gaps[filled], width.accuracy[filled]
    chance = float(shares @ (accuracy * (1 - accuracy) / np.maximum(width.counts[filled] - 1, 1)))
    plain_l2 = float(np.sqrt(shares @ gaps**2))
    nearest = (buckets.confidence * _POINTS + 0.5).astype(np.intp)
    by_point = _firsts(nearest)
    coefficients = cosine_coefficients(buckets.confidence, buckets.counts * buckets.means["gap"] / n)
    bandwidth = max(values["smooth_ece"], 1e-3)
    # Variance per row that resampling hides: a bin with few rows, all right or all wrong, seems to have no noise.
    cautious = (width.correct[filled] + 1) / (width.counts[filled] + 2)
    unseen = np.maximum(cautious * (1 - cautious) - accuracy * (1 - accuracy), 0.0)
    per_bucket = buckets.counts * np.repeat(unseen, np.diff(np.r_[by_width, len(buckets.counts)]))

    def share(sums: Matrix, sizes: Matrix) -> Matrix:
        return sums / sizes.sum(axis=1, keepdims=True)

    def mean(sums: Matrix, sizes: Matrix) -> Matrix:
        # A bin that is empty in a draw tells nothing: take its gap as observed.
        return np.where(sizes > 0, sums / np.maximum(sizes, 1), gaps)

    def running(sums: Matrix, sizes: Matrix) -> Matrix:
        return np.cumsum(sums, axis=1) / sizes.sum(axis=1, keepdims=True)

    def smoothed(sums: Matrix, sizes: Matrix) -> Matrix:
        grid = np.zeros((len(sums), _POINTS + 1))
        grid[:, nearest[by_point]] = sums / sizes.sum(axis=1, keepdims=True)
        return smooth_residuals(transform_grid(grid), bandwidth)

    def times(value: float) -> Callable[[float], float]:
        return lambda factor: min(factor * value, 1.0)

    def tracked(
        starts: Starts,
        gaps_of: Callable[[Matrix, Matrix], Matrix],
        norm: Callable[[Matrix], Vector],
        error: Callable[[float], float],
        in_units: Callable[[float], float] = float,
    ) -> TrackedError:
        return TrackedError(starts, gaps_of, norm, error, np.sqrt(np.add.reduceat(per_bucket, starts)), in_units)

    return {
        "ece": tracked(by_width, share, _absolute_sum, times(values["ece"])),
        "mce": tracked(by_width, mean, _largest, times(values["mce"])),
        "adaptive_ece": tracked(by_mass, share, _absolute_sum, times(values["adaptive_ece"])),
        "debiased_ece": tracked(by_width, mean, lambda gaps: gaps**2 @ shares - chance, times(plain_l2), math.sqrt),
        "smooth_ece": tracked(by_point, smoothed, _absolute_sum, lambda factor: fixed_point(factor * coefficients)),
        "ks_error": tracked(_thin(_firsts(buckets.run), _POINTS), running, _largest, times(values["ks_error"])),
    }


def bootstrap(
    buckets: Buckets, values: dict[str, float], width: BinTable, mass: BinTable, draws: int, rng: np.random.Generator
) -> dict[str, Interval]:
    """Bootstrap intervals of all metrics except the class-wise ECE, see `classwise_interval`."""
    models = tracked_errors(buckets, values, width, mass)
    observed = buckets.counts.astype(np.float64)[None]
    patterns = {
        name: Pattern(model.gaps_of(*grouped(buckets, observed, model.starts, None))[0], model.norm)
        for name, model in models.items()
    }
    stretch = cluster_stretch(buckets.clusters)
    plain: dict[str, list[Vector]] = {}
    errors: dict[str, list[Vector]] = {name: [] for name in _SKEWED}
    for drawn in buckets.draw(draws, rng):
        for name, model in models.items():
            gaps = model.gaps_of(*grouped(buckets, drawn, model.starts, rng))
            if model.hidden.any():
                sizes = np.add.reduceat(observed, model.starts, axis=1)
                gaps = gaps + model.gaps_of(model.hidden * rng.standard_normal((len(drawn), len(model.starts))), sizes)
            patterns[name].add(gaps, stretch)
        for name, spread in plain_metrics(buckets, drawn, rng).items():
            plain.setdefault(name, []).append(spread)
        for name in _SKEWED:
            errors[name].append(standard_error(buckets, name, drawn))
    inflation = math.sqrt(design_effect(buckets))
    for gaps in buckets.simulate_calibrated(draws, rng):
        for name, model in models.items():
            sizes = np.add.reduceat(observed, model.starts, axis=1)
            null = model.gaps_of(inflation * np.add.reduceat(gaps, model.starts, axis=1), sizes)
            patterns[name].calibrated.append(model.norm(null))
    intervals = {name: model.interval(patterns[name]) for name, model in models.items()}
    # Buckets treat near confidences as equal, which shifts a rank metric slightly; shift its draws back.
    centre = plain_metrics(buckets, observed, None)
    for name, parts in plain.items():
        shift = values[name] - centre[name][0] if name in ("aurc", "auroc") else 0.0
        intervals[name] = _stretched(percentile_interval(np.concatenate(parts) + shift), values[name], stretch)
    if buckets.clusters is None:
        for name in _SKEWED:
            means, error = np.concatenate(plain[name]), np.concatenate(errors[name])
            own = float(standard_error(buckets, name, observed)[0])
            if buckets.n_samples >= _ENOUGH_ROWS and np.isfinite(means).all() and own > 0:
                low, high = percentile_interval((means - centre[name][0]) / np.maximum(error, _LEAST_ERROR * own))
                intervals[name] = max(values[name] - high * own, 0.0), values[name] - low * own
    return intervals


def cluster_stretch(clusters: NDArray[np.intp] | None) -> float:
    """Factor on the spread of draws of G clusters: they show (G - 1) / G of the variance, and G is small."""
    if clusters is None:
        return 1.0
    from scipy.special import stdtrit

    n_clusters = int(clusters.max()) + 1
    if n_clusters < 2:
        return math.nan
    return float(stdtrit(n_clusters - 1, 0.5 + LEVEL / 2)) / DEVIATIONS * math.sqrt(n_clusters / (n_clusters - 1))


def design_effect(buckets: Buckets) -> float:
    """How much larger the variance of the mean gap is than for independent rows, at least 1."""
    if buckets.clusters is None:
        return 1.0
    gaps = buckets.means["gap"][buckets.bucket]
    gaps = gaps - gaps.mean()
    return max(float(np.square(np.bincount(buckets.clusters, weights=gaps)).sum() / max(gaps @ gaps, 1e-300)), 1.0)


def _stretched(interval: Interval, value: float, stretch: float) -> Interval:
    if stretch == 1.0 or not math.isfinite(value):
        return interval
    return value - stretch * (value - interval[0]), value + stretch * (interval[1] - value)


def extend_for_few_mistakes(
    rows: RowScores,
    values: dict[str, float],
    intervals: dict[str, Interval],
    clusters: NDArray[np.intp] | None = None,
    wrong_nll: float | None = None,
) -> tuple[dict[str, Interval], dict[str, str]]:
    """Replace or extend bootstrap intervals by exact ones; return them with notes on those that need one.

    `wrong_nll` is the mean loss that a mistake would have, see `loss_if_wrong`.
    """
    n, wrong = len(rows), ~rows.correct
    rare = wrong if wrong.sum() <= n / 2 else rows.correct
    events = int(rare.sum()) if clusters is None else len(np.unique(clusters[rare]))
    result, notes = dict(intervals), dict[str, str]()
    if clusters is None:
        low, high = rate_interval(float(wrong.sum()), n)
    else:
        scale = _pseudo_scale(rare, clusters)
        low, high = (end / n for end in sum_interval(_by_cluster(np.ones(n), rare, clusters), scale))
        low, high = (low, min(high, 1.0)) if rare is wrong else (max(1.0 - high, 0.0), 1.0 - low)
    result["error_rate"] = (low, high) if clusters is None else _union((low, high), result["error_rate"])
    if math.isnan(values["auroc"]):
        notes["auroc"] = f"undefined without {'wrong' if rare is wrong else 'right'} answers"
    if events >= FEW * (1 - 2 * rare.mean()):
        return result, notes
    scores = dict[str, tuple[Vector, float]]()
    if rare is wrong:
        missing = _mean_wrong_nll(rows) if wrong_nll is None else wrong_nll
        scores["nll"] = rows.nll, missing
        scores["brier"] = rows.brier / rows.n_classes, float((1 + rows.confidence**2).mean()) / rows.n_classes
    for name, (column, pseudo) in scores.items():
        exact = _mean_with_rare_part(column, rare, pseudo, clusters)
        result[name] = _union(exact, result[name])
    sums = sum_interval(*_rare_scores(-np.log(_coverage(rows.confidence)), rare, 1.0, clusters))
    low, high = sums[0] / n, min(sums[1] / n, 1.0)
    result["aurc"] = _union((low, high) if rare is wrong else (1.0 - high, 1.0 - low), result["aurc"])
    if events:
        result["auroc"] = _union(bounded_mean_interval(values["auroc"], events), result["auroc"])
    margin = max(result["error_rate"][1] - values["error_rate"], values["error_rate"] - result["error_rate"][0])
    for name in ("ece", "mce", "adaptive_ece", "debiased_ece", "smooth_ece", "ks_error"):
        result[name] = result[name][0], min(max(result[name][1], values[name] + margin), 1.0)
    if "classwise_ece" in result:  # a mistake changes the gap of two classes
        high = values["classwise_ece"] + 2 * margin / rows.n_classes
        result["classwise_ece"] = result["classwise_ece"][0], min(max(result["classwise_ece"][1], high), 1.0)
    return result, notes


def _union(exact: Interval, drawn: Interval) -> Interval:
    if any(map(math.isnan, drawn)):
        return exact
    return min(exact[0], drawn[0]), max(exact[1], drawn[1])


def _coverage(confidence: Vector) -> Vector:
    """Share of rows with at least each row's confidence; rows of equal confidence count one half of each other."""
    order = np.sort(confidence)
    below, through = np.searchsorted(order, confidence, "left"), np.searchsorted(order, confidence, "right")
    return np.asarray((len(order) - 0.5 * (below + through)) / len(order))


def _by_cluster(column: Vector, rare: NDArray[np.bool_], clusters: NDArray[np.intp] | None) -> Vector:
    """Scores of the rare rows, summed within clusters: a cluster is one event."""
    if clusters is None:
        return column[rare]
    return np.asarray(np.bincount(np.unique(clusters[rare], return_inverse=True)[1], weights=column[rare]), np.float64)


def _pseudo_scale(rare: NDArray[np.bool_], clusters: NDArray[np.intp] | None) -> float:
    """Number of rare rows in an event that did not occur: the largest cluster of them, or a typical whole cluster."""
    if clusters is None:
        return 1.0
    if rare.any():
        return float(np.bincount(clusters[rare]).max())
    sizes = np.bincount(clusters)
    return float(sizes @ sizes / sizes.sum())


def _rare_scores(
    column: Vector, rare: NDArray[np.bool_], pseudo: float, clusters: NDArray[np.intp] | None
) -> tuple[Vector, float]:
    scores = _by_cluster(column, rare, clusters)
    return scores, max(pseudo * _pseudo_scale(rare, clusters), float(scores.mean()) if len(scores) else 0.0)


def _mean_with_rare_part(
    column: Vector, rare: NDArray[np.bool_], pseudo: float, clusters: NDArray[np.intp] | None
) -> Interval:
    """Interval of the mean of a column: normal for the common rows, exact for the sum over the rare ones."""
    n = len(column)
    scores, pseudo = _rare_scores(column, rare, pseudo, clusters)
    common = np.where(rare, 0.0, column)
    residuals = common - common.mean()
    if clusters is not None:
        residuals = np.bincount(clusters, weights=residuals)
    half = DEVIATIONS * math.sqrt(float(residuals @ residuals)) / n
    mean = float(common.mean())
    low, high = (end / n for end in sum_interval(scores, pseudo))
    if not math.isfinite(high):
        return mean - half + low, high
    below, above = combined_interval(mean, (mean - half, mean + half), float(scores.sum()) / n, (low, high))
    return max(below, 0.0), above


def _mean_wrong_nll(rows: RowScores) -> float:
    return _mean_loss(1.0 - rows.confidence)


def _mean_loss(doubt: Vector) -> float:
    """Mean of -log(doubt), where a doubt of 0 counts as the resolution of float32; infinite if most rows have none."""
    return math.inf if np.median(doubt) <= 0 else float(-np.log(np.maximum(doubt, _LEAST_DOUBT)).mean())


def loss_if_wrong(probs: Floats, confidence: Vector, most: int = 2000) -> float:
    """Mean NLL of a mistake if mistakes hit all rows alike and fall on the other classes as the model expects.

    This is cautious: mistakes are more likely in rows of low confidence, where they cost less. At most `most` rows,
    evenly spaced in confidence, are read.
    """
    chosen = np.argsort(confidence, kind="stable")[:: max(1, len(confidence) // most)]
    rest = np.sort(probs[chosen].astype(np.float64), axis=1)[:, :-1]
    rest /= np.maximum(rest.sum(axis=1, keepdims=True), _LEAST_DOUBT)
    spread = -(rest * np.log(np.maximum(rest, _LEAST_DOUBT))).sum(axis=1)
    return float(spread.mean()) + _mean_loss(1.0 - probs[chosen].max(axis=1).astype(np.float64))


def standard_error(buckets: Buckets, score: str, drawn: Matrix) -> Vector:
    """Standard error of a mean score in each draw."""
    n, means = buckets.n_samples, buckets.means[score]
    squares = means**2 + buckets.deviations[score] ** 2
    return np.asarray(np.sqrt(np.maximum(drawn @ squares / n - (drawn @ means / n) ** 2, 0.0) / n))


def grouped(buckets: Buckets, drawn: Matrix, starts: Starts, rng: np.random.Generator | None) -> tuple[Matrix, Matrix]:
    return buckets.sums("gap", drawn, starts, rng), np.add.reduceat(drawn, starts, axis=1)


def plain_metrics(buckets: Buckets, drawn: Matrix, rng: np.random.Generator | None) -> dict[str, Vector]:
    """Metrics that are means or ranks, one value for each draw."""
    total, everything, by_run = drawn.sum(axis=1), np.zeros(1, np.intp), _firsts(buckets.run)
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
    tail = (1 - LEVEL) / 2
    # Infinite draws cannot be interpolated.
    low, high = np.quantile(
        defined, [tail, 1 - tail], method="linear" if np.isfinite(defined).all() else "inverted_cdf"
    )
    return float(low), float(high)


def _first_buckets(confidence: Vector, edges: Vector) -> Starts:
    """First bucket of each bin that is not empty."""
    return _firsts(assign_bins(confidence, edges))


def _firsts(numbers: NDArray[np.intp]) -> Starts:
    """Where each run of equal numbers begins."""
    return np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])


def _thin(starts: Starts, most: int) -> Starts:
    """At most `most` of the starts, evenly spaced, including the first."""
    return starts[np.unique(np.linspace(0, len(starts) - 1, min(most, len(starts))).astype(np.intp))]


def _absolute_sum(gaps: Matrix) -> Vector:
    return np.abs(gaps).sum(axis=-1)


def _largest(gaps: Matrix) -> Vector:
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
        # Blocks are dealt to rows sorted by content, so that the order of rows in the data does not matter.
        # Rows that agree in both to nine digits are as good as equal.
        block[np.argsort(rows.confidence + 1e-9 * rows.brier)] = rng.permutation(n) % blocks
    else:
        blocks = min(int(clusters.max()) + 1, _BLOCKS)
        block = (rng.permutation(int(clusters.max()) + 1) % blocks)[clusters]
    gaps = np.zeros((blocks, k, len(edges) - 1))
    bin_classwise(probs, labels, edges, block, gaps)
    flat = gaps.reshape(blocks, size)
    hidden, expected = _classwise_variances(probs, labels, edges, flat.sum(axis=0))
    used = np.any(flat != 0, axis=0)
    flat, hidden = flat[:, used] / (n * k), np.sqrt(hidden[used]) / (n * k)
    pattern = Pattern(flat.sum(axis=0), _absolute_sum)
    weights = rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=draws).astype(np.float64)
    drawn = weights @ flat * (n / (weights @ np.bincount(block, minlength=blocks)))[:, None]
    pattern.add(drawn + hidden * rng.standard_normal(drawn.shape), cluster_stretch(clusters))
    # Outcomes of a calibrated model. Each mistake shows in two classes, so that the errors spread sqrt(2) as widely.
    counts = rng.poisson(expected[used], size=drawn.shape)
    null = np.abs(counts - expected[used]).sum(axis=1) / (n * k)
    pattern.calibrated.append(null.mean() + math.sqrt(2) * (null - null.mean()))
    value = float(np.abs(pattern.observed).sum())
    low, high = pattern.factors()
    return (min(low * value, 1.0), min(high * value, 1.0)), draws


def _classwise_variances(probs: Floats, labels: Labels, edges: Vector, gaps: Vector) -> tuple[Vector, Vector]:
    """Variances of the sum of gaps of each class and bin, (n_classes * n_bins,): hidden ones, and those if calibrated.

    Most bins of a class hold few rows and hardly any outcome, and resampling shows almost no variance. Their rate of
    outcomes is therefore taken as if there were one more row with the mean probability; what this adds is hidden.
    """
    k, n_bins = probs.shape[1], len(edges) - 1
    columns = [(assign_bins(column, edges), column * (1.0 - column)) for column in probs.T]
    counts = np.concatenate([np.bincount(bin_of, minlength=n_bins) for bin_of, _ in columns])
    calibrated = np.concatenate([np.bincount(bin_of, weights, n_bins) for bin_of, weights in columns])
    own = probs[np.arange(len(labels)), labels]
    outcomes = np.bincount(labels * n_bins + assign_bins(own, edges), minlength=k * n_bins)
    rows = np.maximum(counts, 1)
    seen = outcomes / rows
    cautious = (outcomes + (gaps + outcomes) / rows) / (rows + 1)  # gaps + outcomes: the sum of probabilities
    hidden = np.maximum(cautious * (1 - cautious) - seen * (1 - seen), 0.0) * counts
    return np.asarray(hidden), np.maximum(calibrated, 0.0)
