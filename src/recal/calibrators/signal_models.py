"""Fits for `SignalCalibration`: the transformation of each signal, and logistic regressions.

All members of its mixture are ridge regressions on columns of one design: a line per signal, the
bends of its curve, an indicator if it is missing, and the levels of categories, alone and times
each line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.checks import Indices, Vector
from recal.maps.arrays import sigmoid
from recal.maps.signals import (
    CATEGORY,
    IDENTITY,
    LOG_ODDS,
    LOGARITHM,
    RANKS,
    SignalEncoding,
    SignalMap,
    basis,
)
from recal.schema import LARGEST
from recal.solvers.convex import Dense, minimise

N_KNOTS = 5
# The ridge of a signal's line; in a fit to few answers, a weaker one follows single answers.
LINE = 3.0


def choose_kinds(values: Vector, right: Vector, counts: Vector, n_levels: Indices) -> Indices:
    """Return the transformation of each signal under which it predicts best alone.

    Every transformation is tried on every signal; each leaves one slope to fit, so that the
    likelihood of the same rows compares them. Log-odds are tried for signals of which at least 99 %
    lie in [0, 1]; the others are extraction errors. Logarithms are tried for signals that are never
    negative.
    """
    finite, is_number = np.where(np.isfinite(values), values, np.nan), n_levels == 0
    inside = np.isnan(finite) | ((finite >= 0.0) & (finite <= 1.0))
    can_be = {
        IDENTITY: is_number,
        LOGARITHM: is_number & ~(finite < 0.0).any(axis=0),
        LOG_ODDS: is_number & (inside.mean(axis=0) >= 0.99),
        RANKS: is_number,
    }
    losses = np.full((len(can_be), values.shape[1]), np.inf)
    for kind, possible in can_be.items():
        numbers = np.flatnonzero(possible)
        kinds = np.where(n_levels > 0, CATEGORY, IDENTITY)
        kinds[numbers] = kind
        parts = encoding_of(values, kinds, n_levels).encode(values)
        scaled, missing = (part[:, numbers] for part in parts)
        losses[kind, numbers] = line_losses(scaled, missing, right, counts)
    return np.where(n_levels > 0, CATEGORY, losses.argmin(axis=0))


def encoding_of(values: Vector, kind: Indices, n_levels: Indices) -> SignalEncoding:
    """Return the encoding with these transformations, scaled to the finite values."""
    # Well below LARGEST, which their mean must not exceed by rounding.
    finite = np.where(np.isfinite(values), np.clip(values, -1e90, 1e90), np.nan)
    n_signals = finite.shape[1]
    low, high = np.ones(n_signals), np.ones(n_signals)
    n_knots = 33 if (kind == RANKS).any() else 1
    knots, ranks = np.zeros((n_signals, n_knots)), np.zeros((n_signals, n_knots))
    for place in np.flatnonzero(kind != CATEGORY).tolist():
        column = finite[~np.isnan(finite[:, place]), place]
        # 0 and 1 have no log-odds: they count as half as far from the edge as any other value.
        low[place] = _smallest(column) / 2.0
        high[place] = _smallest(1.0 - column) / 2.0
        if kind[place] == RANKS and len(column):
            distinct, count = np.unique(column, return_counts=True)
            knots[place] = np.quantile(column, np.linspace(0.0, 1.0, n_knots), method="nearest")
            middle = (np.cumsum(count) - 0.5 * count) / len(column)
            ranks[place] = np.interp(knots[place], distinct, middle)
    zeros, wide = np.zeros(n_signals), np.full(n_signals, LARGEST)
    points = kind, low, high, knots, ranks
    plain = SignalEncoding(*points, -wide, wide, zeros, zeros + 1.0, n_levels)
    scaled, missing = plain.encode(finite)
    scaled = np.where(missing > 0.5, np.nan, scaled)
    scaled[0, np.isnan(scaled).all(axis=0)] = 0.0  # a column without any value
    lower, upper = np.nanmin(scaled, axis=0), np.nanmax(scaled, axis=0)
    # The standard deviation of equal numbers may be a rounding error.
    spread = np.maximum(np.where(lower < upper, np.nanstd(scaled, axis=0), 1.0), 1e-9)
    return SignalEncoding(*points, lower, upper, np.nanmean(scaled, axis=0), spread, n_levels)


def _smallest(values: Vector) -> float:
    """Return the smallest positive value, 1 if there is none."""
    positive = values[values > 0.0]
    return max(float(positive.min()), 1e-90) if len(positive) else 1.0


def line_losses(scaled: Vector, missing: Vector, right: Vector, counts: Vector) -> Vector:
    """Return the negative log-likelihood under the logistic regression on each signal alone,
    (n_signals,): an intercept, a slope, and a weight of a missing value.
    """
    log_odds, penalty = np.empty(scaled.shape), np.array([1e-6, LINE, LINE])
    for place in range(scaled.shape[1]):
        columns = np.column_stack([np.ones(len(right)), scaled[:, place], missing[:, place]])
        line = ridge(columns, right, counts, penalty)
        log_odds[:, place] = line[0] + scaled[:, place] * line[1] + missing[:, place] * line[2]
    return counts @ (np.logaddexp(0.0, log_odds) - right[:, None] * log_odds)


def signal_gains(scaled: Vector, missing: Vector, right: Vector, counts: Vector) -> Vector:
    """Return the gain in log-likelihood that each signal brings alone, (n_signals,)."""
    mean = np.average(right, weights=counts)
    without = -counts.sum() * (mean * np.log(mean) + (1.0 - mean) * np.log1p(-mean))
    return without - line_losses(scaled, missing, right, counts)


@dataclass(frozen=True)
class Design:
    """The columns of all regressions on the same rows.

    Attributes
    ----------
    columns : (n_samples, n_columns); the first is 1
    sort : (n_columns,) "intercept", "line", "bend", "missing", "level", "slope" or "product"
    signal, level, partner : (n_columns,) the signal, the level and the second signal that a column
        belongs to, -1 if none
    knots : (n_signals, N_KNOTS) of the curves
    curves : the signal of each curve, the terms of its columns, and their means
    n_levels : the number of levels of all categories
    """

    columns: Vector
    sort: NDArray[np.str_]
    signal: Indices
    level: Indices
    partner: Indices
    knots: Vector
    curves: tuple[tuple[int, Vector, Vector], ...]
    n_levels: int

    @classmethod
    def of(cls, encoding: SignalEncoding, values: Vector, order: Indices) -> Design:
        """Build the columns. `order` lists the numeric signals, the best ones first.

        Only the best signals get curves (20 of them), products (15) and slopes by level (200), so
        that the number of columns stays small beside the number of rows.
        """
        scaled, missing = encoding.encode(values)
        n_rows, n_signals = scaled.shape
        n_levels = int(encoding.n_levels.sum())
        knots = np.zeros((n_signals, N_KNOTS))
        parts: list[Vector] = [np.ones((n_rows, 1))]
        names: list[tuple[str, int, int, int]] = [("intercept", -1, -1, -1)]
        curves = []
        for rank, place in enumerate(order.tolist()):
            present = missing[:, place] < 0.5
            knots[place] = np.quantile(scaled[present, place], np.linspace(0.0, 1.0, N_KNOTS))
            terms = basis(scaled[:, [place]], missing[:, [place]], knots[[place]])
            stacked = np.hstack(terms)
            mean = stacked[present].mean(axis=0)
            change = _orthogonal(stacked[present] - mean, N_KNOTS if rank < 20 else 1)
            curves.append((place, change, mean))
            parts.append((stacked - mean) @ change * present[:, None])
            # A signal that is always the same has no column.
            sorts = ["line"] + ["bend"] * (N_KNOTS - 1)
            names += [(sort, place, -1, -1) for sort in sorts[: change.shape[1]]]
            if not present.all():
                parts.append(missing[:, [place]])
                names.append(("missing", place, -1, -1))
        one_hot = np.zeros((n_rows, n_levels + 1))
        for index in encoding.levels(values):
            one_hot[np.arange(n_rows), index] = 1.0
        one_hot = one_hot[:, :-1]  # the last one means no level
        parts.append(one_hot)
        names += [("level", -1, level, -1) for level in range(n_levels)]
        n_slopes = min(n_rows // 2, 200) // max(n_levels, 1)
        for place in order[: n_slopes if n_levels else 0]:
            parts.append(scaled[:, [place]] * one_hot)
            names += [("slope", int(place), level, -1) for level in range(n_levels)]
        pairs = [(a, b) for a in range(len(order)) for b in range(a)][:15]
        for first, second in pairs:
            parts.append(scaled[:, [order[first]]] * scaled[:, [order[second]]])
            names.append(("product", int(order[first]), -1, int(order[second])))
        sort, *owners = zip(*names)
        signal, level, partner = (np.array(owner) for owner in owners)
        columns = np.hstack(parts)
        return cls(columns, np.array(sort), signal, level, partner, knots, tuple(curves), n_levels)

    def caution(self, gains: Vector) -> Vector:
        """Return the factor of each column's penalty: above 1 if its signal tells little alone.

        Twice the gain of a useless signal is 1 on average, and 10 is beyond doubt. The best of m
        useless signals gains 2 log m by chance. Half of them gain less than the median, 0.455,
        which tells m. Slopes by level and products are spared: a signal may tell something only
        there.
        """
        numbers = [place for place, _, _ in self.curves]
        useless = 2.0 * np.sum(2.0 * gains[numbers] < 0.455)
        beyond = 2.0 * gains - 2.0 * np.log(max(useless, 1.0))
        factors = np.clip(10.0 / np.maximum(beyond, 1e-9), 1.0, 100.0)
        alone = (self.signal >= 0) & (self.level < 0) & (self.partner < 0)
        return np.where(alone, factors[self.signal], 1.0)

    def of_one(self, gains: Vector) -> Vector:
        """Return the penalties of Platt scaling of the one signal that gains most."""
        numbers = [place for place, _, _ in self.curves]
        best = max(numbers, key=lambda place: gains[place], default=-2)
        own = (self.signal == best) & np.isin(self.sort, ("line", "missing"))
        penalty = np.where(own, LINE, np.inf)
        penalty[0] = 1e-6
        return penalty

    def map_of(
        self,
        encoding: SignalEncoding,
        members: Mapping[str, Regression],
        shares: Mapping[str, float],
        slope: float,
    ) -> SignalMap:
        """Turn the coefficients of the columns into the map of a mixture."""
        n_signals, n_members = len(self.knots), len(shares)
        intercepts = np.zeros(n_members)
        weights = np.zeros((n_members, n_signals, N_KNOTS + 1))
        by_level = np.zeros((n_members, self.n_levels + 1, n_signals + 1))
        products = np.zeros((n_members, n_signals, n_signals))
        lost, levels, pairs = self.sort == "missing", self.level >= 0, self.partner >= 0
        for number, name in enumerate(shares):
            solution = members[name].solution
            intercepts[number] = solution[0]
            for place, change, mean in self.curves:
                own = (self.signal == place) & np.isin(self.sort, ("line", "bend"))
                curve = change @ solution[own]
                weights[number, place, :N_KNOTS] = curve
                # The mean of a curve counts only if the signal is present.
                intercepts[number] -= mean @ curve
                weights[number, place, -1] = mean @ curve
            weights[number, self.signal[lost], -1] += solution[lost]
            by_level[number, self.level[levels], self.signal[levels] + 1] = solution[levels]
            products[number, self.signal[pairs], self.partner[pairs]] = solution[pairs]
        terms = intercepts, self.knots, weights, by_level, products
        return SignalMap(encoding, np.array(list(shares.values())), *terms, slope)


def _orthogonal(terms: Vector, most: int) -> Vector:
    """Return the matrix that turns centred terms into uncorrelated columns of variance 1.

    The first column is the line. Terms that add nothing, as with few distinct values, are left out.
    """
    _, upper = np.linalg.qr(terms)
    scale = np.abs(np.diag(upper))
    kept = np.flatnonzero(scale > 1e-6 * np.sqrt(len(terms)))[:most]
    change = np.zeros((terms.shape[1], len(kept)))
    _, upper = np.linalg.qr(terms[:, kept])
    change[kept] = np.linalg.inv(upper) * np.sign(np.diag(upper)) * np.sqrt(len(terms))
    return change


def ridge(
    columns: Vector,
    right: Vector,
    counts: Vector,
    penalty: Vector,
    start: Vector | float = 0.0,
    offset: Vector | float = 0.0,
) -> Vector:
    """Return the logistic regression with a ridge penalty per column; a column with an infinite
    penalty has weight 0. `offset` is added to the log-odds.
    """
    free = np.isfinite(penalty)
    solution = np.where(free, start, 0.0)
    problem = _Ridge(columns[:, free], right, counts, penalty[free], offset)
    found = minimise(problem, solution[free], tol=1e-7 * len(right), warn=False)
    solution[free] = found.point
    return solution


@dataclass
class _Ridge(Dense):
    """Logistic regression with a ridge penalty per column."""

    columns: Vector
    right: Vector
    counts: Vector
    penalty: Vector
    offset: Vector | float = 0.0

    def evaluate(self, point: Vector) -> float:
        self.point, self.log_odds = point, self.columns @ point + self.offset
        losses = np.logaddexp(0.0, self.log_odds) - self.right * self.log_odds
        return float(self.counts @ losses + 0.5 * self.penalty @ point**2)

    def derivatives(self) -> tuple[Vector, Vector]:
        chance = sigmoid(self.log_odds)
        error, weight = self.counts * (chance - self.right), self.counts * chance * (1.0 - chance)
        hessian = (self.columns.T * weight) @ self.columns
        hessian[np.diag_indices_from(hessian)] += self.penalty
        return self.columns.T @ error + self.penalty * self.point, hessian


@dataclass(frozen=True)
class Regression:
    """A regression on some columns of a design.

    `penalty` is infinite for the columns that it does not use, `solution` is fitted to all rows,
    and `left_out` holds the log-odds of each row from a fit to the other folds.
    """

    penalty: Vector
    solution: Vector
    left_out: Vector
    loss: float


def fit_regressions(
    encoding: SignalEncoding, values: Vector, right: Vector, counts: Vector, folds: Indices | None
) -> tuple[Design, dict[str, Regression]]:
    """Return the regressions to be mixed, from the simplest to the most flexible; without folds
    only Platt scaling of the best signal.
    """
    scaled, missing = encoding.encode(values)
    n_folds = 0 if folds is None else int(folds.max()) + 1
    parts = [*(folds != fold for fold in range(n_folds)), np.ones(len(right), dtype=bool)]
    gains = [signal_gains(scaled[rows], missing[rows], right[rows], counts[rows]) for rows in parts]
    absent = missing.mean(axis=0)
    tells = (encoding.lower < encoding.upper) | ((absent > 0.0) & (absent < 1.0))
    numbers = np.flatnonzero((encoding.n_levels == 0) & tells)
    design = Design.of(encoding, values, numbers[np.argsort(-gains[-1][numbers])])
    cautions = [design.caution(each) for each in gains]

    def cross_fit(penalties: Sequence[Vector]) -> Regression:
        whole = ridge(design.columns, right, counts, penalties[-1])
        left_out = np.zeros(len(right))
        for inner, penalty in zip(parts[:-1], penalties):
            part = ridge(design.columns[inner], right[inner], counts[inner], penalty, whole)
            left_out[~inner] = design.columns[~inner] @ part
        loss = mean_loss(sigmoid(left_out), right, counts)
        return Regression(penalties[-1], whole, left_out, loss)

    def regression(**penalties: float) -> Regression:
        of = {"intercept": 1e-6, **penalties}
        penalty = np.array([of.get(sort, np.inf) for sort in design.sort.tolist()])
        return cross_fit([penalty * caution for caution in cautions])

    fitted = {"Platt scaling": cross_fit([design.of_one(each) for each in gains])}
    if folds is None:
        return design, fitted
    lines = {"line": LINE, "missing": LINE}
    fitted["ridge"] = regression(**lines, level=3.0)
    levels = {"level": 10.0, "slope": 30.0}
    if design.n_levels:
        fitted["slopes"] = regression(**lines, **levels)
        # Categories that differ much need a weaker penalty.
        much = {"level": 3.0, "slope": 5.0}
        if (other := regression(**lines, **much)).loss < fitted["slopes"].loss:
            levels, fitted["slopes"] = much, other
    fitted["splines"] = regression(**lines, **levels, bend=10.0, product=10.0)
    return design, fitted


def mean_loss(probs: Vector, right: Vector, counts: Vector) -> float:
    """Return the negative log-likelihood per answer."""
    likelihood = np.where(right > 0.5, probs, 1.0 - probs)
    return float(np.average(-np.log(np.maximum(likelihood, 1e-12)), weights=counts))


def importance(
    design: Design, fitted: Regression, right: Vector, counts: Vector, n_levels: Indices
) -> Vector:
    """Return how much the loss per row would rise without each signal, (n_signals,), in one pass.

    Around the solution the loss is nearly quadratic, so that its curvature tells the rise on the
    rows of the fit. Such rows favour every signal by its effective number of parameters, which is
    subtracted: the rise without a useless signal is 0 on average, or slightly negative.
    """
    free = np.isfinite(fitted.penalty)
    solution, penalty = fitted.solution[free], fitted.penalty[free]
    problem = _Ridge(design.columns[:, free], right, counts, penalty)
    problem.evaluate(solution)
    inverse = np.linalg.inv(problem.derivatives()[1])
    rises, first = np.zeros(len(n_levels)), 0
    for place, count in enumerate(n_levels.tolist()):
        own = (design.signal == place) | (design.partner == place)
        own |= (design.level >= first) & (design.level < first + count)
        first += count
        if len(own := np.flatnonzero(own[free])):
            block = inverse[np.ix_(own, own)]
            parameters = len(own) - penalty[own] @ np.diag(block)
            quadratic = solution[own] @ np.linalg.solve(block, solution[own])
            rises[place] = 0.5 * quadratic - parameters
    return rises / counts.sum()
