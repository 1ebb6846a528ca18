"""One temperature for each of several groups, by Newton's method with a bracket.

The loss of a group is sum_i F_i(s_i b) - s_i b d_i, where F is a row's log-partition and d how far the true class lies
below the largest logit. Its derivative grows with b, so its root, the best b, is unique; steps are taken in log b,
which keeps b positive. One pass over the data serves all groups at once.

Answers that have no root inside [1e-3, 100] are bounded: a group whose every sample is right with room to spare
(separable) gets 100, one that would be best served by pure chance gets 1e-3, and a group that is empty, or whose loss
is flat at 1 already (all logits equal, or every sample right beyond the last digit), keeps 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.errors import ConvergenceWarning

Vector = NDArray[np.float64]
# Maps betas per group to the loss's first and second derivative in beta, per group; a beta of 0 asks for none.
Derivatives = Callable[[Vector], tuple[Vector, Vector]]

LEAST_BETA, LARGEST_BETA = 1e-3, 100.0
_LOWER, _UPPER = float(np.log(LEAST_BETA)), float(np.log(LARGEST_BETA))
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


def solve_betas(derivatives: Derivatives, n_groups: int, start: Vector | None = None) -> Betas:
    """Return the beta of each group that minimises its loss. `start` is a guess that may save passes."""
    log_beta = np.zeros(n_groups) if start is None else np.log(np.clip(start, *_SENSIBLE_START))
    lower, upper = np.full(n_groups, _LOWER), np.full(n_groups, _UPPER)
    last = np.full(n_groups, np.inf)
    at_bound = np.zeros(n_groups, dtype=bool)
    open_groups = np.ones(n_groups, dtype=bool)
    passes = 0
    while open_groups.any() and passes < _MOST_PASSES:
        slope, curvature = derivatives(np.where(open_groups, np.exp(log_beta), 0.0))
        passes += 1
        for k in np.flatnonzero(open_groups):
            if slope[k] == 0.0:
                if curvature[k] == 0.0 and lower[k] > _LOWER:  # it fell, until all rows were right to the last digit
                    log_beta[k], at_bound[k], open_groups[k] = _UPPER, True, False
                elif curvature[k] == 0.0 and log_beta[k] != 0.0:  # a guess too far out to learn from
                    log_beta[k] = 0.0
                else:  # the minimum, or a loss that is flat: nothing to learn
                    open_groups[k] = False
                continue
            if slope[k] < 0.0:
                lower[k] = log_beta[k]
            else:
                upper[k] = log_beta[k]
            if lower[k] >= _UPPER or upper[k] <= _LOWER:
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
                untried = _UPPER if step > 0.0 else _LOWER
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
    betas = tuple(float(b) for b in np.clip(np.exp(log_beta), LEAST_BETA, LARGEST_BETA))
    return Betas(betas, not open_groups.any(), passes, tuple(bool(b) for b in at_bound))
