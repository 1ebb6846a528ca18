"""Temperatures: one for all samples, or one for each of several groups.

The loss of a group is sum_i F_i(s_i b) - s_i b d_i, where F is a row's log-partition, s its scale
and d how far the true class lies below the largest logit. Its derivative grows with b, so the best
b is unique. Newton's method finds it inside a bracket. Steps are taken in log b, which keeps b
positive, and one pass over the data serves all groups.

A group in which every prediction is right has no best temperature: more confidence always raises
the likelihood. It gets the temperature for one additional wrong sample (Laplace). That sample is
typical of the group, and its label is its second class. The result is finite and does not depend on
the scale of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.checks import Flags, Floats, Labels, Vector
from recal.engine.series import ScaledLogits, ScaledRows


class GroupLosses:
    """Derivatives of the loss of each group at the current scales; `weights` says how often each
    sample counts.

    Attributes
    ----------
    members : (n_samples,) each sample's group
    sizes : (n_groups,) number of samples, or sum of their weights
    occupied : (n_groups,) whether the group has a sample of positive weight
    mistaken : (n_groups,) whether the group has a wrong prediction
    """

    def __init__(
        self,
        rows: ScaledRows,
        drops: Vector,
        members: NDArray[Any],
        n_groups: int,
        weights: Vector | None = None,
    ) -> None:
        self.rows, self.drops, self.weights = rows, drops, weights
        self.members, self.n_groups = members, n_groups
        counts = self.counts = np.ones(len(members)) if weights is None else weights
        self._first_factor, self._second_factor = rows.scales * counts, rows.scales**2 * counts
        self.sizes = np.bincount(members, counts, n_groups).astype(np.float64)
        self.occupied = np.bincount(members, counts > 0.0, n_groups) > 0.0
        self.mistaken = np.bincount(members, (counts > 0.0) & (drops < 0.0), n_groups) > 0.0
        self._pull = np.bincount(members, self._first_factor * drops, n_groups)

    def derivatives(
        self, betas: Vector, more: Vector | float = 0.0, doubt: Vector | float = 0.0
    ) -> tuple[Vector, Vector]:
        """Return the first and second derivative of each group's loss; groups with a beta of 0 are
        skipped.

        `more` and `doubt` add a sample to a group: its share of the group's weight, and its pull.
        """
        first, second = self.rows.slopes(betas[self.members])
        slope, curvature = (
            np.bincount(self.members, values, len(betas)).astype(np.float64)
            for values in (first * self._first_factor, second * self._second_factor)
        )
        return (1.0 + more) * slope - self._pull - doubt, (1.0 + more) * curvature


# Maps one beta per group to the first and second derivative of each group's loss; a beta of 0 skips
# the group.
Derivatives = Callable[[Vector], tuple[Vector, Vector]]

LEAST_BETA, LARGEST_BETA = 1e-3, 100.0


@dataclass(frozen=True)
class FittedBetas:
    """Betas per group, with information about the search."""

    values: Vector
    converged: bool
    at_bound: Flags


def solve_betas(
    derivatives: Derivatives,
    n_groups: int,
    start: Vector | None = None,
    *,
    bounds: tuple[Vector, Vector] | None = None,
    chosen: Flags | None = None,
) -> FittedBetas:
    """Return the beta of each group that minimises its loss. A good `start` saves passes.

    `bounds` are the smallest and the largest beta of each group; the search then begins at `start`
    within them. Groups that are not `chosen` keep a beta of 1.
    """
    least, largest = bounds or (np.full(n_groups, LEAST_BETA), np.full(n_groups, LARGEST_BETA))
    log_beta = np.log(np.clip(np.ones(n_groups) if start is None else start, least, largest))
    origin = np.zeros(n_groups) if bounds is None else log_beta
    ends = np.stack([log_beta, origin, np.log(least), np.log(largest)], 1)
    searches = [_Search(*row) for row in ends.tolist()]
    active = np.ones(n_groups, dtype=bool) if chosen is None else chosen
    open_groups = np.flatnonzero(active).tolist()
    for _ in range(100):
        if not open_groups:
            break
        trial = np.zeros(n_groups)
        for k in open_groups:
            trial[k] = math.exp(searches[k].log_beta)
        slopes, curvatures = (values.tolist() for values in derivatives(trial))
        open_groups = [k for k in open_groups if not searches[k].step(slopes[k], curvatures[k])]
    betas = np.clip(np.exp([search.log_beta for search in searches]), least, largest)
    at_bound = np.array([search.at_bound for search in searches])
    return FittedBetas(np.where(active, betas, 1.0), not open_groups, at_bound)


class _Search:
    """The bracket of one group in log beta.

    There are only a few groups, and plain floats are faster than arrays.
    """

    def __init__(self, log_beta: float, origin: float, floor: float, ceiling: float) -> None:
        self.log_beta, self.origin = log_beta, origin
        self.floor = self.lower = floor
        self.ceiling = self.upper = ceiling
        self.tried: set[float] = set()
        self.last = math.inf
        self.at_bound = False

    def step(self, slope: float, curvature: float) -> bool:
        """Take a step from the derivatives at the current point; return whether it was the last."""
        if slope == 0.0:
            if curvature == 0.0 and self.lower > self.floor:
                # The loss fell until its derivatives underflowed.
                self.log_beta, self.at_bound = self.ceiling, True
            elif curvature == 0.0 and self.log_beta != self.origin:
                self.log_beta = self.origin  # the start was too extreme to give a slope
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
        # After so small a Newton step, the error is about its square, far below 1e-8. Rounding can
        # keep a slope from ever becoming small; a narrow bracket then ends the search.
        if abs(step) < 1e-5 or self.upper - self.lower < 1e-9:
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


# The beta of a group without mistakes: Laplace's estimate, the beta of all samples, or the upper
# bound.
Separable = Literal["laplace", "pooled", "bound"]
# Betas stay within these bounds, so that float32, which some runtimes use, can represent them.
_EXTREMES = (1e-30, 1e30)
# Rows whose slope may be wrong by more than this are computed again, so that beta is exact to 1e-8.
_SLOPE_ERROR = 1e-12


def fit_beta(
    logits: Floats, labels: Labels, weights: Vector | None = None, near: float | None = None
) -> float:
    """Return the beta = 1/T that minimises the mean NLL of softmax(beta * logits), as temperature
    scaling does.

    `near` is a starting point; it saves passes and does not change the result.
    """
    return float(fit_temperature(logits, labels, weights, near).values[0])


def fit_temperature(
    logits: Floats, labels: Labels, weights: Vector | None = None, near: float | None = None
) -> FittedBetas:
    """Return the same beta with information about the search. With many samples, subsamples give
    the starting point.

    The first subsample starts at the scale of the logits, so the cost does not depend on the size
    of the result.
    """
    start = None if near is None else np.array([near])
    # A good starting point saves several full passes, which cost more than a pass over a fourth.
    for count in (125, 2000) if near is None else ():
        if len(labels) < 4 * count:
            break
        some = slice(None, None, len(labels) // count)
        state = ScaledLogits(logits[some], tolerance=_SLOPE_ERROR)
        if start is None:
            # At this beta the two largest logits of a median sample differ by 2.
            apart = -state.runner_up_drop()
            usual = float(np.median(apart[apart > 0.0])) if (apart > 0.0).any() else 2.0
            start = np.clip([2.0 / usual], *_EXTREMES)
        some_weights = None if weights is None else weights[some]
        start = fit_betas(state, labels[some], start, some_weights).values
    return fit_betas(ScaledLogits(logits, tolerance=_SLOPE_ERROR), labels, start, weights)


def fit_betas(
    state: ScaledRows, labels: Labels, start: Vector | None = None, weights: Vector | None = None
) -> FittedBetas:
    """Return the beta that minimises the negative log-likelihood of all samples, relative to the
    current scales.

    `start` saves passes and does not change the result. `weights` says how often each sample
    counts.
    """
    members = np.zeros(len(labels), dtype=np.intp)
    return fit_losses(GroupLosses(state, state.drop_at(labels), members, 1, weights), start)


def fit_losses(
    losses: GroupLosses, start: Vector | None = None, separable: Separable = "laplace"
) -> FittedBetas:
    """Return the beta of each group that minimises its loss.

    `separable` decides about groups without mistakes. With "pooled" they get the beta of all
    samples. If that is above 1, it is limited to what one more, wrong, sample of the group would
    give: otherwise the group would become more confident in every iteration as long as the mistakes
    of other groups keep the common beta above 1.
    """
    n_groups = losses.n_groups
    if separable == "bound":
        return solve_betas(losses.derivatives, n_groups, start)
    bounds = None
    if start is not None and ((start < LEAST_BETA) | (start > LARGEST_BETA)).any():
        bounds = np.minimum(start / 100.0, LEAST_BETA), np.maximum(start * 100.0, LARGEST_BETA)
    answer = solve_betas(losses.derivatives, n_groups, start, bounds=bounds, chosen=losses.mistaken)
    faultless = losses.occupied & ~losses.mistaken
    largest = np.inf
    if faultless.any() and separable == "pooled":
        everyone = np.zeros(len(losses.members), dtype=np.intp)
        pooled = fit_losses(GroupLosses(losses.rows, losses.drops, everyone, 1, losses.weights))
        values = np.where(faultless, pooled.values, answer.values)
        answer = replace(answer, values=values, converged=answer.converged and pooled.converged)
        largest = float(pooled.values[0])
        faultless &= largest > 1.0
    uncertain = faultless | (answer.at_bound & losses.mistaken)
    if not uncertain.any():
        return answer
    # Add one sample to each group without mistakes: an average of its samples whose true class is
    # the second one.
    margins = -losses.rows.scales * losses.rows.runner_up_drop()
    n_right = np.where(faultless, np.maximum(losses.sizes, 1e-300), np.inf)
    doubt = np.bincount(losses.members, -margins * losses.counts, n_groups) / n_right
    with_doubt = partial(losses.derivatives, more=1.0 / n_right, doubt=doubt)
    lower, upper, middle = _bracket(margins, losses.members, n_groups)
    again = solve_betas(with_doubt, n_groups, middle, bounds=(lower, upper), chosen=uncertain)
    limited = np.clip(again.values, 1.0, largest) if separable == "pooled" else again.values
    values = np.where(faultless, limited, np.where(uncertain, again.values, answer.values))
    return replace(answer, values=values, converged=answer.converged and again.converged)


def _bracket(gaps: Vector, members: NDArray[Any], n_groups: int) -> tuple[Vector, Vector, Vector]:
    """Return a smallest, a largest and a middle beta for each group from the margins between its
    two largest logits.

    At the smallest beta a median sample is at chance; at the largest beta even the smallest margin
    is decisive.
    """
    least, largest = np.full(n_groups, LEAST_BETA), np.full(n_groups, LARGEST_BETA)
    middle = np.ones(n_groups)
    for k in range(n_groups):
        apart = gaps[(members == k) & (gaps > 0.0)]
        if len(apart):
            usual = float(np.median(apart))
            least[k] = max(min(LEAST_BETA, 100.0 * LEAST_BETA / usual), _EXTREMES[0])
            largest[k] = min(max(LARGEST_BETA, LARGEST_BETA / float(apart.min())), _EXTREMES[1])
            middle[k] = 1.0 / usual
    return least, largest, middle
