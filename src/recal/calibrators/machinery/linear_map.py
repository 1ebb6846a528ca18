"""The softmax of a linear map of features, fitted with one ridge strength per weight.

Matrix scaling, Dirichlet calibration and structured matrix scaling are this problem with different features and
strengths: minimise over theta = [W | b], of shape (n_classes, n_features + 1),

    mean NLL of softmax(X W^T + b)  +  sum of ridge * (theta - centre)^2.

Losses and gradients are in float64; products with the Hessian, which only shape a search direction, in float32.
Nothing larger than the features is ever held.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recal.calibrators.machinery.newton import Solution, minimise
from recal.checks import Labels
from recal.engine.kernels.threads import one_thread

_BLOCK = 64


class LinearMap:
    """The penalised loss of one data set; the ridge can be changed, so that a whole path shares what was computed.

    Parameters
    ----------
    features : ndarray of shape (n_samples, n_features), float64
    labels : ndarray of shape (n_samples,)
    n_classes : int
    """

    def __init__(self, features: np.ndarray, labels: Labels, n_classes: int) -> None:
        self.features, self.labels, self.n_classes = features, labels, n_classes
        self._light = features.astype(np.float32)
        self._rows = np.arange(len(labels))
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
        scores -= scores.max(axis=1, keepdims=True)
        at_truth = scores[self._rows, self.labels]
        np.exp(scores, out=scores)
        totals = scores.sum(axis=1)
        scores /= totals[:, None]
        self._probs = scores
        off = point - self.centre
        return float(np.mean(np.log(totals) - at_truth) + np.vdot(off * self.ridge, off))

    def gradient(self) -> np.ndarray:
        residual = self._probs
        self._light_probs = residual.astype(np.float32)
        residual[self._rows, self.labels] -= 1.0
        gradient = np.empty_like(self._point)
        gradient[:, :-1] = residual.T @ self.features
        gradient[:, -1] = residual.sum(axis=0)
        residual[self._rows, self.labels] += 1.0
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
        spread = self._light_probs * (1.0 - self._light_probs)
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


@one_thread()
def linear_scores(features: np.ndarray, weights: np.ndarray, intercept: np.ndarray) -> np.ndarray:
    """Return features @ weights.T + intercept in float64, each row bit for bit the same whatever its batch.

    A matrix product may sum in another order for another number of rows, so the product always has the same shape:
    rows go in blocks of one size, the last filled up with zeros.
    """
    features = np.asarray(features, dtype=np.float64)
    block = np.zeros((_BLOCK, features.shape[1]))
    scores = np.empty((len(features), len(weights)))
    mixing = np.ascontiguousarray(weights.T)
    for first in range(0, len(features), _BLOCK):
        rows = features[first : first + _BLOCK]
        block[: len(rows)] = rows
        scores[first : first + _BLOCK] = (block @ mixing)[: len(rows)]
    scores += intercept
    return scores
