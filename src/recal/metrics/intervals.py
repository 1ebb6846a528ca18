"""95 % intervals of every metric by one mechanism: random weights of rows, or of whole clusters.

Every unit, a row or a cluster, gets an exponential weight (the Bayesian bootstrap; Rubin, 1981),
and every metric is computed from the weighted sums. Three additions make the intervals hold for
small samples:

- **One more answer.** A sample cannot show a mistake that it lacks. The upper ends come from draws
  with one more wrong answer, the lower ends from draws with one more right answer. In clusters it
  weighs as much as one independent answer, at most as an average cluster. For the error rate this
  is exactly the interval of Clopper and Pearson; for a sum over rare mistakes it is that of Fay and
  Feuer (1997).
- **Student's t.** Distances from the value are stretched from the normal to the t distribution,
  with the effective number of units (Kish) for its degrees of freedom.
- **Calibration errors** are norms of gaps, and noise can only raise a norm. The interval therefore
  contains the factors c for which the observed error is not among the 2.5 % lowest or highest
  errors that noise around c times the observed gaps gives. A bin with no mistakes, or with mistakes
  only, gets the noise of one more right and one more wrong answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Indices, Labels, Vector
from recal.clusters import effective_count
from recal.metrics.calibration_error import (
    assign_bins,
    classwise_gaps,
    cosine_coefficients,
    equal_mass_edges,
    equal_width_edges,
    fixed_point,
    smooth_residuals,
    transform_grid,
)
from recal.metrics.row_scores import RowScores, first_of_each, score_labelled

Interval = tuple[float, float]
Norm = Callable[[Vector], Vector]
CALIBRATION_ERRORS = ("ece", "mce", "adaptive_ece", "debiased_ece", "ks_error")
PAIRED = (*CALIBRATION_ERRORS, "brier", "nll", "error_rate", "aurc", "auroc")
LEVEL = 0.95
_LOW, _HIGH = (1 - LEVEL) / 2, (1 + LEVEL) / 2
NO_INTERVAL = (math.nan, math.nan)


def rate_interval(count: float, n: float, level: float = LEVEL) -> Interval:
    """Clopper-Pearson interval of a rate; `count` and `n` may be effective numbers, which are not
    whole.

    Examples
    --------
    >>> from recal.metrics.intervals import rate_interval
    >>> low, high = rate_interval(0, 200)
    >>> low, round(high, 4)  # no mistake among 200
    (0.0, 0.0183)
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2  # of a rate
    low = float(betaincinv(count, n - count + 1, tail)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, n - count, 1 - tail)) if count < n else 1.0
    return low, high


def combined_interval(
    one: float, first: Interval, two: float, second: Interval, correlation: float = 0.0
) -> Interval:
    """MOVER: interval of ``one + two`` from the interval of each; `correlation` is the correlation
    of the estimates.

    For a difference pass the negative of the second estimate, of its interval and of the
    correlation.

    Examples
    --------
    >>> from recal.metrics.intervals import combined_interval
    >>> combined_interval(1.0, (0.7, 1.3), 2.0, (1.6, 2.4))
    (2.5, 3.5)
    """
    below, above = (one - first[0], two - second[0]), (first[1] - one, second[1] - two)

    def length(a: float, b: float) -> float:
        return math.sqrt(max(a * a + b * b + 2 * correlation * a * b, 0.0))

    return one + two - length(*below), one + two + length(*above)


def percentile_interval(draws: Vector) -> Interval:
    """Middle 95 % of the draws; draws in which a metric is undefined are left out."""
    defined = draws[~np.isnan(draws)]
    if len(defined) == 0:
        return NO_INTERVAL
    return percentile(defined, _LOW), percentile(defined, _HIGH)


@dataclass(frozen=True)
class Weights:
    """Random weights of units, (draws, n_units), and of the answer that the sample lacks, (draws,
    1).

    `unit` is that of each row, a block if there are many; `missing` is multiplied by the share of
    all rows that an independent answer has. `effective` is Kish's effective number of clusters.
    """

    unit: Indices
    drawn: Vector
    missing: Vector
    effective: float

    @property
    def stretch(self) -> float:
        """Factor on the spread of draws: m units show (m - 1) / (m + 1) of their variance."""
        from scipy.special import ndtri, stdtrit

        m = max(self.effective, 2.0)
        student = float(stdtrit(m - 1, _HIGH) / ndtri(_HIGH))
        return student * math.sqrt((m + 1) / (m - 1))

    def sums(self, columns: NDArray[Any], draws: int | None = None) -> Vector:
        """Sums of each draw, from sums of each unit, (n_units, n_columns)."""
        return np.asarray(self.drawn[:draws] @ columns)


