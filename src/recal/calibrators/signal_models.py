"""Fits for `SignalCalibration`: the transformation of each signal, and logistic regressions.

All members of its mixture are ridge regressions on columns of one design: a line per signal, the
bends of its curve, an indicator if it is missing, and the levels of categories, alone and times
each line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recal.maps.arrays import sigmoid
from recal.maps.signals import CATEGORY, IDENTITY, LOG_ODDS, LOGARITHM, RANKS, SignalEncoding, basis
from recal.schema import LARGEST
from recal.solvers.convex import Dense, minimise

Vector = NDArray[np.float64]
Rows = NDArray[np.intp]

N_KNOTS = 5


def fit_encoding(
    values: Vector, right: Vector, counts: Vector, n_levels: Rows, folds: Rows
) -> SignalEncoding:
    """Choose the transformation of each signal by cross-validated likelihood, and fit the scale."""
    return encoding_of(values, choose_kinds(values, right, counts, n_levels, folds), n_levels)


def choose_kinds(
    values: Vector,
    right: Vector,
    counts: Vector,
    n_levels: Rows,
    folds: Rows,
    most_rows: int = 4000,
) -> Rows:
    """Return the transformation of each signal with the highest cross-validated likelihood.

    Every transformation is tried on every signal alone. Log-odds are tried for signals of which at
    least 99 % lie in [0, 1]; the others are extraction errors. Logarithms are tried for signals
    that are never negative. More than `most_rows` rows would choose the same.
    """
    some = np.linspace(0, len(folds) - 1, min(len(folds), most_rows)).astype(np.intp)
    finite = np.where(np.isfinite(values), values, np.nan)
    inside = np.isnan(finite) | ((finite >= 0.0) & (finite <= 1.0))
    can_be = {
        IDENTITY: np.ones(values.shape[1], dtype=bool),
        LOGARITHM: ~(finite < 0.0).any(axis=0),
        LOG_ODDS: inside.mean(axis=0) >= 0.99,
        RANKS: np.ones(values.shape[1], dtype=bool),
    }
    losses = np.full((len(can_be), values.shape[1]), np.inf)
    right, counts, folds = right[some], counts[some], folds[some]
    for kind, possible in can_be.items():
        numbers = np.flatnonzero(possible & (n_levels == 0))
        kinds = np.where(n_levels > 0, CATEGORY, IDENTITY)
        kinds[numbers] = kind
        scaled, missing = encoding_of(values, kinds, n_levels).encode(values[some])
        scaled, missing = scaled[:, numbers], missing[:, numbers]
        total = np.zeros(len(numbers))
        for fold in range(int(folds.max()) + 1):
            inner, outer = folds != fold, folds == fold
            lines = fit_lines(scaled[inner], missing[inner], right[inner], counts[inner])
            total += line_losses(lines, scaled[outer], missing[outer], right[outer], counts[outer])
        losses[kind, numbers] = total
    return np.where(n_levels > 0, CATEGORY, losses.argmin(axis=0))


def encoding_of(values: Vector, kind: Rows, n_levels: Rows, most_knots: int = 33) -> SignalEncoding:
    """Return the encoding with these transformations, scaled to the finite values."""
    finite = np.where(np.isfinite(values), values, np.nan)
    n_signals = finite.shape[1]
    low, high = np.ones(n_signals), np.ones(n_signals)
    n_knots = most_knots if (kind == RANKS).any() else 1
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
    plain = SignalEncoding(kind, low, high, knots, ranks, -wide, wide, zeros, zeros + 1.0, n_levels)
    scaled, missing = plain.encode(finite)
    scaled = np.where(missing > 0.5, np.nan, scaled)
    scaled[0, np.isnan(scaled).all(axis=0)] = 0.0  # a column without any value
    return replace(
        plain,
        lower=np.nanmin(scaled, axis=0),
        upper=np.nanmax(scaled, axis=0),
        centre=np.nanmean(scaled, axis=0),
        spread=np.maximum(np.nanstd(scaled, axis=0), 1e-9),
    )


def _smallest(values: Vector) -> float:
    """Return the smallest positive value, 1 if there is none."""
    positive = values[values > 0.0]
    return max(float(positive.min()), 1e-90) if len(positive) else 1.0


def fit_lines(scaled: Vector, missing: Vector, right: Vector, counts: Vector) -> Vector:
    """Return the logistic regression on each signal alone, (n_signals, 3): intercept, slope and
    weight of a missing value.
    """
    mean = float(np.clip(np.average(right, weights=counts), 1e-3, 1.0 - 1e-3))
    start = np.tile([np.log(mean / (1.0 - mean)), 0.0, 0.0], (scaled.shape[1], 1))
    problem = _Lines(scaled, missing, right, counts)
    return minimise(problem, start, tol=1e-7 * len(right), warn=False).point


class _Lines:
    """All regressions on one signal as one problem, whose Hessian has a block for each of them."""

    penalty = np.array([1e-6, 0.01, 1.0])

    def __init__(self, scaled: Vector, missing: Vector, right: Vector, counts: Vector) -> None:
        self.scaled, self.missing, self.right, self.counts = scaled, missing, right, counts

    def evaluate(self, point: Vector) -> float:
        self.point = point
        losses = line_losses(point, self.scaled, self.missing, self.right, self.counts)
        return float(losses.sum() + 0.5 * (self.penalty * point**2).sum())

    def gradient(self) -> Vector:
        chance = sigmoid(_lines_at(self.point, self.scaled, self.missing))
        error = self.counts[:, None] * (chance - self.right[:, None])
        weight = self.counts[:, None] * chance * (1.0 - chance)
        self.blocks = np.zeros((len(self.point), 3, 3)) + np.diag(self.penalty)
        parts = (np.ones_like(self.scaled), self.scaled, self.missing)
        for row, first in enumerate(parts):
            for column, second in enumerate(parts):
                self.blocks[:, row, column] += (weight * first * second).sum(axis=0)
        slope = np.stack([(error * part).sum(axis=0) for part in parts], axis=1)
        return slope + self.penalty * self.point

    def hessian_times(self, direction: Vector) -> Vector:
        return np.einsum("sij,sj->si", self.blocks, direction)

    def precondition(self, residual: Vector) -> Vector:
        return np.linalg.solve(self.blocks, residual[..., None])[..., 0]


def _lines_at(lines: Vector, scaled: Vector, missing: Vector) -> Vector:
    return np.asarray(lines[:, 0] + scaled * lines[:, 1] + missing * lines[:, 2])


def line_losses(
    lines: Vector, scaled: Vector, missing: Vector, right: Vector, counts: Vector
) -> Vector:
    """Return the negative log-likelihood under each signal's own regression, (n_signals,)."""
    log_odds = _lines_at(lines, scaled, missing)
    return counts @ (np.logaddexp(0.0, log_odds) - right[:, None] * log_odds)


