"""The maps from the signals of answers to the probability that an answer is right.

The signals are an (n_samples, n_signals) array with NaN where one is missing. Text columns and
groups arrive as numeric codes: 0, 1, 2, ... for the levels of the fit, in sorted order, and NaN for
a level that was not in the fit.

A panel is several systems that answer the same questions. The answers of one question are text, so
the map reads which of them are the same. One row of its input holds, in this order:

1. how many systems have been asked, 1 to S (the systems are asked in a fixed order),
2. for each of the M answers: the place, counted from 0, of the first answer that is the same; NaN
   if there is none. A system gives one answer, or several samples that share its weight,
3. the signals of all systems.

The output has M + 1 columns: the probability that the answer at this place is right (0 if it
repeats an earlier one), and the probability that none of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
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
# Of systems and of their signals.
PerSystem = Annotated[NDArray[np.float64], FloatArray("S")]
Slopes = Annotated[NDArray[np.float64], FloatArray("F")]

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
        if self._kinds & {LOGARITHM, LOG_ODDS}:
            log = xp.log(xp.maximum(filled, like(signals, self.low)))
            rest = xp.log(xp.maximum(1.0 - filled, like(signals, self.high)))
            scaled = xp.where(self._is(signals, LOGARITHM), log, scaled)
            scaled = xp.where(self._is(signals, LOG_ODDS), log - rest, scaled)
        if RANKS in self._kinds:
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

    @cached_property
    def _kinds(self) -> set[int]:
        return set(self.kind.tolist())

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
    knots: Annotated[NDArray[np.float64], FloatArray("S", "N", rising=True)]
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


class PanelStage(Map):
    """Conditional logit of the answers given by the first systems.

    An answer's score is the sum over the systems that gave it of ``weight + slopes . signals``;
    "none of these" has the score `none`. Probabilities are the softmax over the distinct answers.

    Parameters
    ----------
    used : array of 0 and 1, one per system
        Answers of the other systems are ignored.
    weights : one number per system
    slopes, missing_slopes : one number per signal; empty if no system has signals
    levels : array of shape (n_signals, n_levels)
        What each level of a text column adds, padded with zeros.
    none : float
    alone : SignalMap, optional
        Confidence of the first system's answer from its signals alone.
    share : float
        The share of `alone` in the confidence of the first system's answer. The other answers
        divide what is left in the proportions of the logit.
    """

    used: Annotated[NDArray[np.int64], Integers("S", low=0, high=1)]
    weights: PerSystem
    slopes: Slopes
    missing_slopes: Slopes
    levels: Annotated[NDArray[np.float64], FloatArray("F", None)]
    none: float
    alone: SignalMap | None = None
    share: Annotated[float, Number(0.0, 1.0)] = 1.0

    def check(self) -> None:
        if not self.used[0]:
            raise InputError("must use the first system", argument="used")


class PanelMap(Map):
    """Probability of each answer of several systems, and of "none of these".

    Parameters
    ----------
    stages : tuple of PanelStage
        One for each number of systems that were asked.
    samples : array of int
        The number of answers of each system.
    owner : array of int
        The system that each signal belongs to.
    scale : SignalEncoding
        How signals are standardised.
    merged : bool
        Whether all answers other than the first system's count as one: so if only the first
        system's answers were graded.
    """

    stages: tuple[PanelStage, ...]
    samples: Annotated[NDArray[np.int64], Integers("S", low=1)]
    owner: Annotated[NDArray[np.int64], Integers("F", low=0)]
    scale: SignalEncoding
    merged: bool = False

    def check(self) -> None:
        widths = {len(stage.slopes) for stage in self.stages} | {len(self.scale.kind)}
        widths.add(len(self.owner))
        sizes = {len(stage.weights) for stage in self.stages} | {len(self.stages)}
        if len(widths) > 1 or sizes != {len(self.samples)} or self.owner.max() >= len(self.samples):
            raise InputError("The stages of a panel must describe the same systems and signals.")

    @property
    def n_answers(self) -> int:
        return int(self.samples.sum())

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        """Return the probability of each answer and of none of them, (n_samples, n_answers + 1)."""
        xp = namespace(z)
        asked = z[:, :1]
        numbers = sorted({int(one) for one in z[:, 0].tolist()} - {0})
        total = xp.zeros_like(z[:, : self.n_answers + 1])
        for number, probs in zip(numbers, self.after(z, numbers)):
            total = probs if len(numbers) == 1 else xp.where(asked == number, probs, total)
        return xp.where(asked > 0.0, total, 0.0)

    def after(self, z: Array, numbers: Sequence[int]) -> list[Array]:
        """Return the probabilities after each of these numbers of systems."""
        slots = z[:, 1 : self.n_answers + 1]
        signals = z[:, self.n_answers + 1 :]
        features, votes = self.scale.encode(signals), self.votes(slots)
        found = []
        for number in numbers:
            stage = self.stages[number - 1]
            probs = self._logit(number - 1, signals, features, votes)
            if stage.alone is not None:
                own = indices(slots, np.flatnonzero(self.owner == 0))
                confidence = stage.alone.confidence(namespace(z).take(signals, own, axis=1))
                probs = mixed(probs, self.main(votes), confidence, stage.share)
            found.append(probs)
        return found

    def votes(self, slots: Array) -> Array:
        """Return 1.0 where an answer supports a candidate, (n, n_candidates, n_answers)."""
        places = indices(slots, np.arange(self.n_answers + 1))[None, :, None]
        return namespace(slots).astype(slots[:, None, :] == places, slots.dtype)

    def main(self, votes: Array) -> Array:
        """Return which candidate is the first system's answer, (n, n_answers + 1) of bool.

        It is the most frequent of its samples; no candidate is, if it gave no answer.
        """
        xp = namespace(votes)
        counts = xp.sum(votes[:, :, : int(self.samples[0])], axis=2)
        places = indices(votes, np.arange(votes.shape[1]))[None, :]
        first = places == xp.argmax(counts, axis=1)[:, None]
        return first & (xp.max(counts, axis=1)[:, None] > 0.0)

    def _logit(
        self, place: int, signals: Array, features: tuple[Array, Array], votes: Array
    ) -> Array:
        xp, stage = namespace(signals), self.stages[place]
        slopes, missing, shift, used = (like(signals, one) for one in self._tables[place])
        scores = xp.matmul(features[0], slopes) + xp.matmul(features[1], missing) + shift
        for one in np.flatnonzero(self.scale.n_levels).tolist():
            levels = np.arange(stage.levels.shape[1], dtype=np.float64)[None, :]
            same = signals[:, one : one + 1] == like(signals, levels)
            own = xp.sum(xp.where(same, like(signals, stage.levels[one][None, :]), 0.0), axis=1)
            scores = scores + own[:, None] * like(signals, self._belongs[one])
        votes = votes * used
        if self.merged:
            votes = self.merge(votes)
        each = xp.take(scores, indices(signals, self._system), axis=1)
        is_none = like(signals, (np.arange(self.n_answers + 1) == self.n_answers).astype(float))
        total = xp.sum(votes * each[:, None, :], axis=2) + is_none * stage.none
        given = (xp.sum(votes, axis=2) + is_none) > 0.0
        total = xp.where(given, total, -np.inf)
        total = xp.exp(total - xp.max(total, axis=1, keepdims=True))
        return total / xp.sum(total, axis=1, keepdims=True)

    @cached_property
    def _system(self) -> NDArray[np.intp]:
        """The system of each answer."""
        return np.repeat(np.arange(len(self.samples)), self.samples)

    @cached_property
    def _belongs(self) -> NDArray[np.float64]:
        """What one unit of a signal adds to a system's samples, (n_signals, n_systems)."""
        return (self.owner[:, None] == np.arange(len(self.samples))) / self.samples

    @cached_property
    def _tables(self) -> list[tuple[NDArray[np.float64], ...]]:
        """What signals, missing signals and systems add to the scores at each stage, and which
        answers count.
        """
        return [
            (
                stage.slopes[:, None] * self._belongs,
                stage.missing_slopes[:, None] * self._belongs,
                stage.weights / self.samples,
                stage.used[self._system].astype(np.float64),
            )
            for stage in self.stages
        ]

    def merge(self, votes: Array) -> Array:
        """Move the votes against the first system's answer to "none of these"."""
        xp = namespace(votes)
        kept = xp.where(self.main(votes)[:, :, None], votes, 0.0)
        against = xp.sum(votes - kept, axis=1, keepdims=True)
        is_none = indices(votes, np.arange(votes.shape[1]))[None, :, None] == self.n_answers
        return xp.where(is_none, against, kept)


def mixed(probs: Array, main: Array, confidence: Array, share: float) -> Array:
    """Move the probability of the first system's answer towards `confidence` by a share."""
    xp = namespace(probs)
    own = xp.sum(xp.where(main, probs, 0.0), axis=1, keepdims=True)
    moved = share * confidence[:, None] + (1.0 - share) * own
    rest = (1.0 - moved) / xp.maximum(1.0 - own, like(probs, 1e-30))
    answered = xp.any(main, axis=1)[:, None]
    return xp.where(main, moved, probs * xp.where(answered, rest, 1.0))
