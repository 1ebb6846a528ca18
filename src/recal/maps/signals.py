"""The map from the signals of an answer to the probability that the answer is right.

The input is an (n_samples, n_signals) array with NaN where a signal is missing. Text columns and
groups arrive as numeric codes: 0, 1, 2, ... for the levels of the fit, in sorted order, and NaN for
a level that was not in the fit.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.maps.arrays import interpolate, linear, log_odds, sigmoid
from recal.maps.base import Array, Map, ViewLogits, indices, like, namespace
from recal.schema import LARGEST, SMALLEST, FloatArray, Integers, Number

PerSignal = Annotated[NDArray[np.float64], FloatArray("S")]
Positive = Annotated[NDArray[np.float64], FloatArray("S", low=SMALLEST)]
Shares = Annotated[NDArray[np.float64], FloatArray("M", low=0.0, high=1.0)]
Knots = Annotated[NDArray[np.float64], FloatArray("S", "N", rising=True)]

# How a signal is transformed. Categories are not transformed.
IDENTITY, LOGARITHM, LOG_ODDS, RANKS, CATEGORY = range(5)


class SignalEncoding(Map):
    """Signals as standardised numbers: transformed, clipped to the range of the fit, and scaled.

    Each field has one entry or row per signal. `low` and `high` replace smaller values of a signal
    and of 1 minus the signal before a logarithm is taken, so that 0 and 1 stay finite. `knots` and
    `ranks` are points of the distribution function of signals that are replaced by ranks.
    `n_levels` is 0 for numbers.
    """

    kind: Annotated[NDArray[np.int64], Integers("S", low=IDENTITY, high=CATEGORY)]
    low: Positive
    high: Positive
    knots: Annotated[NDArray[np.float64], FloatArray("S", "R", rising=True)]
    ranks: Annotated[NDArray[np.float64], FloatArray("S", "R", rising=True)]
    lower: PerSignal
    upper: PerSignal
    centre: PerSignal
    spread: Positive
    n_levels: Annotated[NDArray[np.int64], Integers("S", low=0)]

    def encode(self, signals: Array) -> tuple[Array, Array]:
        """Return the standardised signals, 0 if missing or a category, and 1.0 where one is
        missing.
        """
        xp, zero = namespace(signals), like(signals, 0.0)
        missing = signals != signals
        filled = scaled = xp.where(missing, zero, signals)
        if np.isin(self.kind, (LOGARITHM, LOG_ODDS)).any():
            log = xp.log(xp.maximum(filled, like(signals, self.low)))
            rest = xp.log(xp.maximum(1.0 - filled, like(signals, self.high)))
            scaled = xp.where(self._is(signals, LOGARITHM), log, scaled)
            scaled = xp.where(self._is(signals, LOG_ODDS), log - rest, scaled)
        if (self.kind == RANKS).any():
            starts = np.arange(len(self.kind) + 1) * self.knots.shape[1]
            ranks = interpolate(filled, self.knots.reshape(-1), self.ranks.reshape(-1), starts)
            scaled = xp.where(self._is(signals, RANKS), ranks, scaled)
        scaled = xp.maximum(scaled, like(signals, self.lower))
        scaled = xp.minimum(scaled, like(signals, self.upper))
        scaled = (scaled - like(signals, self.centre)) / like(signals, self.spread)
        absent = missing | self._is(signals, CATEGORY)
        return xp.where(absent, zero, scaled), xp.where(missing, like(signals, 1.0), zero)

    def levels(self, signals: Array) -> list[Array]:
        """Return for each category the index of each row's level, counted over all categories.

        The index of a level that was not in the fit is the number of all levels.
        """
        xp, total, first, found = namespace(signals), int(self.n_levels.sum()), 0, []
        for place in np.flatnonzero(self.n_levels).tolist():
            code, count = signals[:, place], int(self.n_levels[place])
            known = (code >= 0.0) & (code < count)
            index = xp.where(known, code + float(first), like(signals, float(total)))
            found.append(xp.astype(index, xp.int64))
            first += count
        return found

    def _is(self, signals: Array, kind: int) -> Array:
        return like(signals, self.kind == kind) > 0.5


class SignalMap(Map):
    """Confidence of an answer: a mixture of logistic regressions on its encoded signals.

    Each member adds up a curve per signal, a weight for each missing signal, products of two
    signals and, for the level of each category, an offset and a change of every signal's slope. A
    curve is a quadratic spline, constant beyond its outer knots: c0 t + c1 t^2 + the sum of
    c (t - knot)^2 to the right of each inner knot. `weights` holds these coefficients of each
    member and signal, and last the weight of a missing signal. The rows of `by_level` are levels,
    the last one means no level; its columns are the offset and the change of each signal's slope.
    `slope` multiplies the log-odds of the mixture.
    """

    encoding: SignalEncoding
    shares: Shares
    intercepts: Annotated[NDArray[np.float64], FloatArray("M")]
    knots: Knots
    weights: Annotated[NDArray[np.float64], FloatArray("M", "S", "N+1")]
    by_level: Annotated[NDArray[np.float64], FloatArray("M", None, "S+1")]
    products: Annotated[NDArray[np.float64], FloatArray("M", "S", "S")]
    slope: Annotated[float, Number(0.0, LARGEST)]

    def check(self) -> None:
        levels = int(self.encoding.n_levels.sum())
        if len(self.encoding.kind) != len(self.knots) or self.by_level.shape[1] != levels + 1:
            raise InputError(
                f"The encoding has {len(self.encoding.kind)} signals and {levels} levels, the "
                f"members {len(self.knots)} and {self.by_level.shape[1] - 1}."
            )

    def log_odds(self, signals: Array) -> Array:
        """Return the log-odds of each member, (n_samples, n_members)."""
        xp = namespace(signals)
        scaled, missing = self.encoding.encode(signals)
        n_signals = scaled.shape[1]
        pairs, weights, table = self._flat
        parts = [*basis(scaled, missing, self.knots), missing]
        if pairs.size:
            first, second = (xp.take(scaled, indices(signals, one), axis=1) for one in pairs)
            parts.append(first * second)
        total = linear(xp.concat(parts, axis=1), weights, self.intercepts)
        if self.by_level.any():
            own = xp.concat([xp.ones_like(scaled[:, :1]), scaled], axis=1)
            own = xp.reshape(own, (-1, 1, n_signals + 1))
            for index in self.encoding.levels(signals):
                chosen = xp.take(like(signals, table), index, axis=0)
                chosen = xp.reshape(chosen, (-1, len(weights), n_signals + 1))
                total = total + xp.sum(chosen * own, axis=2)
        return total

    @cached_property
    def _flat(self) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
        """The pairs of signals with a product, the coefficients in the order of the features, and
        those of the levels with one row per level.
        """
        members = len(self.shares)
        pairs = np.array(np.nonzero(self.products.any(axis=0)))
        weights = self.weights.transpose(0, 2, 1).reshape(members, -1)
        weights = np.concatenate([weights, self.products[:, pairs[0], pairs[1]]], axis=1)
        by_level = self.by_level.transpose(1, 0, 2).reshape(self.by_level.shape[1], -1)
        return pairs, weights, np.ascontiguousarray(by_level)

    def confidence(self, signals: Array) -> Array:
        """Return the probability that each answer is right, (n_samples,)."""
        xp = namespace(signals)
        mixed = xp.sum(sigmoid(self.log_odds(signals)) * like(signals, self.shares), axis=1)
        return sigmoid(self.slope * log_odds(mixed))

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        """Return the probabilities that an answer is wrong and right, (n_samples, 2), from its
        signals.
        """
        right = self.confidence(z)
        return namespace(z).stack([1.0 - right, right], axis=1)


def basis(scaled: Array, missing: Array, knots: NDArray[np.float64]) -> list[Array]:
    """Return the terms of the splines, (n_samples, n_signals) each; 0 for missing signals."""
    xp, present = namespace(scaled), 1.0 - missing
    inside = xp.maximum(scaled, like(scaled, knots[:, 0]))
    inside = xp.minimum(inside, like(scaled, knots[:, -1])) * present
    terms = [inside, inside * inside]
    for place in range(1, knots.shape[1] - 1):
        beyond = xp.maximum(inside - like(scaled, knots[:, place]), 0.0)
        terms.append(beyond * beyond * present)
    return terms
