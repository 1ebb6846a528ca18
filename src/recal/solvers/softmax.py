"""The softmax of a linear map of features, fitted with a ridge: vector and matrix scaling, plain
and structured, and stacked views.

Minimise over theta the mean NLL of softmax(scores) + sum of ridge * (theta - centre)^2. A
`DiagonalMap` scales and shifts each feature, theta = (v, b) of shape (2, n_classes); a `LinearMap`
mixes them, theta = [W | b] of shape (n_classes, n_features + 1). Losses and gradients are in
float64. Products with the Hessian, which only shape a search direction, are in float32. No array is
larger than the features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.checks import Labels, Vector
from recal.engine import one_thread, over_rows
from recal.engine import rows as kernels
from recal.solvers.convex import Solution, minimise, restricted

# Tolerance of fits that only estimate how well a method does on samples left out.
NEAR_TOL = 1e-5


class LinearMap:
    """The penalised loss of a map that mixes the features. Methods refer to the point that
    `evaluate` saw last.

    The ridge can be changed, so that fits along a path of ridges share computations.

    Parameters
    ----------
    features : ndarray of shape (n_samples, n_features), float64
    labels : ndarray of shape (n_samples,)
    n_classes : int
    base : ndarray of shape (n_samples, n_classes), optional
        Scores to which the scores of the features are added.
    weights : ndarray of shape (n_samples,), optional
        How often each sample counts.
    """

    def __init__(
        self,
        features: np.ndarray,
        labels: Labels,
        n_classes: int,
        *,
        base: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> None:
        self.features, self.labels, self.n_classes, self._base = features, labels, n_classes, base
        self._light = features.astype(np.float32)
        self._rows = np.arange(len(labels))
        counts = np.ones(len(labels)) if weights is None else weights
        self._mean = counts / counts.sum()
        # Weights of the samples as `_pull` uses them.
        self._weights = None if weights is None else weights * (len(labels) / weights.sum())

    def penalise(self, ridge: np.ndarray | float, centre: np.ndarray | float = 0.0) -> None:
        """Set the ridge strengths and the centre towards which weights shrink; both have the shape
        of theta.
        """
        self.ridge, self.centre = np.asarray(ridge), centre

    def solve(
        self, start: np.ndarray, *, tol: float = 1e-7, max_iter: int = 50, warn: bool = True
    ) -> Solution:
        """Return the minimum, with the common part of all classes' weights chosen for the lowest
        penalty.

        A common vector added to the weights of all classes changes no probability.
        """
        with one_thread(self.features.size * self.n_classes):
            solution = minimise(self, start, tol=tol, max_iter=max_iter, warn=warn)
        total = self.ridge.sum(axis=0)
        shift = (self.ridge * (solution.point - self.centre)).sum(axis=0) / np.where(
            total > 0.0, total, 1.0
        )
        return Solution(solution.point - shift, solution.loss)

    def evaluate(self, point: np.ndarray) -> float:
        self._point = point
        scores = self._scores(self.features, point)
        if self._base is not None:
            scores += self._base
        scores -= scores.max(axis=1, keepdims=True)
        at_truth = scores[self._rows, self.labels]
        np.exp(scores, out=scores)
        totals = scores.sum(axis=1)
        scores /= totals[:, None]
        self._probs = scores
        off = point - self.centre
        return float(self._mean @ (np.log(totals) - at_truth) + np.vdot(off * self.ridge, off))

    def gradient(self) -> np.ndarray:
        """Return the gradient, and approximate the Hessian for `precondition`."""
        self._light_probs = self._probs.astype(np.float32)
        residual = self._probs.copy()
        residual[self._rows, self.labels] -= 1.0
        self._prepare()
        off = self._point - self.centre
        return self._pull(self.features, residual) + 2.0 * self.ridge * off

    def hessian_times(self, direction: np.ndarray) -> np.ndarray:
        change = self._scores(self._light, direction.astype(np.float32))
        change -= np.einsum("ij,ij->i", change, self._light_probs)[:, None]
        change *= self._light_probs
        return self._pull(self._light, change) + 2.0 * self.ridge * direction

    def _scores(self, features: np.ndarray, point: np.ndarray) -> np.ndarray:
        """Return the scores of features, a new array."""
        scores: np.ndarray = features @ point[:, :-1].T
        scores += point[:, -1]
        return scores

    def _pull(self, features: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the gradient of the mean of scores times `values`, which are overwritten."""
        self._weigh(values)
        pull = np.empty_like(self._point)
        pull[:, :-1] = values.T @ features
        pull[:, -1] = values.sum(axis=0)
        pull /= len(values)
        return pull

    def _weigh(self, values: np.ndarray) -> None:
        if self._weights is not None:
            values *= self._weights.astype(values.dtype)[:, None]

    def _prepare(self) -> None:
        """Approximate each class's block of the Hessian by a diagonal plus the part along the
        features' mean, which harms the conditioning most and has rank one.
        """
        count = len(self.labels)
        spread = self._light_probs * (1.0 - self._light_probs)
        self._weigh(spread)
        mass = spread.sum(axis=0, dtype=np.float64) / count
        safe = np.maximum(mass, 1e-30)[:, None]
        self._along = np.ones_like(self._point)
        self._along[:, :-1] = (spread.T @ self._light) / count / safe
        variance = np.zeros_like(self._point)
        squares = (spread.T @ np.square(self._light)) / count
        variance[:, :-1] = squares - safe * np.square(self._along[:, :-1])
        # A class that is never probable has no curvature: add a small share of the others'.
        least = 1e-6 * np.maximum(variance, 0.0).mean() + 1e-12
        self._diagonal = np.maximum(variance, 0.0) + 2.0 * self.ridge + least
        reach = np.square(self._along) / self._diagonal
        self._weight = 1.0 / (1.0 / safe[:, 0] + reach.sum(axis=1))

    def precondition(self, residual: np.ndarray) -> np.ndarray:
        """Solve with the approximation: a diagonal plus rank one in each class, by the
        Sherman-Morrison formula.
        """
        solved = residual / self._diagonal
        shift = self._weight * np.einsum("ij,ij->i", self._along, solved)
        solved -= shift[:, None] * self._along / self._diagonal
        return solved


