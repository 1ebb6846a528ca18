"""Truncated Newton: the solver of the parametric calibrators.

Their losses are convex and smooth, and a product with the Hessian costs as much as a gradient. A few Newton steps, each
solved by preconditioned conjugate gradients, therefore replace hundreds of first-order steps. Progress is measured by
the Newton decrement, which estimates the distance of the loss from its minimum. Tolerances are in units of the loss and
do not depend on the scale of the logits.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from recal.errors import ConvergenceWarning

# Tolerance of fits that only estimate how well a method does on samples left out.
NEAR_TOL = 1e-5
_ARMIJO = 1e-4
# Below this step length, differences of the loss are rounding errors.
_SHORTEST_STEP = 2.0**-20


class Problem(Protocol):
    """A convex smooth loss. The other methods refer to the point that `evaluate` saw last."""

    def evaluate(self, point: np.ndarray) -> float: ...

    def gradient(self) -> np.ndarray: ...

    def hessian_times(self, direction: np.ndarray) -> np.ndarray: ...

    def precondition(self, residual: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Solution:
    """The final point, its loss, the estimated distance of the loss from its minimum, and the work done."""

    point: np.ndarray
    loss: float
    gap: float
    n_steps: int
    n_products: int


# Conjugate gradient iterations per Newton step; the next step corrects what remains.
_MOST_PRODUCTS = 100


def minimise(
    problem: Problem, start: np.ndarray, *, tol: float = 1e-7, max_iter: int = 50, warn: bool = True
) -> Solution:
    """Minimise from `start` until the expected decrease of a step is below `tol`; that step is still taken.

    Newton's method converges quadratically, so the loss is then much closer to its minimum than `tol`.
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
    """Solve H d = -g by preconditioned conjugate gradients, more exactly the closer the minimum is."""
    direction = np.zeros_like(gradient)
    residual = -gradient
    ahead = problem.precondition(residual)
    conjugate = ahead.copy()
    energy = first = float(np.vdot(residual, ahead))
    # `first` estimates twice the remaining decrease: solve loosely far from the minimum, tightly near it.
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
    """Halve the step until the loss falls as the slope predicts; None if rounding hides any decrease."""
    step = 1.0
    while step > _SHORTEST_STEP:
        trial = point + step * direction
        value = problem.evaluate(trial)
        if value <= loss + _ARMIJO * step * slope:
            return trial, value
        step *= 0.5
    return None