def draw_weights(
    rows: RowScores,
    clusters: Indices | None,
    draws: int,
    rng: np.random.Generator,
    most: int = 1000,
) -> Weights:
    """Draw weights of clusters or of rows, dealt into at most `most` blocks.

    A standard deviation over 1,000 blocks is accurate to 2 %. Rows are dealt in the order of their
    scores, so that their order in the data does not matter.
    """
    n, effective = len(rows), float(len(rows))
    if clusters is None:
        order = np.lexsort((rows.nll, rows.correct, rows.confidence))
        unit = np.empty(n, np.intp)
        unit[order] = np.arange(n)
    else:
        unit, sizes = clusters, np.bincount(clusters).astype(np.float64)
        effective = float(sizes.sum() ** 2 / (sizes @ sizes))
    n_units = int(unit.max()) + 1
    independent = max(effective_count((~rows.correct).astype(float), clusters), n_units)
    missing = rng.standard_exponential((draws, 1)) / independent
    if n_units > most:
        unit = (rng.permutation(n_units) % most)[unit]
    drawn = rng.standard_exponential((draws, min(n_units, most)))
    return Weights(unit, drawn, missing, effective)


@dataclass(frozen=True)
class Pattern:
    """Gaps whose norm is a calibration error: observed, drawn, and drawn with a unit of mistakes.

    `error` turns a factor on the observed gaps into a calibration error.
    """

    observed: Vector
    drawn: Vector
    more: Vector
    norm: Norm
    error: Callable[[float], float]
    stretch: float

    @property
    def size(self) -> float:
        return float(self.norm(self.observed))

    def noise(self, drawn: Vector) -> Vector:
        return self.stretch * (drawn - self.observed)

    def factor(self, quantile: float, noise: Vector) -> float:
        """The factor c for which the observed error is this quantile of the errors that noise
        around c times the observed gaps gives; 0 if noise alone gives larger ones.
        """

        def excess(c: float) -> float:
            errors = self.norm(c * self.observed + noise)
            return float(np.quantile(errors, quantile)) - self.size

        if self.size == 0.0 or excess(0.0) >= 0.0:
            return 0.0
        low, high = 0.0, 1.0
        while excess(high) < 0.0 and high < 64.0:
            low, high = high, 2.0 * high
        while high - low > 1e-4 * high:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if excess(middle) < 0.0 else (low, middle)
        return 0.5 * (low + high)

    def interval(self) -> Interval:
        """The upper end is at least the observed error plus the upper end of its noise."""
        noise, more = self.noise(self.drawn), self.noise(self.more)
        usual = float(self.norm(self.observed + noise).mean())
        largest = float(np.quantile(self.norm(self.observed + more), _HIGH))
        cautious = self.size + max(largest - usual, 0.0)
        if self.size == 0.0:
            return 0.0, min(cautious, 1.0)
        low = min(self.factor(_HIGH, noise), self.factor(_HIGH, more))
        high = max(self.factor(_LOW, noise), cautious / self.size)
        return min(self.error(low), 1.0), min(self.error(high), 1.0)


