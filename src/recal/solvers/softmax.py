"""The softmax of a linear map of features, fitted with a ridge: vector and matrix scaling, plain
and structured.

Minimise over theta the mean NLL of softmax(scores) + sum of ridge * (theta - centre)^2. A
`DiagonalMap` scales and shifts each feature, theta = (v, b) of shape (2, n_classes); a `LinearMap`
mixes them, theta = [W | b] of shape (n_classes, n_features + 1). Losses and gradients are in
float64. Products with the Hessian, which only shape a search direction, are in float32. No array is
larger than the features.
"""

from __future__ import annotations

import numpy as np

from recal.checks import Labels
from recal.engine.compiled import one_thread
from recal.solvers.convex import Solution, minimise

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
        self._mean = (
            np.full(len(labels), 1.0 / len(labels)) if weights is None else weights / weights.sum()
        )
        # Weights of the samples as `_pull` uses them, in float64 and in float32.
        self._weights = None if weights is None else weights * (len(labels) / weights.sum())
        self._light_weights = None if self._weights is None else self._weights.astype(np.float32)

    def penalise(self, ridge: np.ndarray, centre: np.ndarray | float = 0.0) -> None:
        """Set the ridge strengths and the centre towards which weights shrink; both have the shape
        of theta.
        """
        self.ridge, self.centre = ridge, centre

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
        return self._pull(self.features, self._weights, residual) + 2.0 * self.ridge * (
            self._point - self.centre
        )

    def hessian_times(self, direction: np.ndarray) -> np.ndarray:
        change = self._scores(self._light, direction.astype(np.float32))
        change -= np.einsum("ij,ij->i", change, self._light_probs)[:, None]
        change *= self._light_probs
        return self._pull(self._light, self._light_weights, change) + 2.0 * self.ridge * direction

    def _scores(self, features: np.ndarray, point: np.ndarray) -> np.ndarray:
        """Return the scores of features, a new array."""
        scores: np.ndarray = features @ point[:, :-1].T
        scores += point[:, -1]
        return scores

    def _pull(
        self, features: np.ndarray, weights: np.ndarray | None, values: np.ndarray
    ) -> np.ndarray:
        """Return the gradient of the mean of scores times `values`, which are overwritten."""
        if weights is not None:
            values *= weights[:, None]
        pull = np.empty_like(self._point)
        pull[:, :-1] = values.T @ features
        pull[:, -1] = values.sum(axis=0)
        pull /= len(values)
        return pull

    def _prepare(self) -> None:
        """Approximate each class's block of the Hessian by a diagonal plus the part along the
        features' mean.

        A class's block is the second moment of the features, weighted by p(1-p). The part along the
        mean couples every weight with the intercept and harms the conditioning most. It has rank
        one, so it can be kept exactly.
        """
        count = len(self.labels)
        spread = self._light_probs * (1.0 - self._light_probs)
        if self._light_weights is not None:
            spread *= self._light_weights[:, None]
        mass = spread.sum(axis=0, dtype=np.float64) / count
        safe = np.maximum(mass, 1e-30)[:, None]
        self._along = np.ones_like(self._point)
        self._along[:, :-1] = (spread.T @ self._light) / count / safe
        variance = np.zeros_like(self._point)
        variance[:, :-1] = (spread.T @ np.square(self._light)) / count - safe * np.square(
            self._along[:, :-1]
        )
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
    """Scale and shift each feature. `ridge` and `centre` broadcast to (2, n_classes).

    The strengths must be positive; scale (row 0) and shift (row 1) are shrunk towards the centre.
    """

    def __init__(
        self,
        features: np.ndarray,
        labels: Labels,
        *,
        ridge: np.ndarray | float,
        centre: np.ndarray,
        weights: np.ndarray | None = None,
    ) -> None:
        super().__init__(features, labels, features.shape[1], weights=weights)
        self.penalise(np.asarray(ridge), centre)
        self._weights, self._light_weights = self._mean, self._mean.astype(np.float32)

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

    def _pull(
        self, features: np.ndarray, weights: np.ndarray | None, values: np.ndarray
    ) -> np.ndarray:
        assert weights is not None
        shifts = weights @ values
        values *= features
        return np.stack([weights @ values, shifts])

    def _prepare(self) -> None:
        """Keep the two-by-two block of each class and ignore the coupling between classes."""
        spread = self._light_probs * (1.0 - self._light_probs)
        constant = (self._light_weights @ spread).astype(np.float64)
        spread *= self._light
        linear = (self._light_weights @ spread).astype(np.float64)
        spread *= self._light
        square = (self._light_weights @ spread).astype(np.float64)
        ridge = 2.0 * np.broadcast_to(self.ridge, self._point.shape)
        # Rounding in float32 must not make a block indefinite.
        self._block = (square * (1.0 + 1e-5) + ridge[0], linear, constant * (1.0 + 1e-5) + ridge[1])

    def precondition(self, residual: np.ndarray) -> np.ndarray:
        square, linear, constant = self._block
        determinant = np.maximum(square * constant - linear * linear, 1e-12 * square * constant)
        scales = (constant * residual[0] - linear * residual[1]) / determinant
        return np.stack([scales, (square * residual[1] - linear * residual[0]) / determinant])
