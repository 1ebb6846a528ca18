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
    """Derivatives of the loss of each group at the current scales; `weights` says how often each sample counts.

    Attributes
    ----------
    members : (n_samples,) each sample's group
    sizes : (n_groups,) number of samples, or sum of their weights
    occupied, mistaken : (n_groups,) whether the group has a sample of positive weight, and a wrong prediction
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
        """Return the sums of s F'(s b) and of s**2 F''(s b) per group; groups with a beta of 0 are skipped."""
        scales = self._rows.scales
        first, second = self._rows.slopes(betas[self.members])
        return self.by_group(scales * first), self.by_group(scales**2 * second)

    def by_group(self, values: Vector) -> Vector:
        """Return each group's sum of values, one per sample."""
        counted = values if self._weights is None else values * self._weights
        return np.bincount(self.members, weights=counted, minlength=self._n_groups).astype(np.float64)

    def margins(self) -> Vector:
        """Return the difference between the two largest logits of each sample at the current scale."""
        return -self._rows.scales * self._rows.runner_up_drop()

    def pooled(self) -> GroupLosses:
        """Return the loss of all samples as one group."""
        members = np.zeros(len(self.members), dtype=np.intp)
        return GroupLosses(self._rows, self._drops, members, 1, self._weights)


# Maps one beta per group to the first and second derivative of each group's loss; a beta of 0 skips the group.
Derivatives = Callable[[Vector], tuple[Vector, Vector]]

LEAST_BETA, LARGEST_BETA = 1e-3, 100.0
# After a Newton step this small, the error is about its square, far below 1e-8.
_LAST_STEP = 1e-5
# Rounding can keep a slope from ever becoming small. The search also ends when the bracket is this narrow.
_NARROW = 1e-9
_MOST_PASSES = 100


@dataclass(frozen=True)
class Betas:
    """Betas per group, with information about the search."""

    values: tuple[float, ...]
    converged: bool
    passes: int
    at_bound: tuple[bool, ...]

    def replaced(self, chosen: NDArray[np.bool_], by: Betas) -> Betas:
        """Return these betas, with those of the chosen groups taken from `by`."""
        values = tuple(new if other else old for old, new, other in zip(self.values, by.values, chosen))
        bounds = tuple(new if other else old for old, new, other in zip(self.at_bound, by.at_bound, chosen))
        return Betas(values, self.converged and by.converged, self.passes + by.passes, bounds)

    def limited(self, chosen: NDArray[np.bool_], least: float, largest: float) -> Betas:
        """Return these betas, with those of the chosen groups clipped to a range."""
        values = (min(max(v, least), largest) if other else v for v, other in zip(self.values, chosen))
        return replace(self, values=tuple(values))

    def repeated(self, n_groups: int) -> Betas:
        """Return the beta of one group for several groups."""
        return Betas(self.values * n_groups, self.converged, self.passes, self.at_bound * n_groups)


def solve_betas(
    derivatives: Derivatives,
    n_groups: int,
    start: Vector | None = None,
    *,
    bounds: tuple[Vector, Vector] | None = None,
    chosen: NDArray[np.bool_] | None = None,
) -> Betas:
    """Return the beta of each group that minimises its loss. A good `start` saves passes.

    `bounds` are the least and the largest beta of each group; the search then begins at `start` within them. Groups
    that are not `chosen` keep a beta of 1.
    """
    if bounds is None:
        initial = [1.0] * n_groups if start is None else np.clip(start, LEAST_BETA, LARGEST_BETA).tolist()
        floor, ceiling = [math.log(LEAST_BETA)] * n_groups, [math.log(LARGEST_BETA)] * n_groups
    else:
        initial = np.clip(np.ones(n_groups) if start is None else start, *bounds).tolist()
        floor, ceiling = np.log(bounds[0]).tolist(), np.log(bounds[1]).tolist()
    log_beta = [math.log(beta) for beta in initial]
    origin = [0.0] * n_groups if bounds is None else list(log_beta)
    searches = [_Search(*ends) for ends in zip(log_beta, origin, floor, ceiling)]
    active = [True] * n_groups if chosen is None else chosen.tolist()
    open_groups = [k for k in range(n_groups) if active[k]]
    passes = 0
    while open_groups and passes < _MOST_PASSES:
        trial = np.zeros(n_groups)
        for k in open_groups:
            trial[k] = math.exp(searches[k].log_beta)
        slopes, curvatures = (values.tolist() for values in derivatives(trial))
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
    values = tuple(beta if is_active else 1.0 for beta, is_active in zip(betas, active))
    return Betas(values, not open_groups, passes, tuple(search.at_bound for search in searches))


class _Search:
    """The bracket of one group in log beta. There are only a few groups, and plain floats are faster than arrays."""

    def __init__(self, log_beta: float, origin: float, floor: float, ceiling: float) -> None:
        self.log_beta, self.origin = log_beta, origin
        self.floor = self.lower = floor
        self.ceiling = self.upper = ceiling
        self.tried: set[float] = set()
        self.last = math.inf
        self.at_bound = False

    def ends(self, slope: float, curvature: float) -> bool:
        """Take a step, initial the derivatives at the current point; return whether it was the last."""
        if slope == 0.0:
            if curvature == 0.0 and self.lower > self.floor:  # the loss fell until it underflowed
                self.log_beta, self.at_bound = self.ceiling, True
            elif curvature == 0.0 and self.log_beta != self.origin:  # the start was too extreme to give a slope
                self.log_beta = self.origin
                return False
            return True  # the minimum, or a constant loss
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
            # The step leaves the bracket: try the bound, or bisect if the bound was tried before.
            untried = self.ceiling if step > 0.0 else self.floor
            target = 0.5 * (self.lower + self.upper) if untried in self.tried else untried
        elif abs(step) > 0.5 * self.last:
            target = 0.5 * (self.lower + self.upper)
        self.last = abs(target - self.log_beta)
        self.log_beta = target
        return False