class BootstrapSlots:
    """One method's rows under random weights.

    Rows are gathered into slots of nearly equal confidence that never cross the edge of a bin, so
    that a draw costs the number of slots and not of rows.
    """

    def __init__(self, rows: RowScores, weights: Weights, n_bins: int, slots: int = 256) -> None:
        self.rows, self.weights = rows, weights
        n, confidence = len(rows), rows.confidence
        width, mass = equal_width_edges(n_bins), equal_mass_edges(confidence, n_bins)
        quantiles = np.sort(confidence)[np.arange(min(slots, n)) * n // min(slots, n)]
        cuts = np.unique(np.concatenate([width[1:-1], mass[1:-1], quantiles]))
        _, slot = np.unique(np.searchsorted(cuts, confidence, side="left"), return_inverse=True)
        n_units, n_slots = weights.drawn.shape[1], int(slot.max()) + 1

        def by_unit(values: NDArray[Any]) -> Vector:
            place = weights.unit * n_slots + slot
            table = np.bincount(place, values, n_units * n_slots).astype(np.float64)
            return table.reshape(n_units, n_slots)

        by_units = [by_unit(values) for values in (rows.correct, ~rows.correct, rows.gap)]
        self.drawn_right, self.drawn_wrong, self.drawn_gaps = map(weights.sums, by_units)
        self.right, self.wrong, self.gaps = (table.sum(axis=0) for table in by_units)
        self.sizes = self.right + self.wrong
        self.missing = weights.missing * self.sizes  # one independent answer more
        self.confidence = np.clip(np.bincount(slot, confidence) / self.sizes, 0.0, 1.0)
        bins = np.empty((2, n_slots), np.intp)
        bins[:, slot] = assign_bins(confidence, width), assign_bins(confidence, mass)
        self.by_width, self.by_mass = map(first_of_each, bins)

    def sums(self, values: Vector) -> Vector:
        """Weighted sums over all rows, (draws,)."""
        n_units = self.weights.drawn.shape[1]
        return self.weights.sums(np.bincount(self.weights.unit, values, n_units))

    def mean(self, values: Vector, missing: float) -> Vector:
        """Draws of a mean over rows; the answer that the sample lacks has the mean `missing`."""
        lacking = self.missing.sum(axis=1)
        total = (self.drawn_right + self.drawn_wrong).sum(axis=1) + lacking
        return (self.sums(values) + lacking * missing) / total

    def ranks(self, right: Vector, wrong: Vector) -> dict[str, Vector]:
        """Error rate, AURC and AUROC from weights of right and wrong answers, (draws, n_slots)."""
        sizes, errors = (right + wrong)[:, ::-1], wrong[:, ::-1]
        after = np.cumsum(sizes, axis=1)
        before, earlier = after - sizes, np.cumsum(errors, axis=1) - errors
        # After s rows with e errors, the risk is (e + r t) / (s + t) for t up to the slot's size.
        grown = np.log(after / np.where(before > 0.0, before, after))
        area = (errors + (earlier - errors / sizes * before) * grown).sum(axis=1)
        pairs = right.sum(axis=1) * wrong.sum(axis=1)
        below = np.cumsum(wrong, axis=1) - wrong / 2
        with np.errstate(invalid="ignore"):  # no pairs
            auroc = (right * below).sum(axis=1) / pairs
        total = after[:, -1]
        return {"error_rate": errors.sum(axis=1) / total, "aurc": area / total, "auroc": auroc}

    def patterns(self, rng: np.random.Generator) -> dict[str, Pattern]:
        """Every calibration error of the confidence as a norm of gaps."""
        observed = self.gaps, self.sizes
        sizes, lacking = self.drawn_right + self.drawn_wrong, self.missing
        # In proportion to the weights, because the mean of a bin divides by them.
        hidden = self._hidden() * rng.standard_normal(sizes.shape) * sizes / self.sizes
        drawn = self.drawn_gaps + hidden, sizes
        more = self.drawn_gaps + hidden + lacking * self.confidence, sizes + lacking
        coefficients = cosine_coefficients(self.confidence, self.gaps / len(self.rows))
        smooth = fixed_point(coefficients)
        bandwidth, points = max(smooth, 1e-3), (self.confidence * 512 + 0.5).astype(np.intp)
        shares = np.add.reduceat(self.sizes, self.by_width) / len(self.rows)

        def share(gaps: Vector, sizes: Vector) -> Vector:
            return gaps / sizes.sum(axis=-1, keepdims=True)

        def in_bins(starts: Indices) -> Callable[..., Vector]:
            return lambda *pair: np.add.reduceat(share(*pair), starts, axis=-1)

        def means(gaps: Vector, sizes: Vector) -> Vector:
            sums = (np.add.reduceat(column, self.by_width, axis=-1) for column in (gaps, sizes))
            return np.divide(*sums)

        def running(gaps: Vector, sizes: Vector) -> Vector:
            return np.cumsum(share(gaps, sizes), axis=-1)

        def smoothed(gaps: Vector, sizes: Vector) -> Vector:
            starts = first_of_each(points)
            grid = np.zeros((*gaps.shape[:-1], 513))
            grid[..., points[starts]] = np.add.reduceat(share(gaps, sizes), starts, axis=-1)
            return smooth_residuals(transform_grid(grid), bandwidth)

        def quadratic(gaps: Vector) -> Vector:
            return np.sqrt(gaps**2 @ shares)

        def pattern(gaps_of: Callable[..., Vector], norm: Norm) -> Pattern:
            own, noisy, worse = (gaps_of(*pair) for pair in (observed, drawn, more))
            size = float(norm(own))
            return Pattern(own, noisy, worse, norm, lambda c: c * size, self.weights.stretch)

        return {
            "ece": pattern(in_bins(self.by_width), _total_gap),
            "mce": pattern(means, _largest_gap),
            "adaptive_ece": pattern(in_bins(self.by_mass), _total_gap),
            "debiased_ece": pattern(means, quadratic),
            "smooth_ece": replace(
                pattern(smoothed, _total_gap), error=lambda c: fixed_point(c * coefficients)
            ),
            "ks_error": pattern(running, _largest_gap),
        }

    def _hidden(self) -> Vector:
        """Standard deviation of each slot's gaps that weights cannot show: a bin with few rows, all
        right or all wrong, seems to have no noise.
        """
        counts, right = (np.add.reduceat(c, self.by_width) for c in (self.sizes, self.right))
        rate, cautious = right / counts, (right + 1) / (counts + 2)
        variance = np.maximum(cautious * (1 - cautious) - rate * (1 - rate), 0.0)
        slots = np.diff(self.by_width, append=len(self.sizes))
        return np.sqrt(self.sizes * np.repeat(variance, slots))


def intervals_of(
    rows: RowScores,
    pair: tuple[Floats, Labels] | None,
    values: Mapping[str, float],
    n_bins: int,
    draws: int,
    clusters: Indices | None,
    rng: np.random.Generator,
) -> tuple[dict[str, Interval], dict[str, int]]:
    """Intervals of all metrics, and the number of draws behind each."""
    weights = draw_weights(rows, clusters, draws, rng)
    drawn = BootstrapSlots(rows, weights, n_bins)
    right, wrong, missing = drawn.drawn_right, drawn.drawn_wrong, drawn.missing
    fewer, more = drawn.ranks(right + missing, wrong), drawn.ranks(right, wrong + missing)
    # For the AUROC, the additional unit stands at the worst or the best end of the ranking.
    rare = np.minimum(right.sum(axis=1), wrong.sum(axis=1))
    known = rare / (rare + missing.sum(axis=1))
    fewer["auroc"] = drawn.ranks(right, wrong)["auroc"] * known
    more["auroc"] = fewer["auroc"] + 1.0 - known
    lacking, gaps = _mistakes(rows, pair, n_bins, rng)
    for name, column in (("brier", rows.brier / rows.n_classes), ("nll", rows.nll)):
        fewer[name], more[name] = (
            drawn.mean(column, column.min()),
            drawn.mean(column, lacking[name]),
        )
    centre = drawn.ranks(drawn.right[None], drawn.wrong[None])
    found = {}
    for name, above in more.items():
        # Slots treat similar confidences as equal, which shifts a rank metric slightly.
        shift = values[name] - float(centre[name][0]) if name in centre else 0.0
        ends = percentile(fewer[name], _LOW) + shift, percentile(above, _HIGH) + shift
        found[name] = _stretched(ends, values[name], weights.stretch)
    if clusters is None:
        found["error_rate"] = rate_interval(float((~rows.correct).sum()), len(rows))
    found |= {name: one.interval() for name, one in drawn.patterns(rng).items()}
    used = dict.fromkeys(found, draws)
    if pair is not None:
        pattern = _classwise_pattern(*pair, weights, n_bins, gaps, rng)
        found["classwise_ece"], used["classwise_ece"] = pattern.interval(), len(pattern.drawn)
    # A small calibration error is mostly noise and may lie above its interval.
    widened = {}
    for name, value in values.items():
        low, high = found[name]
        widened[name] = NO_INTERVAL if math.isnan(value) else (min(low, value), max(high, value))
    return widened, used


def _stretched(ends: Interval, value: float, factor: float) -> Interval:
    if not math.isfinite(value):
        return ends
    low, high = (value + factor * (end - value) for end in ends)
    return max(low, 0.0), high


def percentile(draws: Vector, share: float) -> float:
    """A quantile of draws of which some may be infinite, and cannot be interpolated."""
    return float(np.quantile(draws, share, method="inverted_cdf"))


def _mistakes(
    rows: RowScores, pair: tuple[Floats, Labels] | None, n_bins: int, rng: np.random.Generator
) -> tuple[dict[str, float], Vector]:
    """Mean scores and class-wise gaps of rows that are all wrong, with other classes drawn by the
    model's own odds. This is cautious: mistakes are likelier in rows of low confidence, where they
    cost less.
    """
    floor = 2.0**-24  # the resolution of float32 next to 1
    if pair is None:
        doubt, brier, gaps = 1.0 - rows.confidence, 2.0 * rows.confidence**2, np.zeros(0)
    else:
        # 2,000 rows, evenly spaced in confidence, are enough.
        chosen = np.argsort(rows.confidence, kind="stable")[:: max(1, len(rows) // 2000)]
        probs = pair[0][chosen].astype(np.float64)
        places = np.arange(len(probs))
        others = probs.copy()
        others[places, probs.argmax(axis=1)] = 0.0
        others += 1e-12 * (probs < probs.max(axis=1, keepdims=True))
        levels = np.cumsum(others, axis=1)
        labels = (levels <= rng.random((len(probs), 1)) * levels[:, -1:]).sum(axis=1)
        labels = np.minimum(labels, probs.shape[1] - 1)
        doubt, brier = probs[places, labels], score_labelled(probs, labels).brier
        gaps = classwise_gaps(probs, labels, equal_width_edges(n_bins))[0] / len(probs)
    loss = math.inf if np.median(doubt) <= 0 else float(-np.log(np.maximum(doubt, floor)).mean())
    return {"nll": loss, "brier": float(brier.mean()) / rows.n_classes}, gaps


def _classwise_pattern(
    probs: Floats,
    labels: Labels,
    weights: Weights,
    n_bins: int,
    mistakes: Vector,
    rng: np.random.Generator,
    most: int = 4_000_000,
) -> Pattern:
    """The class-wise ECE as a norm of gaps; many classes take fewer draws, about `most` numbers.

    Most bins of a class have few rows and hardly any outcomes, and weights show almost no noise.
    Their rate of outcomes is computed with one more row of the mean probability.
    """
    (n, k), edges = probs.shape, equal_width_edges(n_bins)
    n_units = weights.drawn.shape[1]
    draws = max(min(len(weights.drawn), 100), min(len(weights.drawn), most // (k * n_bins)))
    by_unit = classwise_gaps(probs, labels, edges, weights.unit, n_units).reshape(n_units, -1)
    bins = (assign_bins(column, edges) for column in probs.T)
    counts = np.concatenate([np.bincount(column, minlength=n_bins) for column in bins])
    own = labels * n_bins + assign_bins(probs[np.arange(n), labels], edges)
    outcomes = np.bincount(own, minlength=k * n_bins)
    used = counts > 0
    by_unit, counts, outcomes = by_unit[:, used], counts[used], outcomes[used]
    observed = by_unit.sum(axis=0)
    rate = outcomes / counts
    cautious = (outcomes + (observed + outcomes) / counts) / (counts + 1)
    hidden = np.sqrt(np.maximum(cautious * (1 - cautious) - rate * (1 - rate), 0.0) * counts)
    total = weights.sums(np.bincount(weights.unit, minlength=n_units), draws)[:, None]
    drawn = weights.sums(by_unit, draws) + hidden * rng.standard_normal((draws, len(counts)))
    lacking = weights.missing[:draws] * n
    more = (drawn + lacking * mistakes.reshape(-1)[used]) / (total + lacking)
    gaps = observed / (n * k), drawn / (total * k), more / k
    size = float(np.abs(gaps[0]).sum())
    return Pattern(*gaps, _total_gap, lambda c: c * size, weights.stretch)


def paired_draws(
    methods: Sequence[RowScores],
    draws: int,
    n_bins: int = 15,
    random_state: int | None = 0,
    clusters: Indices | None = None,
) -> dict[str, Vector]:
    """Draws of each metric of `PAIRED`, (n_methods, draws), with the same weights for all methods,
    so that sampling noise cancels in a difference.

    Draws of a calibration error are centred at the error without the bias from noise. This bias is
    large for a calibrated model and small for a miscalibrated one, so it would not cancel.
    """
    weights = draw_weights(methods[0], clusters, draws, np.random.default_rng(random_state))
    result = {name: np.empty((len(methods), draws)) for name in PAIRED}
    for index, rows in enumerate(methods):
        drawn = BootstrapSlots(rows, weights, n_bins)
        total = (drawn.drawn_right + drawn.drawn_wrong).sum(axis=1)
        values = drawn.ranks(drawn.drawn_right, drawn.drawn_wrong)
        values["brier"] = drawn.sums(rows.brier / rows.n_classes) / total
        values["nll"] = drawn.sums(rows.nll) / total
        patterns = drawn.patterns(np.random.default_rng(random_state))
        for name in CALIBRATION_ERRORS:
            pattern = patterns[name]
            errors = pattern.norm(pattern.drawn)
            values[name] = (
                errors
                - errors.mean()
                + pattern.factor(0.5, pattern.noise(pattern.drawn)) * pattern.size
            )
        for name, column in values.items():
            centre = column.mean()
            finite = math.isfinite(centre)
            result[name][index] = centre + weights.stretch * (column - centre) if finite else column
    return result


def _total_gap(gaps: Vector) -> Vector:
    return np.abs(gaps).sum(axis=-1)


def _largest_gap(gaps: Vector) -> Vector:
    return np.abs(gaps).max(axis=-1)
