"""Temperatures: one for all samples, or one for each of several groups.

The loss of a group is sum_i F_i(s_i b) - s_i b d_i, where F is a row's log-partition, s its scale and d how far the
true class lies below the largest logit. Its derivative grows with b, so the best b is unique. Newton's method finds it
inside a bracket; steps are taken in log b, which keeps b positive, and one pass over the data serves all groups.

A group in which every prediction is right has no best temperature: the more confident, the likelier. It gets the
temperature that one more, wrong, sample would give (Laplace). That sample is drawn like the others, and its truth is
its second class. The result is finite and does not depend on the scale of the logits.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.engine.scaled import ScaledLogits, ScaledRows, Vector
from recal.errors import ConvergenceWarning


class GroupLosses:
    """What is known of the groups' losses at the present scales; `weights` counts a sample more than once.

    Attributes
    ----------
    members : (n_samples,) each sample's group
    sizes : (n_groups,) how many samples, or their weight
    occupied, mistaken : (n_groups,) whether there is a sample that counts, and one whose truth is not the largest logit
    pull : (n_groups,) sum of s d
    """

    def __init__(
        self, rows: ScaledRows, drops: Vector, members: NDArray[Any], n_groups: int, weights: Vector | None = None
    ) -> None:
        self._rows, self._drops, self._weights = rows, drops, weights
        self._n_groups = n_groups
        self.members = members
        self.sizes = self.by_group(np.ones(len(members)))
        counted = slice(None) if weights is None else weights > 0.0
        self.occupied = np.bincount(members[counted], minlength=n_groups) > 0
        self.mistaken = np.bincount(members[counted][drops[counted] < 0.0], minlength=n_groups) > 0
        self.pull = self.by_group(rows.scales * drops)

    def sums(self, betas: Vector) -> tuple[Vector, Vector]:
        """Return each group's sum of s F'(s b) and of s**2 F''(s b); a beta of 0 asks for none."""
        scales = self._rows.scales
        first, second = self._rows.slopes(betas[self.members])
        return self.by_group(scales * first), self.by_group(scales**2 * second)

    def by_group(self, values: Vector) -> Vector:
        """Return each group's sum of values, one per sample."""
        counted = values if self._weights is None else values * self._weights
        return np.bincount(self.members, weights=counted, minlength=self._n_groups).astype(np.float64)

    def margins(self) -> Vector:
        """Return how far apart each sample's two largest logits lie at the present scale."""
        return -self._rows.scales * self._rows.runner_up_drop()

    def pooled(self) -> GroupLosses:
        """Return the loss of all samples as one group."""
        everyone = np.zeros(len(self.members), dtype=np.intp)
        return GroupLosses(self._rows, self._drops, everyone, 1, self._weights)


# Maps betas per group to the loss's first and second derivative in beta, per group; a beta of 0 asks for none.
Derivatives = Callable[[Vector], tuple[Vector, Vector]]

LEAST_BETA, LARGEST_BETA = 1e-3, 100.0
# A Newton step this small leaves an error of about its square: far below the promised 1e-8.
_LAST_STEP = 1e-5
# Rounding can keep a slope from ever being small; a bracket this narrow says as much.
_NARROW = 1e-9
_MOST_PASSES = 100


@dataclass(frozen=True)
class Betas:
    """The solver's answer, with a word on how it came about."""

    values: tuple[float, ...]
    converged: bool
    passes: int
    at_bound: tuple[bool, ...]

    def replaced(self, chosen: NDArray[np.bool_], by: Betas) -> Betas:
        """Return these betas with those of the chosen groups taken from another answer."""
        values = tuple(new if other else old for old, new, other in zip(self.values, by.values, chosen))
        bounds = tuple(new if other else old for old, new, other in zip(self.at_bound, by.at_bound, chosen))
        return Betas(values, self.converged and by.converged, self.passes + by.passes, bounds)

    def limited(self, chosen: NDArray[np.bool_], least: float, largest: float) -> Betas:
        """Return these betas with those of the chosen groups drawn into a range."""
        values = (min(max(v, least), largest) if other else v for v, other in zip(self.values, chosen))
        return replace(self, values=tuple(values))

    def repeated(self, n_groups: int) -> Betas:
        """Return the answer of one group for several."""
        return Betas(self.values * n_groups, self.converged, self.passes, self.at_bound * n_groups)


