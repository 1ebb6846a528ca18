"""One temperature for each of several groups, by Newton's method with a bracket.

The loss of a group is sum_i F_i(s_i b) - s_i b d_i, where F is a row's log-partition and d how far the true class lies
below the largest logit. Its derivative grows with b, so its root, the best b, is unique; steps are taken in log b,
which keeps b positive. One pass over the data serves all groups at once.

Answers that have no root inside the bounds, [1e-3, 100] unless told otherwise, are bounded: a group whose every sample
is right with room to spare (separable) gets the upper bound, one that would be best served by pure chance the lower,
and a group that is empty, or whose loss is flat at the start already (all logits equal, or every sample right beyond
the last digit), keeps 1. What a fit makes of such answers is decided in `calibrators.machinery.common_scale`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recal.errors import ConvergenceWarning

Vector = NDArray[np.float64]
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