# What a group without mistakes gets: Laplace's estimate, the beta of all samples, or the upper bound.
Separable = Literal["laplace", "pooled", "bound"]
# Betas stay within these bounds, so that float32, which some runtimes compute in, can hold them.
_EXTREMES = (1e-30, 1e30)
# Start from subsamples of these sizes; a good starting point saves several full passes.
_FEW_SAMPLES = (125, 2000)
# Above this ratio, a full pass costs more than refining the estimate on a subsample.
_WORTH_A_GUESS = 4
# If the starting point lies outside the usual bounds, search this factor below and above it.
_AROUND_A_GUESS = 100.0
# Rows whose slope may be wrong by more than this are computed again, so that beta is exact to 1e-8.
_TOLERANCE = 1e-12


def fit_beta(logits: Floats, labels: Labels, weights: Vector | None = None, near: float | None = None) -> float:
    """Return the beta = 1/T that minimises the mean NLL of softmax(beta * logits), as temperature scaling does.

    `near` is a starting point; it saves passes and does not change the result.
    """
    return float(fit_temperature(logits, labels, weights, near).values[0])


def fit_temperature(logits: Floats, labels: Labels, weights: Vector | None = None, near: float | None = None) -> Betas:
    """Return the same beta with information about the search. With many samples, subsamples give the starting point.

    The first subsample starts at the scale of the logits, so the cost does not depend on the size of the result.
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
    """Return the beta at which the two largest logits of a median sample differ by 2."""
    apart = -state.runner_up_drop()
    usual = float(np.median(apart[apart > 0.0])) if (apart > 0.0).any() else 2.0
    return np.clip([2.0 / usual], *_EXTREMES)


def fit_betas(state: ScaledRows, labels: Labels, start: Vector | None = None, weights: Vector | None = None) -> Betas:
    """Return the beta that minimises the negative log-likelihood of all samples, relative to the current scales.

    `start` saves passes and does not change the result. `weights` says how often each sample counts.
    """
    members = np.zeros(len(labels), dtype=np.intp)
    return fit_losses(GroupLosses(state, state.drop_at(labels), members, 1, weights), start)


def fit_losses(losses: GroupLosses, start: Vector | None = None, separable: Separable = "laplace") -> Betas:
    """Return the beta of each group that minimises its loss.

    `separable` decides about groups without mistakes. With "pooled" they get the beta of all samples. If that is above
    1, it is limited to what one more, wrong, sample of the group would give: otherwise the group would become more
    confident in every iteration as long as the mistakes of other groups keep the common beta above 1.
    """
    n_groups = len(losses.sizes)

    def derivatives(betas: Vector) -> tuple[Vector, Vector]:
        first, second = losses.sums(betas)
        return first - losses.pull, second

    active = np.ones(n_groups, dtype=bool) if separable == "bound" else losses.mistaken
    bounds = None
    if start is not None and separable != "bound" and ((start < LEAST_BETA) | (start > LARGEST_BETA)).any():
        bounds = np.minimum(start / _AROUND_A_GUESS, LEAST_BETA), np.maximum(start * _AROUND_A_GUESS, LARGEST_BETA)
    answer = solve_betas(derivatives, n_groups, start, bounds=bounds, chosen=active)
    if separable == "bound":
        return answer
    beyond = np.array(answer.at_bound) & losses.mistaken
    separable_groups = losses.occupied & ~losses.mistaken
    pooled_beta = 1.0
    if separable_groups.any() and separable == "pooled":
        pooled = fit_losses(losses.pooled())
        answer = answer.replaced(separable_groups, pooled.repeated(n_groups))
        pooled_beta = pooled.values[0]
        separable_groups &= pooled_beta > 1.0
    if not (beyond.any() or separable_groups.any()):
        return answer
    margins = losses.margins()
    n_right = np.where(separable_groups, np.maximum(losses.sizes, 1e-300), np.inf)
    doubt = losses.by_group(-margins) / n_right

    def derivatives_with_doubt(betas: Vector) -> tuple[Vector, Vector]:
        """Add one sample to each group: an average of its samples whose true class is the second one."""
        first, second = losses.sums(betas)
        return (1.0 + 1.0 / n_right) * first - losses.pull - doubt, (1.0 + 1.0 / n_right) * second

    least, largest, middle = _bracket(margins, losses.members, n_groups)
    again = solve_betas(
        derivatives_with_doubt, n_groups, middle, bounds=(least, largest), chosen=beyond | separable_groups
    )
    if separable == "pooled":
        again = again.limited(separable_groups, 1.0, pooled_beta)
    return answer.replaced(beyond | separable_groups, again)


def _bracket(gaps: Vector, members: NDArray[Any], n_groups: int) -> tuple[Vector, Vector, Vector]:
    """Return a least, a largest and a middle beta for each group from the margins between its two largest logits.

    At the least beta a median sample is at chance; at the largest even the smallest margin is decisive.
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