def solve_betas(
    derivatives: Derivatives,
    n_groups: int,
    start: Vector | None = None,
    *,
    bounds: tuple[Vector, Vector] | None = None,
    chosen: NDArray[np.bool_] | None = None,
) -> Betas:
    """Return the beta of each group that minimises its loss. `start` is a guess that may save passes.

    `bounds` gives each group a least and a largest beta of its own, between which it starts at `start` whatever that
    is. Groups that are not `chosen` keep 1.
    """
    if bounds is None:
        given = [1.0] * n_groups if start is None else np.clip(start, LEAST_BETA, LARGEST_BETA).tolist()
        floor, ceiling = [math.log(LEAST_BETA)] * n_groups, [math.log(LARGEST_BETA)] * n_groups
    else:
        given = np.clip(np.ones(n_groups) if start is None else start, *bounds).tolist()
        floor, ceiling = np.log(bounds[0]).tolist(), np.log(bounds[1]).tolist()
    log_beta = [math.log(beta) for beta in given]
    origin = [0.0] * n_groups if bounds is None else list(log_beta)
    searches = [_Search(*ends) for ends in zip(log_beta, origin, floor, ceiling)]
    wanted = [True] * n_groups if chosen is None else chosen.tolist()
    open_groups = [k for k in range(n_groups) if wanted[k]]
    passes = 0
    while open_groups and passes < _MOST_PASSES:
        asked = np.zeros(n_groups)
        for k in open_groups:
            asked[k] = math.exp(searches[k].log_beta)
        slopes, curvatures = (values.tolist() for values in derivatives(asked))
        passes += 1
        open_groups = [k for k in open_groups if not searches[k].ends(slopes[k], curvatures[k])]
    if open_groups:
        width = max(searches[k].upper - searches[k].lower for k in open_groups)
        warnings.warn(
            f"A temperature was not found to 1e-8 within {_MOST_PASSES} passes; it lies in a bracket of width "
            f"{width:.1e} in log beta.",
            ConvergenceWarning,
            stacklevel=2,
        )
    least, largest = (LEAST_BETA, LARGEST_BETA) if bounds is None else bounds
    betas = np.clip(np.exp([search.log_beta for search in searches]), least, largest).tolist()
    values = tuple(beta if asked_for else 1.0 for beta, asked_for in zip(betas, wanted))
    return Betas(values, not open_groups, passes, tuple(search.at_bound for search in searches))


class _Search:
    """One group's bracket in log beta. Plain numbers: there are a handful, and arrays would take most of the time."""

    def __init__(self, log_beta: float, origin: float, floor: float, ceiling: float) -> None:
        self.log_beta, self.origin = log_beta, origin
        self.floor = self.lower = floor
        self.ceiling = self.upper = ceiling
        self.tried: set[float] = set()
        self.last = math.inf
        self.at_bound = False

    def ends(self, slope: float, curvature: float) -> bool:
        """Take a step by the derivatives at the present place; say whether it was the last."""
        if slope == 0.0:
            if curvature == 0.0 and self.lower > self.floor:  # it fell, until all rows were right to the last digit
                self.log_beta, self.at_bound = self.ceiling, True
            elif curvature == 0.0 and self.log_beta != self.origin:  # a guess too far out to learn from
                self.log_beta = self.origin
                return False
            return True  # the minimum, or a loss that is flat: nothing to learn
        self.tried.add(self.log_beta)
        if slope < 0.0:
            self.lower = self.log_beta
        else:
            self.upper = self.log_beta
        if self.lower >= self.ceiling or self.upper <= self.floor:
            self.at_bound = True
            return True
        steepness = math.exp(self.log_beta) * curvature
        step = -slope / steepness if steepness > 0.0 else math.copysign(math.inf, -slope)
        target = self.log_beta + step
        if abs(step) < _LAST_STEP or self.upper - self.lower < _NARROW:
            self.log_beta = min(max(target, self.lower), self.upper)
            return True
        if not self.lower < target < self.upper:
            # Beyond a bound that was never tried: try the bound. Beyond one that was: halve the bracket.
            untried = self.ceiling if step > 0.0 else self.floor
            target = 0.5 * (self.lower + self.upper) if untried in self.tried else untried
        elif abs(step) > 0.5 * self.last:
            target = 0.5 * (self.lower + self.upper)
        self.last = abs(target - self.log_beta)
        self.log_beta = target
        return False


# What a group without a mistake gets: Laplace's answer, the beta of all samples, or the largest one allowed.
Separable = Literal["laplace", "pooled", "bound"]
# No answer is so far out that float32, in which some runtimes compute, could not hold it.
_EXTREMES = (1e-30, 1e30)
# A guess from as many samples, evenly spaced, comes before all: each spares the next several passes.
_FEW_SAMPLES = (125, 2000)
# Of as many times more samples a pass costs more than a guess.
_WORTH_A_GUESS = 4
# How far on either side of a guess beyond the usual bounds the answer is sought.
_AROUND_A_GUESS = 100.0
# How far a row's slope may be off before it is read again: 1e-8 is promised of what is made of all.
_TOLERANCE = 1e-12


def fit_beta(logits: Floats, labels: Labels, weights: Vector | None = None, near: float | None = None) -> float:
    """Return the beta = 1/T that minimises the mean NLL of softmax(beta * logits), as temperature scaling does.

    `near` is a guess; it saves passes and does not change the answer.
    """
    return float(fit_temperature(logits, labels, weights, near).values[0])


