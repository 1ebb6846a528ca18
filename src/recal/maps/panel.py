"""The map from the answers of several systems, and their signals, to the probability of each answer.

The answers of one question are text, so the map reads which of them are the same. One row of its
input holds, in this order:

1. how many systems have been asked, 1 to S (the systems are asked in a fixed order),
2. for each of the M answers: the place, counted from 0, of the first answer that is the same; NaN
   if there is none. A system gives one answer, or several samples that share its weight,
3. the signals of all systems, NaN if missing; text columns as codes, as in `maps.signals`.

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
from recal.maps.base import Array, Map, ViewLogits, indices, like, namespace
from recal.maps.signals import SignalEncoding, SignalMap
from recal.schema import FloatArray, Integers, Number

PerSystem = Annotated[NDArray[np.float64], FloatArray("S")]
PerSignal = Annotated[NDArray[np.float64], FloatArray("F")]


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
    slopes: PerSignal
    missing_slopes: PerSignal
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
        """Return 1.0 if an answer supports a candidate, (n, n_answers + 1 candidates, n_answers)."""
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
