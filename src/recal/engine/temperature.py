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
_LAST_STEP = 1e-6
# Rounding can keep a slope from ever being small; a bracket this narrow says as much.
_NARROW = 1e-9
_MOST_PASSES = 100
# A guess from a group that has since changed may be far off; beyond this it is no help.
_SENSIBLE_START = (0.25, 4.0)


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
        log_beta = np.zeros(n_groups) if start is None else np.log(np.clip(start, *_SENSIBLE_START))
        least, largest = np.full(n_groups, LEAST_BETA), np.full(n_groups, LARGEST_BETA)
    else:
        least, largest = bounds
        log_beta = np.log(np.clip(np.ones(n_groups) if start is None else start, least, largest))
    origin = np.zeros(n_groups) if bounds is None else log_beta.copy()
    floor, ceiling = np.log(least), np.log(largest)
    lower, upper = floor.copy(), ceiling.copy()
    last = np.full(n_groups, np.inf)
    at_bound = np.zeros(n_groups, dtype=bool)
    open_groups = np.ones(n_groups, dtype=bool) if chosen is None else chosen.copy()
    passes = 0
    while open_groups.any() and passes < _MOST_PASSES:
        slope, curvature = derivatives(np.where(open_groups, np.exp(log_beta), 0.0))
        passes += 1
        for k in np.flatnonzero(open_groups):
            if slope[k] == 0.0:
                if curvature[k] == 0.0 and lower[k] > floor[k]:  # it fell, until all rows were right to the last digit
                    log_beta[k], at_bound[k], open_groups[k] = ceiling[k], True, False
                elif curvature[k] == 0.0 and log_beta[k] != origin[k]:  # a guess too far out to learn from
                    log_beta[k] = origin[k]
                else:  # the minimum, or a loss that is flat: nothing to learn
                    open_groups[k] = False
                continue
            if slope[k] < 0.0:
                lower[k] = log_beta[k]
            else:
                upper[k] = log_beta[k]
            if lower[k] >= ceiling[k] or upper[k] <= floor[k]:
                at_bound[k], open_groups[k] = True, False
                continue
            step = (
                -slope[k] / (np.exp(log_beta[k]) * curvature[k])
                if curvature[k] > 0.0
                else np.copysign(np.inf, -slope[k])
            )
            target = log_beta[k] + step
            if abs(step) < _LAST_STEP or upper[k] - lower[k] < _NARROW:
                open_groups[k] = False
            elif not lower[k] < target < upper[k]:
                # Beyond a bound that was never tried: try the bound. Beyond one that was: halve the bracket.
                untried = ceiling[k] if step > 0.0 else floor[k]
                target = untried if untried in (lower[k], upper[k]) else 0.5 * (lower[k] + upper[k])
            elif abs(step) > 0.5 * last[k]:
                target = 0.5 * (lower[k] + upper[k])
            last[k] = abs(target - log_beta[k])
            log_beta[k] = target
            if not open_groups[k]:
                log_beta[k] = min(max(target, lower[k]), upper[k])
    if open_groups.any():
        warnings.warn(
            f"A temperature was not found to 1e-8 within {_MOST_PASSES} passes; it lies in a bracket of width "
            f"{float((upper - lower)[open_groups].max()):.1e} in log beta.",
            ConvergenceWarning,
            stacklevel=2,
        )
    betas = np.clip(np.exp(log_beta), least, largest)
    if chosen is not None:
        betas = np.where(chosen, betas, 1.0)
    return Betas(tuple(map(float, betas)), not open_groups.any(), passes, tuple(map(bool, at_bound)))