class DiagonalMap(LinearMap):
    """Scale (row 0 of theta) and shift (row 1) each feature. The ridge broadcasts to (2,
    n_classes); its strengths must be positive.
    """

    def solve(
        self, start: np.ndarray, *, tol: float = 1e-7, max_iter: int = 100, warn: bool = True
    ) -> Solution:
        """Return the minimum."""
        with one_thread():
            return minimise(self, start, tol=tol, max_iter=max_iter, warn=warn)

    def _scores(self, features: np.ndarray, point: np.ndarray) -> np.ndarray:
        scores = features * point[0]
        scores += point[1]
        return scores

    def _pull(self, features: np.ndarray, values: np.ndarray) -> np.ndarray:
        weights = self._mean.astype(values.dtype)
        shifts = weights @ values
        values *= features
        return np.stack([weights @ values, shifts])

    def _prepare(self) -> None:
        """Keep the two-by-two block of each class and ignore the coupling between classes."""
        spread, weights = self._light_probs * (1.0 - self._light_probs), self._mean
        constant = (weights.astype(np.float32) @ spread).astype(np.float64)
        spread *= self._light
        linear = (weights.astype(np.float32) @ spread).astype(np.float64)
        spread *= self._light
        square = (weights.astype(np.float32) @ spread).astype(np.float64)
        ridge = 2.0 * np.broadcast_to(self.ridge, self._point.shape)
        # Rounding in float32 must not make a block indefinite.
        self._block = (square * (1.0 + 1e-5) + ridge[0], linear, constant * (1.0 + 1e-5) + ridge[1])

    def precondition(self, residual: np.ndarray) -> np.ndarray:
        square, linear, constant = self._block
        determinant = np.maximum(square * constant - linear * linear, 1e-12 * square * constant)
        scales = (constant * residual[0] - linear * residual[1]) / determinant
        return np.stack([scales, (square * residual[1] - linear * residual[0]) / determinant])


