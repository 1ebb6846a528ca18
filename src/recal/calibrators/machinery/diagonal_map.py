"""The softmax of logits scaled and shifted class by class, fitted with a ridge: vector scaling and its structured kin.

Minimise over theta = (v, b), of shape (2, n_classes),

    mean NLL of softmax(Z * v + b)  +  sum of ridge * (theta - centre)^2.

A product with the Hessian is a few passes over the logits, in float32; losses and gradients are in float64.
"""

from __future__ import annotations

import numpy as np

from recal.calibrators.machinery.newton import Solution, minimise
from recal.checks import Labels
from recal.engine.kernels.threads import one_thread


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
