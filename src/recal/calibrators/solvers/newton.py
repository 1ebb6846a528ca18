"""Truncated Newton: the solver of the parametric calibrators.

Their losses are convex and smooth, and a product with the Hessian costs as much as a gradient, so that a handful of
Newton steps, each found by preconditioned conjugate gradients, replaces hundreds of first-order steps. Progress is
measured by the Newton decrement, an estimate of how far the loss still is from its minimum, so tolerances are stated
in units of the loss and do not depend on the scale of the logits.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from recal.errors import ConvergenceWarning

# How near its minimum a loss must be where the fit only tells how a method does on samples left out.
NEAR_TOL = 1e-5
_ARMIJO = 1e-4
# A step shorter than this means that rounding, not curvature, decides.
_SHORTEST_STEP = 2.0**-20


class Problem(Protocol):
    """A convex smooth loss. `evaluate` moves to a point; the other two speak about that point."""

    def evaluate(self, point: np.ndarray) -> float: ...

    def gradient(self) -> np.ndarray: ...

    def hessian_times(self, direction: np.ndarray) -> np.ndarray: ...

    def precondition(self, residual: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Solution:
    """Where a solve ended: the point, its loss, how far the loss may still be from its minimum, and the work done."""

    point: np.ndarray
    loss: float
    gap: float
    n_steps: int
    n_products: int


# Conjugate gradients of one step; what is left then is mended by the next.
_MOST_PRODUCTS = 100


def minimise(
    problem: Problem, start: np.ndarray, *, tol: float = 1e-7, max_iter: int = 50, warn: bool = True
) -> Solution:
    """Minimise from `start` until a step promises to lower the loss by less than `tol`; that step is still taken.

    Newton's method converges quadratically, so the loss then lies closer to its minimum than `tol` by far.
    """
    point, loss = start, problem.evaluate(start)
    gap, products, steps = np.inf, 0, 0
    while steps < max_iter:
        steps += 1
        gradient = problem.gradient()
        direction, used = _newton_direction(problem, gradient, tol)
        products += used
        slope = float(np.vdot(gradient, direction))
        gap = -0.5 * slope
        if not np.isfinite(gap):
            warnings.warn(
                f"The solver met a number that is not finite after {steps - 1} steps and stopped there, with the loss "
                f"at {loss:.6g}. The logits may be too large to multiply: scale them down, or clip them.",
                ConvergenceWarning,
                stacklevel=3,
            )
            break
        if gap <= 0.0:
            gap = 0.0
            break
        moved = _line_search(problem, point, loss, direction, slope)
        if moved is None:
            problem.evaluate(point)
            break
        previous, (point, loss) = loss, moved
        if gap <= tol or (gap <= 100 * tol and previous - loss <= 0.1 * tol):
            break
    else:
        if warn and gap > 1e-5:
            warnings.warn(
                f"The solver stopped after {max_iter} steps with the loss about {gap:.1e} above its minimum. "
                "The fit is usable; raise the penalty for a better-posed problem.",
                ConvergenceWarning,
                stacklevel=3,
            )
    return Solution(point, loss, float(gap), steps, products)


def _newton_direction(problem: Problem, gradient: np.ndarray, tol: float) -> tuple[np.ndarray, int]:
    """Solve H d = -g by preconditioned conjugate gradients, as exactly as the decrease still to be had is worth."""
    direction = np.zeros_like(gradient)
    residual = -gradient
    ahead = problem.precondition(residual)
    conjugate = ahead.copy()
    energy = first = float(np.vdot(residual, ahead))
    # `first` estimates twice the decrease to be had: loose far from the minimum, tight near it.
    forcing = min(0.1, np.sqrt(max(first, 0.0)))
    target = max(first * forcing**2, 0.01 * tol)
    for used in range(1, _MOST_PRODUCTS + 1):
        curved = problem.hessian_times(conjugate)
        curvature = float(np.vdot(conjugate, curved))
        if not curvature > 0.0:
            return (direction if used > 1 else ahead), used
        length = energy / curvature
        direction += length * conjugate
        residual -= length * curved
        ahead = problem.precondition(residual)
        renewed = float(np.vdot(residual, ahead))
        if not renewed > target:
            return direction, used
        conjugate *= renewed / energy
        conjugate += ahead
        energy = renewed
    return direction, _MOST_PRODUCTS


def _line_search(
    problem: Problem, point: np.ndarray, loss: float, direction: np.ndarray, slope: float
) -> tuple[np.ndarray, float] | None:
    """Halve the step until the loss falls as the slope promises; None where rounding hides any fall."""
    step = 1.0
    while step > _SHORTEST_STEP:
        trial = point + step * direction
        value = problem.evaluate(trial)
        if value <= loss + _ARMIJO * step * slope:
            return trial, value
        step *= 0.5
    return None
