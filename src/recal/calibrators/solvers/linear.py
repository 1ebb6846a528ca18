"""The softmax of a linear map of features, fitted with a ridge: vector and matrix scaling and their structured kin.

Minimise over theta the mean NLL of softmax(scores) + sum of ridge * (theta - centre)^2. A `DiagonalMap` scales and
shifts each feature, theta = (v, b) of shape (2, n_classes); a `LinearMap` mixes them, theta = [W | b] of shape
(n_classes, n_features + 1). Losses and gradients are in float64. Products with the Hessian, which only shape a search
direction, are in float32. Nothing larger than the features is ever held.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recal.calibrators.solvers.newton import Solution, minimise
from recal.checks import Labels
from recal.engine.compiled import one_thread


class DiagonalMap:
    """The penalised loss of one data set.

    Parameters
    ----------
    features : ndarray of shape (n_samples, n_classes), float64
    labels : ndarray of shape (n_samples,)
    ridge, centre : float or ndarray that broadcasts to (2, n_classes)
        The strengths, which must be positive, and what scale (row 0) and shift (row 1) are drawn to.
    weights : ndarray of shape (n_samples,), optional
        How often each sample counts.
    """

    def __init__(
        self,
        features: np.ndarray,
        labels: Labels,
        *,
        ridge: np.ndarray | float,
        centre: np.ndarray | float,
        weights: np.ndarray | None = None,
    ) -> None:
        self.features, self.labels = features, labels
        self.ridge, self.centre = ridge, centre
        self._light = features.astype(np.float32)
        self._rows = np.arange(len(labels))
        self._mean = np.full(len(labels), 1.0 / len(labels)) if weights is None else weights / weights.sum()
        self._light_mean = self._mean.astype(np.float32)

    def solve(self, start: np.ndarray, *, tol: float = 1e-7, max_iter: int = 100, warn: bool = True) -> Solution:
        with one_thread():
            return minimise(self, start, tol=tol, max_iter=max_iter, warn=warn)

    def evaluate(self, point: np.ndarray) -> float:
        self._point = point
        scores = self.features * point[0]
        scores += point[1]
        scores -= scores.max(axis=1, keepdims=True)
        at_truth = scores[self._rows, self.labels]
        np.exp(scores, out=scores)
        totals = scores.sum(axis=1)
        scores /= totals[:, None]
        self._probs = scores
        off = point - self.centre
        return float(self._mean @ (np.log(totals) - at_truth) + np.sum(self.ridge * off * off))

    def gradient(self) -> np.ndarray:
        self._light_probs = self._probs.astype(np.float32)
        self._probs[self._rows, self.labels] -= 1.0
        gradient = np.stack([self._mean @ (self._probs * self.features), self._mean @ self._probs])
        self._probs[self._rows, self.labels] += 1.0
        gradient += 2.0 * self.ridge * (self._point - self.centre)
        self._prepare()
        return gradient

    def hessian_times(self, direction: np.ndarray) -> np.ndarray:
        light = direction.astype(np.float32)
        change = self._light * light[0]
        change += light[1]
        change -= np.einsum("ij,ij->i", change, self._light_probs)[:, None]
        change *= self._light_probs
        shifts = self._light_mean @ change
        change *= self._light
        return np.stack([self._light_mean @ change, shifts]) + 2.0 * self.ridge * direction

    def _prepare(self) -> None:
        """Keep each class's own two-by-two block of the Hessian, leaving out the coupling between classes."""
        spread = self._light_probs * (1.0 - self._light_probs)
        constant = (self._light_mean @ spread).astype(np.float64)
        spread *= self._light
        linear = (self._light_mean @ spread).astype(np.float64)
        spread *= self._light
        square = (self._light_mean @ spread).astype(np.float64)
        ridge = 2.0 * np.broadcast_to(self.ridge, self._point.shape)
        # Rounding in float32 must not make a block indefinite.
        self._block = (square * (1.0 + 1e-5) + ridge[0], linear, constant * (1.0 + 1e-5) + ridge[1])

    def precondition(self, residual: np.ndarray) -> np.ndarray:
        square, linear, constant = self._block
        determinant = np.maximum(square * constant - linear * linear, 1e-12 * square * constant)
        return np.stack(
            [
                (constant * residual[0] - linear * residual[1]) / determinant,
                (square * residual[1] - linear * residual[0]) / determinant,
            ]
        )


