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

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.maps.base import Array, Map, Views, indices, like, namespace
from recal.maps.signals import SignalEncoding, SignalMap
from recal.schema import Floats, Integers

PerSystem = Annotated[NDArray[np.float64], Floats("S")]
PerSignal = Annotated[NDArray[np.float64], Floats("F")]


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
        Confidence of the first system's answer from its signals; it replaces the logit if no other
        system is used.
    """

    used: Annotated[NDArray[np.int64], Integers("S", low=0, high=1)]
    weights: PerSystem
    slopes: PerSignal
    missing_slopes: PerSignal
    levels: Annotated[NDArray[np.float64], Floats("F", None)]
    none: float
    alone: SignalMap | None = None

    def check(self) -> None:
        if not self.used[0] or (self.alone is not None and self.used.sum() > 1):
            raise InputError("must use the first system, and no other if it is alone")


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

    def probs(self, z: Array, views: Views = ()) -> Array:
        """Return the probability of each answer and of none of them, (n_samples, n_answers + 1)."""
        xp = namespace(z)
        n_answers = self.n_answers
        slots = z[:, 1 : n_answers + 1]
        signals = z[:, n_answers + 1 :]
        features = self.scale.encode(signals)
        total = None
        for number, stage in enumerate(self.stages):
            here = z[:, :1] == number + 1
            if not bool(xp.any(here)):
                continue
            if stage.alone is None:
                probs = self._stage(stage, slots, signals, features)
            else:
                probs = self._alone(stage.alone, slots, signals)
            total = probs if total is None else xp.where(here, probs, total)
        return xp.zeros((z.shape[0], n_answers + 1)) if total is None else total

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

    def _stage(
        self, stage: PanelStage, slots: Array, signals: Array, features: tuple[Array, Array]
    ) -> Array:
        xp = namespace(slots)
        scaled, missing = features
        terms = scaled * like(slots, stage.slopes) + missing * like(slots, stage.missing_slopes)
        levels = np.arange(stage.levels.shape[1], dtype=np.float64)[None, :]
        for place in np.flatnonzero(stage.levels.any(axis=1)).tolist():
            same = signals[:, place : place + 1] == like(slots, levels)
            own = xp.sum(xp.where(same, like(slots, stage.levels[place][None, :]), 0.0), axis=1)
            column = np.arange(len(self.owner)) == place
            terms = terms + own[:, None] * like(slots, column.astype(np.float64))
        belongs = self.owner[:, None] == np.arange(len(self.samples))
        scores = xp.matmul(terms, like(slots, belongs.astype(np.float64)))
        scores = (scores + like(slots, stage.weights)) / like(slots, self.samples)
        system = np.repeat(np.arange(len(self.samples)), self.samples)
        votes = self.votes(slots) * like(slots, stage.used[system].astype(np.float64))
        if self.merged:
            votes = self.merge(votes)
        total = xp.sum(votes * xp.take(scores, indices(slots, system), axis=1)[:, None, :], axis=2)
        is_none = like(slots, (np.arange(total.shape[1]) == self.n_answers).astype(np.float64))
        total = total + is_none * stage.none
        given = (xp.sum(votes, axis=2) + is_none) > 0.0
        total = xp.where(given, total, -np.inf)
        total = xp.exp(total - xp.max(total, axis=1, keepdims=True))
        return total / xp.sum(total, axis=1, keepdims=True)

    def merge(self, votes: Array) -> Array:
        """Move the votes against the first system's answer to "none of these"."""
        xp = namespace(votes)
        kept = xp.where(self.main(votes)[:, :, None], votes, 0.0)
        against = xp.sum(votes - kept, axis=1, keepdims=True)
        is_none = indices(votes, np.arange(votes.shape[1]))[None, :, None] == self.n_answers
        return xp.where(is_none, against, kept)

    def _alone(self, alone: SignalMap, slots: Array, signals: Array) -> Array:
        """Return the probabilities if only the first system's signals are read."""
        xp = namespace(slots)
        own = indices(slots, np.flatnonzero(self.owner == 0))
        confidence = alone.confidence(xp.take(signals, own, axis=1))
        probs = xp.where(self.main(self.votes(slots)), confidence[:, None], 0.0)
        is_none = indices(slots, np.arange(probs.shape[1]))[None, :] == self.n_answers
        return xp.where(is_none, 1.0 - xp.sum(probs, axis=1, keepdims=True), probs)