def fit_temperature(logits: Floats, labels: Labels, weights: Vector | None = None, near: float | None = None) -> Betas:
    """Return the same with a word on how it came about. Where there are many samples, some give a guess first.

    The first guess begins at the scale of the logits: the work does not depend on where the answer lies.
    """
    start = None if near is None else np.array([near])
    for count in _FEW_SAMPLES if near is None else ():
        if len(labels) < _WORTH_A_GUESS * count:
            break
        some = slice(None, None, len(labels) // count)
        state = ScaledLogits(logits[some], tolerance=_TOLERANCE)
        if start is None:
            start = _usual_beta(state)
        chosen = None if weights is None else weights[some]
        start = np.array(fit_betas(state, labels[some], start, chosen).values)
    return fit_betas(ScaledLogits(logits, tolerance=_TOLERANCE), labels, start, weights)


def _usual_beta(state: ScaledRows) -> Vector:
    """Return the beta at which the first two logits of a usual sample lie 2 apart: an answer that is mostly right."""
    apart = -state.runner_up_drop()
    usual = float(np.median(apart[apart > 0.0])) if (apart > 0.0).any() else 2.0
    return np.clip([2.0 / usual], *_EXTREMES)


def fit_betas(state: ScaledRows, labels: Labels, start: Vector | None = None, weights: Vector | None = None) -> Betas:
    """Return the beta that minimises the negative log-likelihood of all samples, relative to the present scales.

    `start` is a guess; it saves passes and does not change the answer. `weights` counts a sample more than once.
    """
    members = np.zeros(len(labels), dtype=np.intp)
    return fit_losses(GroupLosses(state, state.drop_at(labels), members, 1, weights), start)


def fit_losses(losses: GroupLosses, start: Vector | None = None, separable: Separable = "laplace") -> Betas:
    """Return the beta of each group that minimises its loss.

    A group without a mistake gets what `separable` says. Pooled, it takes the beta of all samples, but grows more
    confident (beta > 1) no further than one more, wrong, sample of its own would allow: otherwise it would grow without
    end, iteration by iteration, while the groups that hold the mistakes keep the common beta above 1.
    """
    n_groups = len(losses.sizes)

    def derivatives(betas: Vector) -> tuple[Vector, Vector]:
        first, second = losses.sums(betas)
        return first - losses.pull, second

    wanted = np.ones(n_groups, dtype=bool) if separable == "bound" else losses.mistaken
    bounds = None
    if start is not None and separable != "bound" and ((start < LEAST_BETA) | (start > LARGEST_BETA)).any():
        bounds = np.minimum(start / _AROUND_A_GUESS, LEAST_BETA), np.maximum(start * _AROUND_A_GUESS, LARGEST_BETA)
    answer = solve_betas(derivatives, n_groups, start, bounds=bounds, chosen=wanted)
    if separable == "bound":
        return answer
    beyond = np.array(answer.at_bound) & losses.mistaken
    certain = losses.occupied & ~losses.mistaken
    everyone = 1.0
    if certain.any() and separable == "pooled":
        pooled = fit_losses(losses.pooled())
        answer = answer.replaced(certain, pooled.repeated(n_groups))
        everyone = pooled.values[0]
        certain &= everyone > 1.0
    if not (beyond.any() or certain.any()):
        return answer
    margins = losses.margins()
    n_right = np.where(certain, np.maximum(losses.sizes, 1e-300), np.inf)
    doubt = losses.by_group(-margins) / n_right

    def derivatives_with_doubt(betas: Vector) -> tuple[Vector, Vector]:
        """One more sample, spread evenly over those of its group, has the same slopes and the truth at the second."""
        first, second = losses.sums(betas)
        return (1.0 + 1.0 / n_right) * first - losses.pull - doubt, (1.0 + 1.0 / n_right) * second

    least, largest, middle = _bracket(margins, losses.members, n_groups)
    again = solve_betas(derivatives_with_doubt, n_groups, middle, bounds=(least, largest), chosen=beyond | certain)
    if separable == "pooled":
        again = again.limited(certain, 1.0, everyone)
    return answer.replaced(beyond | certain, again)


def _bracket(gaps: Vector, members: NDArray[Any], n_groups: int) -> tuple[Vector, Vector, Vector]:
    """Return a least, a largest and a middling beta for each group, by how far its samples' first two logits lie apart.

    At the least beta a usual sample is at chance; at the largest even the closest pair of logits is settled.
    """
    least, largest, middle = np.full(n_groups, LEAST_BETA), np.full(n_groups, LARGEST_BETA), np.ones(n_groups)
    for k in range(n_groups):
        apart = gaps[(members == k) & (gaps > 0.0)]
        if len(apart):
            usual = float(np.median(apart))
            least[k] = max(min(LEAST_BETA, 100.0 * LEAST_BETA / usual), _EXTREMES[0])
            largest[k] = min(max(LARGEST_BETA, LARGEST_BETA / float(apart.min())), _EXTREMES[1])
            middle[k] = 1.0 / usual
    return least, largest, middle