@dataclass(frozen=True)
class Stack:
    """A fitted sum: the features in use, their weights, the offsets of the classes, and the
    penalised loss.
    """

    used: tuple[int, ...]
    weights: Vector
    offsets: Vector
    loss: float
    n_base: int = 1
    """The number of leading features that are not views."""

    @property
    def views(self) -> tuple[int, ...]:
        """The views with a positive weight."""
        return tuple(
            v for v, weight in zip(self.used, self.weights) if v >= self.n_base and weight > 0.0
        )


class StackedMap:
    """A weighted sum of log-probabilities, with weights of at least 0, plus one offset per class.

    Minimise over (a, c), a >= 0, the mean NLL of softmax(sum of a_v x_v + c) + offset_penalty
    |c|^2 + 5e-5 times the sum of a_v^2 over views. `losses` and `probs` belong to the stack that
    was evaluated last.

    Parameters
    ----------
    features : array of float32, shape (n_features, n_samples, n_classes)
        The original comes first.
    labels : array of shape (n_samples,)
    rows : array of shape (n_samples,)
        The weights of the samples, which sum to 1; rows of weight 0 do not count.
    offset_penalty : float
    n_base : int
        The number of leading features that are not views. They have no ridge, and a fit starts at
        the last of them.
    """

    def __init__(
        self,
        features: NDArray[np.float32],
        labels: Labels,
        rows: Vector,
        *,
        offset_penalty: float,
        n_base: int = 1,
    ) -> None:
        self.features, self.labels, self.rows = features, labels, rows
        self.offset_penalty, self.n_base = offset_penalty, n_base
        _, self.n_samples, self.n_classes = features.shape
        self._n_chunks = -(-self.n_samples // kernels.CHUNK)
        self.probs = np.empty((self.n_samples, self.n_classes), dtype=np.float32)
        self.losses = np.empty(self.n_samples)
        self._at: Stack | None = None

    def visit(self, stack: Stack) -> None:
        """Compute `probs` and `losses` of all rows for this stack."""
        if stack is not self._at:
            self._use(stack.used)
            self.evaluate(np.concatenate([stack.weights, stack.offsets]))
            self._at = stack

    def solve(
        self, used: tuple[int, ...], start: Stack | None = None, *, tol: float = 1e-9
    ) -> Stack:
        """Return the best stack of these features. `start` may have fewer features."""
        weights, offsets = {self.n_base - 1: 1.0}, np.zeros(self.n_classes)
        if start is not None:
            weights, offsets = dict(zip(start.used, start.weights)), start.offsets
        self._use(used)
        first = np.concatenate([[weights.get(v, 0.0) for v in used], offsets])
        lower = np.concatenate([np.zeros(len(used)), np.full(self.n_classes, -np.inf)])
        found = minimise(self, first, lower=lower, tol=tol, max_iter=60, warn=False)
        self._at = Stack(
            used, found.point[: len(used)], found.point[len(used) :], found.loss, self.n_base
        )
        return self._at

    def promised_gains(self, stack: Stack, candidates: tuple[int, ...]) -> Vector:
        """Return by how much each candidate would lower the loss, to second order; 0 if its weight
        were negative. Coupling with the offsets does not count: this only screens candidates.
        """
        self.visit(stack)
        used = np.array(
            [v for v, weight in zip(stack.used, stack.weights) if weight > 0.0], dtype=np.intp
        )
        both = np.array([*candidates, *used], dtype=np.intp)
        sums = np.empty((self._n_chunks, len(both), 2 + len(used)))
        over_rows(
            kernels.first_order, sums, self.probs, self.features, both, used, self.labels,
            self.rows, size=self.probs.size * len(both),
        )  # fmt: skip
        total = sums.sum(axis=0)
        slopes, curvatures, couplings = total[:, 0], total[:, 1], total[:, 2:]
        count = len(candidates)
        block = couplings[count:] + 1e-9 * np.eye(len(used))
        across = couplings[:count]
        explained = np.einsum("cu,cu->c", across, np.linalg.solve(block, across.T).T)
        left = np.maximum(curvatures[:count] - explained, 1e-6 * curvatures[:count])
        left += 2.0 * self.view_penalty
        return np.where(slopes[:count] < 0.0, slopes[:count] ** 2 / (2.0 * left), 0.0)

    view_penalty: ClassVar[float] = 5e-5

    def _use(self, used: tuple[int, ...]) -> None:
        self._used = np.array(used, dtype=np.intp)
        self._ridge = np.where(self._used < self.n_base, 0.0, self.view_penalty)

    def evaluate(self, point: Vector) -> float:
        """Return the penalised loss of weights and offsets, one after the other."""
        self._at = None
        m = len(self._used)
        self._point = point
        over_rows(
            kernels.stacked_probs, self.probs, self.features, self._used, point[:m], point[m:],
            self.labels, self.losses, size=self.probs.size * m,
        )  # fmt: skip
        penalty = self.offset_penalty * point[m:] @ point[m:] + self._ridge @ point[:m] ** 2
        return float(self.rows @ self.losses + penalty)

    def gradient(self) -> Vector:
        m, used = len(self._used), self._used
        by_views = np.empty((self._n_chunks, m, m + 1))
        by_classes = np.empty((self._n_chunks, m + 2, self.n_classes))
        over_rows(
            kernels.moments, by_views, by_classes, self.probs, self.features, used, self.labels,
            self.rows, size=self.probs.size * m,
        )  # fmt: skip
        views, classes = by_views.sum(axis=0), by_classes.sum(axis=0)
        block = np.tril(views[:, 1:])
        self._weights_block = block + np.tril(block, -1).T + np.diag(2.0 * self._ridge + 1e-12)
        self._across = classes[2:]
        self._offsets_block = self._offsets_hessian(classes[1])
        self.restrict(np.ones(m, dtype=bool))
        slope = views[:, 0] + 2.0 * self._ridge * self._point[:m]
        return np.concatenate([slope, classes[0] + 2.0 * self.offset_penalty * self._point[m:]])

    def restrict(self, free: NDArray[np.bool_]) -> None:
        used = free[: len(self._used)]
        self._coupling = np.where(used[:, None], self._across, 0.0)
        self._solved = self._solve_offsets(self._coupling)
        schur = self._weights_block - self._coupling @ self._solved.T
        self._schur = restricted(schur, used)

    def _offsets_hessian(self, shares: Vector) -> Vector:
        """Return diag(shares) - sum p p^T with its ridge; only the diagonal if classes are many.

        The diagonal is then enough: the ridge grows like n_classes / n_samples, while the share of
        a class falls like 1 / n_classes.
        """
        diagonal = shares + 2.0 * self.offset_penalty + 1e-12
        if self.n_classes > 256:
            return diagonal
        weighted = self.probs * np.sqrt(self.rows).astype(np.float32)[:, None]
        block = np.diag(diagonal + 1e-9) - (weighted.T @ weighted).astype(np.float64)
        self._inverse = np.linalg.inv(block)
        return block

    def _solve_offsets(self, right: Vector) -> Vector:
        if self._offsets_block.ndim == 1:
            return right / self._offsets_block
        return right @ self._inverse

    def hessian_times(self, direction: Vector) -> Vector:
        m = len(self._used)
        weights, offsets = direction[:m], direction[m:]
        block = self._offsets_block
        bent = block * offsets if block.ndim == 1 else block @ offsets
        top = self._weights_block @ weights + self._across @ offsets
        return np.concatenate([top, weights @ self._across + bent])

    def precondition(self, residual: Vector) -> Vector:
        m = len(self._used)
        offsets = self._solve_offsets(residual[m:])
        weights = np.linalg.solve(self._schur, residual[:m] - self._coupling @ offsets)
        return np.concatenate([weights, offsets - weights @ self._solved])