@dataclass(frozen=True)
class Alone:
    """What each signal tells alone: its regression, and the gain in log-likelihood it brings."""

    lines: Vector
    gains: Vector

    @classmethod
    def of(cls, scaled: Vector, missing: Vector, right: Vector, counts: Vector) -> Alone:
        lines = fit_lines(scaled, missing, right, counts)
        mean = np.average(right, weights=counts)
        without = -counts.sum() * (mean * np.log(mean) + (1.0 - mean) * np.log1p(-mean))
        return cls(lines, without - line_losses(lines, scaled, missing, right, counts))

    @property
    def caution(self) -> Vector:
        """The factor of each signal's penalty: above 1 if the signal tells little alone.

        Twice the gain of a useless signal is 1 on average, and 10 is beyond doubt.
        """
        return np.clip(10.0 / np.maximum(2.0 * self.gains, 1e-9), 1.0, 100.0)


@dataclass(frozen=True)
class Member:
    """The coefficients of one member of the mixture; see `SignalMap`."""

    intercept: float
    weights: Vector
    by_level: Vector
    products: Vector


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
    signal: Rows
    level: Rows
    partner: Rows
    knots: Vector
    curves: tuple[tuple[int, Vector, Vector], ...]
    n_levels: int

    @classmethod
    def of(
        cls,
        encoding: SignalEncoding,
        values: Vector,
        order: Rows,
        *,
        most_curves: int = 20,
        most_products: int = 15,
        most_slopes: int = 200,
    ) -> Design:
        """Build the columns. `order` lists the numeric signals, the best ones first.

        Only the best signals get curves, products, and slopes by level, so that the number of
        columns stays small beside the number of rows.
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
            change = _orthogonal(stacked[present] - mean, N_KNOTS if rank < most_curves else 1)
            curves.append((place, change, mean))
            parts.append((stacked - mean) @ change * present[:, None])
            bends = [("bend", place, -1, -1)] * (change.shape[1] - 1)
            names += [("line", place, -1, -1), *bends]
            if not present.all():
                parts.append(missing[:, [place]])
                names.append(("missing", place, -1, -1))
        one_hot = np.zeros((n_rows, n_levels + 1))
        for index in encoding.levels(values):
            one_hot[np.arange(n_rows), index] = 1.0
        one_hot = one_hot[:, :-1]  # the last one means no level
        parts.append(one_hot)
        names += [("level", -1, level, -1) for level in range(n_levels)]
        n_slopes = min(n_rows // 2, most_slopes) // max(n_levels, 1)
        for place in order[: n_slopes if n_levels else 0]:
            parts.append(scaled[:, [place]] * one_hot)
            names += [("slope", int(place), level, -1) for level in range(n_levels)]
        pairs = [(a, b) for a in range(len(order)) for b in range(a)][:most_products]
        for first, second in pairs:
            parts.append(scaled[:, [order[first]]] * scaled[:, [order[second]]])
            names.append(("product", int(order[first]), -1, int(order[second])))
        sort, *owners = zip(*names)
        signal, level, partner = (np.array(owner) for owner in owners)
        columns = np.hstack(parts)
        return cls(columns, np.array(sort), signal, level, partner, knots, tuple(curves), n_levels)

    def caution(self, of_signals: Vector) -> Vector:
        """Return the factor of each column's penalty from those of the signals.

        Slopes by level and products are spared: a signal may tell something only there.
        """
        alone = (self.signal >= 0) & (self.level < 0) & (self.partner < 0)
        return np.where(alone, of_signals[self.signal], 1.0)

    def member(self, solution: Vector) -> Member:
        """Turn the coefficients of the columns into the coefficients of the map."""
        n_signals = len(self.knots)
        weights = np.zeros((n_signals, N_KNOTS + 1))
        by_level = np.zeros((self.n_levels + 1, n_signals + 1))
        intercept = float(solution[0])
        for place, change, mean in self.curves:
            own = (self.signal == place) & np.isin(self.sort, ("line", "bend"))
            weights[place, :N_KNOTS] = change @ solution[own]
            # The mean of a curve counts only if the signal is present.
            constant = float(mean @ weights[place, :N_KNOTS])
            intercept -= constant
            weights[place, -1] = constant
        lost = self.sort == "missing"
        weights[self.signal[lost], -1] += solution[lost]
        levels = self.level >= 0
        by_level[self.level[levels], self.signal[levels] + 1] = solution[levels]
        products = np.zeros((n_signals, n_signals))
        pairs = self.partner >= 0
        products[self.signal[pairs], self.partner[pairs]] = solution[pairs]
        return Member(intercept, weights, by_level, products)


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
    start: Vector | None = None,
    offset: Vector | float = 0.0,
) -> Vector:
    """Return the logistic regression with a ridge penalty per column; a column with an infinite
    penalty has weight 0. `offset` is added to the log-odds.
    """
    solution = np.zeros(columns.shape[1])
    free = np.isfinite(penalty)
    problem = _Ridge(columns[:, free], right, counts, penalty[free], offset)
    first = np.zeros(int(free.sum())) if start is None else start[free]
    solution[free] = minimise(problem, first, tol=1e-7 * len(right), warn=False).point
    return solution


class _Ridge(Dense):
    """Logistic regression with a ridge penalty per column."""

    def __init__(
        self,
        columns: Vector,
        right: Vector,
        counts: Vector,
        penalty: Vector,
        offset: Vector | float = 0.0,
    ) -> None:
        self.columns, self.right, self.counts = columns, right, counts
        self.penalty, self.offset = penalty, offset

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
    design: Design, right: Vector, counts: Vector, folds: Rows, alone: Sequence[Alone]
) -> dict[str, Regression]:
    """Return the regressions to be mixed, from the simplest to the most flexible.

    `alone` tells what each signal tells in the rows without each fold, and last in all rows.
    """
    cautions = [design.caution(each.caution) for each in alone]

    def cross_fit(**penalties: float) -> Regression:
        of = {"intercept": 1e-6, **penalties}
        penalty = np.array([of.get(sort, np.inf) for sort in design.sort.tolist()])
        whole = ridge(design.columns, right, counts, penalty * cautions[-1])
        left_out = np.empty(len(right))
        for fold, caution in enumerate(cautions[:-1]):
            inner, outer = folds != fold, folds == fold
            part = ridge(
                design.columns[inner], right[inner], counts[inner], penalty * caution, whole
            )
            left_out[outer] = design.columns[outer] @ part
        loss = mean_loss(sigmoid(left_out), right, counts)
        return Regression(penalty * cautions[-1], whole, left_out, loss)

    def plain(line: float) -> Regression:
        return cross_fit(line=line, missing=line, level=3.0)

    line = 3.0
    fitted = {"ridge": plain(line)}
    # Many useless signals need a stronger penalty.
    while line < 1000.0 and (other := plain(10.0 * line)).loss < fitted["ridge"].loss:
        line, fitted["ridge"] = 10.0 * line, other
    lines = {"line": line, "missing": line}
    levels = {"level": 10.0, "slope": 30.0}
    if design.n_levels:
        fitted["slopes"] = cross_fit(**lines, **levels)
        # Categories that differ much need a weaker penalty.
        much = {"level": 3.0, "slope": 5.0}
        if (other := cross_fit(**lines, **much)).loss < fitted["slopes"].loss:
            levels, fitted["slopes"] = much, other
    # The lines may need a strong penalty only because products tell everything.
    fitted["splines"] = cross_fit(**lines, **levels, bend=10.0 * line / 3.0, product=10.0)
    return fitted


def mean_loss(probs: Vector, right: Vector, counts: Vector) -> float:
    """Return the negative log-likelihood per answer."""
    likelihood = np.where(right > 0.5, probs, 1.0 - probs)
    return float(np.average(-np.log(np.maximum(likelihood, 1e-12)), weights=counts))


def importance(
    design: Design, fitted: Regression, right: Vector, counts: Vector, n_levels: Rows
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
