"""How ReCal groups and rescales samples, in plain numpy: the reference for compiled loops and other libraries.

Compiled loops (`recal.engine.recal_steps`) and other array libraries (`recal.maps.steps`) give the same answers. Small
arrays are computed here, and so is every comparison of two confidences that is too close for a compiled loop to decide:
`comparable` is the rule for ties, and numpy's order of summation is part of it. All sums run along a row, so a sample
alone gets, bit for bit, what it gets in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.errors import InputError

ConfidenceAt = Literal["original", "own"]
Ties = Literal["float32", "exact"]
Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
# No sequence of betas takes a scale out of this range, so nothing over- or underflows to inf or 0.
SCALE_RANGE = (1e-100, 1e100)
# A probability of exactly 0 at the truth is an infinite loss, and nothing is certain: answers stay within these.
ABOVE_ZERO, BELOW_ONE = 1e-300, 1.0 - 2.0**-53
# Each step's view, (n_steps,), and its four betas, (n_steps, 4).
Program = tuple[NDArray[np.intp], NDArray[np.float64]]


@dataclass(frozen=True)
class Rule:
    """How samples are sorted into groups: what a replay must know to group as the fit did.

    Parameters
    ----------
    confidence_at : {"original", "own"}
        Where a view's confidence is read: at the original's prediction, or at the view's own maximum.
    ties : {"float32", "exact"}
        How confidences are compared: as float32 softmax, where saturated ones are equal, or in log-odds.
    floor : float or None
        The smallest probability before a logarithm is taken; None for no floor.
    """

    confidence_at: ConfidenceAt = "original"
    ties: Ties = "float32"
    floor: float | None = None

    def __post_init__(self) -> None:
        if self.confidence_at not in ("original", "own"):
            raise InputError(
                "must be 'original' or 'own'", argument="confidence_at", came=f"got {self.confidence_at!r}"
            )
        if self.ties not in ("float32", "exact"):
            raise InputError("must be 'float32' or 'exact'", argument="ties", came=f"got {self.ties!r}")
        if self.floor is not None and not (isinstance(self.floor, float) and 0.0 < self.floor < 0.5):
            raise InputError("must lie in (0, 0.5) or be None", argument="floor", came=f"got {self.floor!r}")


class Rows:
    """Logits below the largest of their row, each row multiplied by a scale of its own; `answers` is where that stands.

    With a floor no probability falls below it: each rescaling then writes the rows anew.
    """

    def __init__(self, logits: Floats, floor: float | None = None) -> None:
        self.answers = logits.argmax(axis=1)
        self.drops = np.array(logits, dtype=np.float64, order="C")
        self.drops -= self.drops.max(axis=1, keepdims=True)
        self.scales = np.ones(len(logits))
        self.floor = floor
        if floor is not None:
            self.rescale(1.0)

    def rescale(self, factors: Vector | float) -> None:
        if self.floor is None:
            low, high = SCALE_RANGE
            self.scales = np.minimum(np.maximum(self.scales * factors, low), high)  # np.clip takes three times as long
            return
        scaled = np.reshape(factors, (-1, 1)) * self.drops
        logs = np.maximum(scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True)), np.log(self.floor))
        self.drops = logs - logs.max(axis=1, keepdims=True)

    def now(self) -> Matrix:
        return self.scales[:, None] * self.drops

    def probs(self) -> Matrix:
        """Return softmax(now), in which the answer stays the largest even where a tiny scale would tie it."""
        weights = np.exp(self.now())
        if np.count_nonzero(weights > BELOW_ONE) > np.count_nonzero(self.drops == 0.0):  # asked first: it is rare
            np.minimum(weights, BELOW_ONE, out=weights, where=self.drops < 0.0)
        weights /= weights.sum(axis=1, keepdims=True)
        np.maximum(weights, ABOVE_ZERO, out=weights)
        return np.minimum(weights, BELOW_ONE, out=weights)


def replayed(
    program: Program, start: float, finish: float, rule: Rule, logits: Floats, transformed: Sequence[Floats] | Floats
) -> Rows:
    """Return the originals' rows after all steps: each groups samples by the original and a view, and rescales both."""
    original = Rows(logits, rule.floor)
    views = [Rows(view, rule.floor) for view in transformed]
    for rows in (original, *views):
        rows.rescale(start)
    for number, betas in zip(*program):
        factors = betas[groups(original, views[number], rule)]
        original.rescale(factors)
        views[number].rescale(factors)
    original.rescale(finish)
    return original


def groups(original: Rows, view: Rows, rule: Rule) -> NDArray[np.int8]:
    """Return each sample's group, counted from 0: 2 [answer kept] + [the confidence fell or stayed]."""
    at = view.answers if rule.confidence_at == "own" else original.answers
    fell = comparable(original.now(), original.answers, rule) >= comparable(view.now(), at, rule)
    return (2 * (original.answers == view.answers) + fell).astype(np.int8)


def comparable(rows: Matrix, at: Labels, rule: Rule) -> NDArray[np.floating]:
    """Return what the rule for ties compares of scaled rows, whose largest value is 0, at a column of each.

    By float32: a softmax of which each exponential is rounded to float32 and divided, in float32, by their float32 sum;
    saturated confidences are then equal. Exactly: the log-odds, in which nothing saturates.
    """
    every = np.arange(len(rows))
    if rule.ties == "float32":
        weights = np.exp(rows).astype(np.float32)
        return weights[every, at] / weights.sum(axis=1)
    others = rows.copy()
    others[every, at] = -np.inf
    rival = others.max(axis=1)
    return rows[every, at] - rival - np.log(np.exp(others - rival[:, None]).sum(axis=1))