class LinearMap:
    """The penalised loss of one data set; the ridge can be changed, so that a whole path shares what was computed.

    Parameters
    ----------
    features : ndarray of shape (n_samples, n_features), float64
    labels : ndarray of shape (n_samples,)
    n_classes : int
    base : ndarray of shape (n_samples, n_classes), optional
        Scores to which those of the features are added.
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
        self.features, self.labels, self.n_classes = features, labels, n_classes
        self._base = base
        self._light = features.astype(np.float32)
        self._rows = np.arange(len(labels))
        self._counts = None if weights is None else weights * (len(labels) / weights.sum())
        self._squares = np.square(self._light)
        self.penalise(np.zeros((n_classes, features.shape[1] + 1)))

    def penalise(self, ridge: np.ndarray, centre: np.ndarray | float = 0.0) -> None:
        """Set the ridge strengths and what the weights are drawn to; both of theta's shape."""
        self.ridge, self.centre = ridge, centre

    def solve(self, start: np.ndarray, *, tol: float = 1e-7, max_iter: int = 50, warn: bool = True) -> Solution:
        """Return the minimum, with the weights' common part (which no probability sees) where the ridge is least."""
        with one_thread(self.features.size * self.n_classes):
            found = minimise(self, start, tol=tol, max_iter=max_iter, warn=warn)
        return replace(found, point=self.fix_gauge(found.point))

    def fix_gauge(self, point: np.ndarray) -> np.ndarray:
        """Shift all classes' weights by one common vector, which changes no probability, to the least penalty."""
        total = self.ridge.sum(axis=0)
        shift = (self.ridge * (point - self.centre)).sum(axis=0) / np.where(total > 0.0, total, 1.0)
        return point - shift

    def evaluate(self, point: np.ndarray) -> float:
        self._point = point
        scores = self.features @ point[:, :-1].T
        scores += point[:, -1]
        if self._base is not None:
            scores += self._base
        scores -= scores.max(axis=1, keepdims=True)
        at_truth = scores[self._rows, self.labels]
        np.exp(scores, out=scores)
        totals = scores.sum(axis=1)
        scores /= totals[:, None]
        self._probs = scores
        off = point - self.centre
        return float(np.mean(self._weighted(np.log(totals) - at_truth)) + np.vdot(off * self.ridge, off))

    def _weighted(self, rows: np.ndarray) -> np.ndarray:
        """Return values of the samples times how often each sample counts."""
        if self._counts is None:
            return rows
        counts = self._counts.astype(rows.dtype)
        return rows * (counts if rows.ndim == 1 else counts[:, None])

    def gradient(self) -> np.ndarray:
        self._light_probs = self._probs.astype(np.float32)
        residual = self._probs.copy()
        residual[self._rows, self.labels] -= 1.0
        residual = self._weighted(residual)
        gradient = np.empty_like(self._point)
        gradient[:, :-1] = residual.T @ self.features
        gradient[:, -1] = residual.sum(axis=0)
        gradient /= len(self.labels)
        gradient += 2.0 * self.ridge * (self._point - self.centre)
        self._prepare()
        return gradient

    def hessian_times(self, direction: np.ndarray) -> np.ndarray:
        light = direction.astype(np.float32)
        change = self._light @ light[:, :-1].T
        change += light[:, -1]
        change -= np.einsum("ij,ij->i", change, self._light_probs)[:, None]
        change *= self._light_probs
        change = self._weighted(change)
        product = np.empty_like(direction)
        product[:, :-1] = change.T @ self._light
        product[:, -1] = change.sum(axis=0)
        product /= len(self.labels)
        product += 2.0 * self.ridge * direction
        return product

    def _prepare(self) -> None:
        """Approximate each class's block of the Hessian by a diagonal plus the part along the features' mean.

        With p(1-p) as a sample's weight, a class's block is the features' second moment. Its mean part couples every
        weight with the intercept and is the worst of the conditioning; being of rank one, it can be kept exactly.
        """
        count = len(self.labels)
        spread = self._weighted(self._light_probs * (1.0 - self._light_probs))
        mass = spread.sum(axis=0, dtype=np.float64) / count
        safe = np.maximum(mass, 1e-30)[:, None]
        self._along = np.ones_like(self._point)
        self._along[:, :-1] = (spread.T @ self._light) / count / safe
        variance = np.zeros_like(self._point)
        variance[:, :-1] = (spread.T @ self._squares) / count - safe * np.square(self._along[:, :-1])
        # A class that is hardly ever probable has no curvature of its own: borrow a trace of the others'.
        least = 1e-6 * np.maximum(variance, 0.0).mean() + 1e-12
        self._diagonal = np.maximum(variance, 0.0) + 2.0 * self.ridge + least
        reach = np.square(self._along) / self._diagonal
        self._weight = 1.0 / (1.0 / safe[:, 0] + reach.sum(axis=1))

    def precondition(self, residual: np.ndarray) -> np.ndarray:
        """Solve with the approximation: a diagonal plus rank one in each class, by the Sherman-Morrison formula."""
        solved = residual / self._diagonal
        shift = self._weight * np.einsum("ij,ij->i", self._along, solved)
        solved -= shift[:, None] * self._along / self._diagonal
        return solved
