"""One solver for smooth convex problems: Newton's method with conjugate gradients and lower bounds.

A problem has a loss, its gradient and products with its Hessian. A few Newton steps, each solved by
preconditioned conjugate gradients, replace hundreds of first-order steps. The Newton decrement
estimates the distance of the loss from its minimum, so tolerances are in units of the loss and do
not depend on the scale of the parameters.

With few parameters, `Dense` needs the gradient and the Hessian as arrays. With many, write the four
methods of `Problem`; the Hessian may be approximate, since it only shapes the search direction.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from recal.checks import Matrix
from recal.errors import ConvergenceWarning


class Problem(Protocol):
    """A smooth convex loss. `evaluate` comes first; the other methods refer to its point."""

    def evaluate(self, point: Matrix) -> Any:
        """Return the loss; inf outside its domain.

        If the columns of the point are independent problems, return one loss for each.
        """

    def gradient(self) -> Matrix:
        """Return the gradient, in the shape of the point."""

    def hessian_times(self, direction: Matrix) -> Matrix:
        """Return the product of the Hessian with a direction."""

    def precondition(self, residual: Matrix) -> Matrix:
        """Solve with an approximation of the Hessian, which must be positive definite."""


class Dense(ABC):
    """A problem whose Hessian is a small matrix: write `evaluate` and `derivatives`.

    Examples
    --------
    >>> from recal.solvers.convex import Dense, minimise
    >>> class Bowl(Dense):
    ...     def evaluate(self, point):
    ...         self.point = point
    ...         return float((point - [1.0, -2.0]) @ (point - [1.0, -2.0]))
    ...     def derivatives(self):
    ...         return 2.0 * (self.point - [1.0, -2.0]), 2.0 * np.eye(2)
    >>> minimise(Bowl(), np.zeros(2)).point.tolist()
    [1.0, -2.0]
    >>> minimise(Bowl(), np.ones(2), lower=0.0).point.tolist()
    [1.0, 0.0]
    """

    @abstractmethod
    def evaluate(self, point: Matrix) -> float:
        """Return the loss at a vector; inf outside its domain."""

    @abstractmethod
    def derivatives(self) -> tuple[Matrix, Matrix]:
        """Return the gradient and the Hessian at the point that `evaluate` saw last."""

    def gradient(self) -> Matrix:
        gradient, self._hessian = self.derivatives()
        # If two parameters have the same effect, the Hessian is singular.
        tiny = 1e-13 * max(float(self._hessian.trace()), 1e-300)
        self._regular = self._hessian + tiny * np.eye(len(gradient))
        self._inverse = np.linalg.inv(self._regular)
        return gradient

    def restrict(self, free: NDArray[np.bool_]) -> None:
        self._inverse = np.linalg.inv(restricted(self._regular, free))

    def hessian_times(self, direction: Matrix) -> Matrix:
        return self._hessian @ direction

    def precondition(self, residual: Matrix) -> Matrix:
        return self._inverse @ residual


def restricted(matrix: Matrix, free: NDArray[np.bool_]) -> Matrix:
    """Return matrices, (..., n, n), in which rows and columns that are not free are those of 1."""
    both = free[..., :, None] & free[..., None, :]
    return np.where(both, matrix, np.eye(matrix.shape[-1]))


@dataclass(frozen=True)
class Solution:
    """The final point and its loss."""

    point: Matrix
    loss: float


def minimise(
    problem: Problem,
    start: Matrix,
    *,
    lower: Matrix | float | None = None,
    tol: float = 1e-7,
    max_iter: int = 50,
    warn: bool = True,
) -> Solution:
    """Minimise a convex loss from `start`, which must be inside its domain and its bounds.

    Newton's method converges quadratically, so the loss is much closer to its minimum than `tol`.
    The final point is the last one that the problem has evaluated.

    Parameters
    ----------
    problem : Problem
    start : array of any shape
    lower : float or array of the shape of `start`, optional
        The lowest allowed values. A parameter at its bound stays there while its gradient is
        positive; steps are projected onto the bounds. If the problem has a method `restrict(free)`,
        it is called after `gradient`; `precondition` may then ignore the other parameters.
    tol : float
        Stop when the expected decrease of a step is below this; that step is still taken.
    max_iter : int
        The largest number of Newton steps.
    warn : bool
        Whether to warn if `max_iter` steps are not enough, or if a number is not finite.
    """
    point, loss = start, problem.evaluate(start)
    gap, restrict = np.inf, getattr(problem, "restrict", None)
    for _ in range(max_iter):
        gradient = problem.gradient()
        free = None
        if lower is not None:
            free = (point > lower) | (gradient < 0.0)
            gradient = np.where(free, gradient, 0.0)
            if restrict is not None and not free.all():
                restrict(free)
        direction = _newton_direction(problem, gradient, free, tol)
        gap = -0.5 * float(np.vdot(gradient, direction))
        if not gap > 0.0:
            break
        moved = _line_search(problem, point, loss, direction, gradient, lower)
        if moved is None:
            problem.evaluate(point)
            gap = 0.0  # rounding hides any further decrease
            break
        previous, (point, loss) = loss, moved
        if gap <= tol or (gap <= 100 * tol and np.sum(previous - loss) <= 0.1 * tol):
            break
    if warn and not gap <= max(tol, 1e-5):
        warnings.warn(
            f"The solver stopped with the loss {np.sum(loss):.6g} about {gap:.1e} above its "
            "minimum. Raise the penalty for a better-posed problem; if that is nan, the logits "
            "are too large to multiply: scale them down, or clip them.",
            ConvergenceWarning,
            stacklevel=3,
        )
    return Solution(point, float(np.sum(loss)))


def _newton_direction(
    problem: Problem, gradient: Matrix, free: NDArray[np.bool_] | None, tol: float
) -> Matrix:
    """Solve H d = -g for the free parameters, more exactly the closer the minimum is."""

    def among_free(values: Matrix) -> Matrix:
        return values if free is None else np.where(free, values, 0.0)

    direction = np.zeros_like(gradient)
    residual = -gradient
    ahead = among_free(problem.precondition(residual))
    conjugate = ahead.copy()
    energy = first = float(np.vdot(residual, ahead))
    # `first` estimates twice the remaining decrease: solve loosely far from the minimum, tightly
    # near it.
    forcing = min(0.1, np.sqrt(max(first, 0.0)))
    target = max(first * forcing**2, 0.01 * tol)
    # The next Newton step corrects what a hundred products leave.
    for product in range(100):
        curved = among_free(problem.hessian_times(conjugate))
        curvature = float(np.vdot(conjugate, curved))
        if not curvature > 0.0:
            return direction if product else ahead
        length = energy / curvature
        direction += length * conjugate
        residual -= length * curved
        ahead = among_free(problem.precondition(residual))
        renewed = float(np.vdot(residual, ahead))
        if not renewed > target:
            break
        conjugate *= renewed / energy
        conjugate += ahead
        energy = renewed
    return direction


def _line_search(
    problem: Problem,
    point: Matrix,
    loss: Any,
    direction: Matrix,
    gradient: Matrix,
    lower: Matrix | float | None,
) -> tuple[Matrix, Any] | None:
    """Shorten the step until the loss falls as the gradient predicts; None if rounding hides any
    decrease. Columns that have their own losses have their own steps.
    """
    in_columns = np.ndim(loss) > 0

    def product(first: Matrix, second: Matrix) -> Any:
        return (first * second).sum(axis=0) if in_columns else float(np.vdot(first, second))

    slope, step = product(gradient, direction), np.ones(np.shape(loss))
    # A column at its minimum must not hold up the others.
    noise = 1e-15 if in_columns else 0.0
    for _ in range(40):
        trial = point + step * direction
        if lower is not None:
            trial = np.maximum(trial, lower)
        predicted, value = product(gradient, trial - point), problem.evaluate(trial)
        falls = (value <= loss + 1e-4 * predicted + noise) & (predicted < noise)
        too_long = np.logical_not(falls) & (step > 0.0)
        if not too_long.any():
            return trial, value
        hidden = -step * slope < 1e-15 * np.abs(loss)
        # The minimum of the parabola through what is known, but no more than half the step.
        above = value - loss - step * slope
        shorter = np.clip(-0.5 * step * slope / np.where(above > 0, above, 1.0), 0.1, 0.5) * step
        step = np.where(too_long, np.where(hidden, 0.0, shorter), step)
        if not step.any():
            break
    return None


def mixture_weights(
    likelihoods: Matrix, counts: Matrix, prior: Matrix, start: Any = None
) -> Matrix:
    """Return the weights of a mixture, (n_members,), at least 0 and of sum 1.

    They maximise the sum of counts * log(likelihoods @ w) + prior * log w, which is concave;
    `prior` acts like this many samples drawn from each member. The constraint that weights sum to 1
    becomes a penalty (total of counts and prior) * sum of w, whose optimum has sum 1.

    Parameters
    ----------
    likelihoods : array of shape (n_samples, n_members)
        The cross-fitted probability of the true class under each member.
    counts : array of shape (n_samples,)
        How often each sample counts.
    prior : array of shape (n_members,)
        Pseudo-counts.
    start : array of shape (n_members,), optional
        Positive weights of a similar problem, as a starting point.

    Examples
    --------
    >>> from recal.solvers.convex import mixture_weights
    >>> likelihoods = np.array([[0.9, 0.5], [0.1, 0.5]])
    >>> mixture_weights(likelihoods, np.array([3.0, 1.0]), np.zeros(2)).round(3)
    array([0.625, 0.375])
    """
    n_members = likelihoods.shape[1]
    first = np.full(n_members, 1.0 / n_members) if start is None else start
    problem = _Mixture(likelihoods, counts, prior)
    found = minimise(problem, first, lower=0.0, tol=1e-13, max_iter=100, warn=False)
    return found.point / found.point.sum()


class _Mixture(Dense):
    """The mean negative log-likelihood of a mixture, as a function of its weights."""

    def __init__(self, likelihoods: Matrix, counts: Matrix, prior: Matrix) -> None:
        total = float(counts.sum() + prior.sum())
        # No single sample with a likelihood near 0 may decide.
        self.parts = np.ascontiguousarray(np.maximum(likelihoods, 1e-12).T)
        self.shares, self.prior = counts / total, prior / total
        self.preferred = prior > 0.0

    def evaluate(self, point: Matrix) -> float:
        self.weights, self.mixed = point, point @ self.parts
        chosen = point[self.preferred]
        if not (self.mixed > 0.0).all() or not (chosen > 0.0).all():
            return np.inf
        fits = float(self.shares @ np.log(self.mixed))
        return float(point.sum() - fits - self.prior[self.preferred] @ np.log(chosen))

    def derivatives(self) -> tuple[Matrix, Matrix]:
        pull = np.divide(
            self.prior, self.weights, where=self.preferred, out=np.zeros_like(self.prior)
        )
        ratio = self.parts / self.mixed
        gradient = 1.0 - ratio @ self.shares - pull
        bend = np.divide(pull, self.weights, where=self.preferred, out=np.zeros_like(pull))
        return gradient, (ratio * self.shares) @ ratio.T + np.diag(bend)


def without_light_ones(
    names: tuple[str, ...], weights: Matrix, least: float = 1e-3
) -> dict[str, float]:
    """Return the weights by name, without members of negligible weight, which only cost time."""
    kept = {name: float(weight) for name, weight in zip(names, weights) if weight >= least}
    total = sum(kept.values())
    return {name: weight / total for name, weight in kept.items()}
