"""The loss of each group as a function of its beta: what a solver asks, from passes over the logits or from a table.

The loss of a group is sum_i F_i(s_i b) - s_i b d_i, where F is a row's log-partition and d how far the true class lies
below the largest logit.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from recal.engine.kernels import table
from recal.engine.scaled import ScaledLogits, Vector
from recal.engine.tabled import Groups, TabledLogits

# A beta that a series gives with no more than this error needs no pass to confirm it.
_NEGLIGIBLE = 1e-9
# Beyond this a series in beta - 1 is no help, and a step as long is taken instead.
_FAR = 0.4
# What is not found by as many series, each about the answer of the last, is left to the solver with its bracket.
_PASSES = 4


class Losses(Protocol):
    """What is known of the groups' losses at the present scales.

    Attributes
    ----------
    members : (n_samples,) each sample's group
    sizes : (n_groups,) how many samples, or their weight
    occupied, mistaken : (n_groups,) whether there is a sample that counts, and one whose truth is not the largest logit
    pull : (n_groups,) sum of s d
    """

    members: NDArray[Any]
    sizes: Vector
    occupied: NDArray[np.bool_]
    mistaken: NDArray[np.bool_]
    pull: Vector

    def sums(self, betas: Vector) -> tuple[Vector, Vector]:
        """Return each group's sum of s F'(s b) and of s**2 F''(s b); a beta of 0 asks for none."""

    def by_group(self, values: Vector) -> Vector:
        """Return each group's sum of values, one per sample."""

    def margins(self) -> Vector:
        """Return how far apart each sample's two largest logits lie at the present scale."""

    def guess(self, start: Vector | None) -> tuple[Vector | None, NDArray[np.bool_]]:
        """Return where to start looking for the best betas, and which of them are the best already."""

    def pooled(self) -> Losses:
        """Return the loss of all samples as one group."""


class ReadLosses:
    """Losses from passes over the logits. `quick` trades digits for time, `weights` counts a sample more than once."""

    def __init__(
        self, state: ScaledLogits, drops: Vector, members: NDArray[np.intp], n_groups: int, quick: bool = False,
        weights: Vector | None = None,
    ) -> None:  # fmt: skip
        self._state, self._drops, self._quick, self._weights = state, drops, quick, weights
        self._n_groups = n_groups
        self.members: NDArray[Any] = members
        self.sizes = self.by_group(np.ones(len(members)))
        counted = slice(None) if weights is None else weights > 0.0
        self.occupied = np.bincount(members[counted], minlength=n_groups) > 0
        self.mistaken = np.bincount(members[counted][drops[counted] < 0.0], minlength=n_groups) > 0
        self.pull = self.by_group(state.scales * drops)

    def sums(self, betas: Vector) -> tuple[Vector, Vector]:
        scales = self._state.scales
        first, second = self._state.slopes(betas[self.members], self._quick)
        return self.by_group(scales * first), self.by_group(scales**2 * second)

    def by_group(self, values: Vector) -> Vector:
        counted = values if self._weights is None else values * self._weights
        return np.bincount(self.members, weights=counted, minlength=self._n_groups).astype(np.float64)

    def margins(self) -> Vector:
        return -self._state.scales * self._state.runner_up_drop()

    def guess(self, start: Vector | None) -> tuple[Vector | None, NDArray[np.bool_]]:
        return start, np.zeros(self._n_groups, dtype=bool)

    def pooled(self) -> Losses:
        everyone = np.zeros(len(self.members), dtype=np.intp)
        return ReadLosses(self._state, self._drops, everyone, 1, self._quick, self._weights)


class TabledLosses:
    """Losses from a table, whose values and derivatives at the present scales are there before the first question.

    So the best beta is known as the root of a series in beta - 1, to four derivatives: for most groups of a fit that
    has run for a while, which stand near 1, closely enough to need no pass at all, and for most others after one.
    """

    def __init__(self, state: TabledLogits, drops: Vector, groups: Groups, n_groups: int) -> None:
        self._state, self._drops, self._n_groups = state, drops, n_groups
        self.members: NDArray[Any] = groups
        self._known = state.sums(groups, n_groups, state.known, drops)
        self.sizes = self._known[:, table.COUNT]
        self.occupied = self.sizes > 0.0
        self.mistaken = self._known[:, table.MISTAKES] > 0.0
        self.pull = self._known[:, table.PULL]

    def sums(self, betas: Vector) -> tuple[Vector, Vector]:
        at = self._sums_at(betas)
        divisor = np.where(betas > 0.0, betas, 1.0)
        return at[:, table.PULL + table.FIRST] / divisor, at[:, table.PULL + table.SECOND] / divisor**2

    def _sums_at(self, betas: Vector) -> Vector:
        return self._state.sums(self.members, self._n_groups, self._state.at(self.members, betas), self._drops)

    def by_group(self, values: Vector) -> Vector:
        return np.bincount(self.members, weights=values, minlength=self._n_groups).astype(np.float64)

    def margins(self) -> Vector:
        return -self._state.scales * self._state.runner_up_drop()

    def guess(self, start: Vector | None) -> tuple[Vector | None, NDArray[np.bool_]]:
        betas = [1.0] * self._n_groups
        elsewhere = betas if start is None else start.tolist()
        sure = [not mistaken for mistaken in self.mistaken.tolist()]  # not asked for
        sums = self._known.tolist()
        for tries in range(_PASSES + 1):
            for k in range(self._n_groups):
                if sure[k]:
                    continue
                _, _, pull, slope, *more = sums[k]
                step, error = _root_of_series(slope - betas[k] * pull, *more)
                if error == math.inf and tries == 0 and elsewhere[k] != 1.0:
                    betas[k] = elsewhere[k]
                else:
                    betas[k], sure[k] = betas[k] * (1.0 + step), error < _NEGLIGIBLE
            if all(sure) or tries == _PASSES:
                break
            sums = self._sums_at(np.array([0.0 if done else beta for beta, done in zip(betas, sure)])).tolist()
        return np.array(betas), np.array(sure) & self.mistaken

    def pooled(self) -> Losses:
        return TabledLosses(self._state, self._drops, np.zeros(len(self.members), dtype=np.int8), 1)


def _root_of_series(slope: float, second: float, third: float, fourth: float) -> tuple[float, float]:
    """Return the root of slope + second x + third x**2 / 2 + fourth x**3 / 6 near 0, and about how far it is off.

    The next term is taken to stand to the last as the largest of these to the one before it. Where there is no root
    near, return a step in its direction and infinity.
    """
    if not second > 0.0:
        return 0.0, math.inf
    x = -slope / second
    for _ in range(8):
        rise = second + x * (third + x * fourth / 2.0)
        if not (abs(x) < _FAR and rise > 0.1 * second):
            return math.copysign(_FAR, -slope), math.inf
        step = (slope + x * (second + x * (third / 2.0 + x * fourth / 6.0))) / rise
        x -= step
        if abs(step) < 1e-13:
            break
    growth = max(abs(third) / second, (abs(fourth) / second) ** 0.5, 1.0)
    return x, growth**3 * x**4 / 24.0 + abs(step)
