"""The latent Gaussian process of GP calibration: one function of one variable, known by its values at a few points.

A class with the log-probability x gets the score f(x) = x + g(x), g ~ GP(0, s^2 exp(-d^2 / 2 l^2)), the same g for all
classes; the answer is softmax of the scores. With inducing points t and the kernel's Cholesky factor L, g(x) is taken
as its conditional mean, g(x) = phi(x) . w with phi(x) = L^-1 k(t, x) and w ~ N(0, s^2 I). The posterior of w is taken
as N(m, S), and the expected log-likelihood is expanded to second order around m, as in Wenger et al. (2020):

    bound(m, S) = sum over samples of [ log p(y | m) - tr(H Phi S Phi^T) / 2 ] - KL(N(m, S) || N(0, s^2 I)),

where H = diag(p) - p p^T. The trace is tr(S G) with G the sum of Phi^T H Phi, so the best S is (I / s^2 + G)^-1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from recal.checks import Labels

# Rows are taken in parts, so that what a part needs stays in a processor's cache or near it.
_PART = 500_000
# Up to so many values, 160 MB, phi is kept between passes, of which there are a hundred; making it is most of a pass.
_MOST_KEPT = 20_000_000


@dataclass(frozen=True)
class Posterior:
    """What is known of g: the mean and covariance of w, the kernel, and the bound reached."""

    mean: np.ndarray
    covariance: np.ndarray
    length: float
    variance: float
    bound: float


class LatentProcess:
    """The bound of one data set for one length scale.

    Parameters
    ----------
    log_probs : ndarray of shape (n_samples, n_classes)
    labels : ndarray of shape (n_samples,)
    points : ndarray of shape (n_points,)
        Where g is known.
    length : float
        The kernel's length scale.
    """

    def __init__(self, log_probs: np.ndarray, labels: Labels, points: np.ndarray, length: float) -> None:
        self.log_probs, self.labels, self.points, self.length = log_probs, labels, points, length
        step = max(1, _PART // (log_probs.shape[1] * len(points)))
        self._parts = [slice(first, first + step) for first in range(0, len(labels), step)]
        self._kept = None
        if log_probs.size * len(points) <= _MOST_KEPT:
            self._kept = [basis(log_probs[part], points, length) for part in self._parts]

    def fit(self, variance: float, start: Posterior | None = None, max_iter: int = 50) -> Posterior:
        """Climb the bound: S by its closed form, m by Newton steps that are halved until the bound rises."""
        width = len(self.points)
        mean = np.zeros(width) if start is None else start.mean.copy()
        covariance = self._best_covariance(self.curvature(mean), variance)
        bound, slope = self.bound(mean, covariance, variance)
        for _ in range(max_iter):
            direction = covariance @ slope
            step, accepted = 1.0, False
            while step > 1e-4 and not accepted:
                trial = mean + step * direction
                renewed = self._best_covariance(self.curvature(trial), variance)
                value, slope_there = self.bound(trial, renewed, variance)
                accepted = value > bound
                step *= 0.5
            if not accepted:
                break
            gain, mean, covariance, bound, slope = value - bound, trial, renewed, value, slope_there
            if gain < 1e-4:
                break
        return Posterior(mean, covariance, self.length, variance, bound)

    def bound(self, mean: np.ndarray, covariance: np.ndarray, variance: float) -> tuple[float, np.ndarray]:
        """Return the bound and its gradient in `mean` for a fixed covariance."""
        value, slope = 0.0, np.zeros(len(mean))
        root = np.linalg.cholesky(covariance)
        for part in range(len(self._parts)):
            phi, probs, at_truth, labels = self._at(part, mean)
            spread = (phi.reshape(-1, len(mean)) @ root).reshape(phi.shape)
            by_class = np.square(spread).sum(axis=2)
            centre = np.einsum("nk,nkm->nm", probs, spread)
            within = np.einsum("nk,nk->n", probs, by_class)
            between = np.square(centre).sum(axis=1)
            value += float(at_truth.sum() - 0.5 * (within - between).sum())
            along = np.einsum("nkm,nm->nk", spread, centre)
            pull = -probs - 0.5 * probs * (by_class - within[:, None] - 2.0 * (along - between[:, None]))
            pull[np.arange(len(labels)), labels] += 1.0
            slope += np.einsum("nk,nkm->m", pull, phi)
        value -= 0.5 * (float(mean @ mean + np.trace(covariance)) / variance - len(mean))
        value -= 0.5 * len(mean) * np.log(variance) - np.log(np.diagonal(root)).sum()
        return value, slope - mean / variance

    def curvature(self, mean: np.ndarray) -> np.ndarray:
        """Return G, the negative Hessian of the log-likelihood in w at `mean`."""
        total = np.zeros((len(mean), len(mean)))
        for part in range(len(self._parts)):
            phi, probs, _, _ = self._at(part, mean)
            flat = (phi * np.sqrt(probs)[:, :, None]).reshape(-1, len(mean))
            centre = np.einsum("nk,nkm->nm", probs, phi)
            total += flat.T @ flat - centre.T @ centre
        return total

    def _at(self, part: int, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, Labels]:
        logs, labels = self.log_probs[self._parts[part]], self.labels[self._parts[part]]
        phi = basis(logs, self.points, self.length) if self._kept is None else self._kept[part]
        scores = logs + phi @ mean
        scores -= scores.max(axis=1, keepdims=True)
        at_truth = scores[np.arange(len(labels)), labels]
        np.exp(scores, out=scores)
        totals = scores.sum(axis=1)
        scores /= totals[:, None]
        return phi, scores, at_truth - np.log(totals), labels

    def _best_covariance(self, curvature: np.ndarray, variance: float) -> np.ndarray:
        precision = curvature + np.eye(len(curvature)) / variance
        inverse = np.linalg.inv(0.5 * (precision + precision.T))
        return 0.5 * (inverse + inverse.T)


def kernel(log_probs: np.ndarray, points: np.ndarray, length: float) -> np.ndarray:
    """Return exp(-d^2 / 2 l^2) between each log-probability and each point, (n_samples, n_classes, n_points)."""
    # Far from all points the kernel is nil; clipping keeps squares of saturated log-probabilities finite.
    distance = np.clip(log_probs, -1e6, None)[:, :, None] - points
    distance /= length
    np.square(distance, out=distance)
    distance *= -0.5
    return np.exp(distance, out=distance)


def whitening(points: np.ndarray, length: float) -> np.ndarray:
    """Return L^-1 for the kernel between the points, L L^T, with a trace on the diagonal for the sake of rounding."""
    between = kernel(points[None, :], points, length)[0]
    root = np.linalg.cholesky(between + 1e-6 * np.eye(len(points)))
    return scipy.linalg.solve_triangular(root, np.eye(len(points)), lower=True)


def basis(log_probs: np.ndarray, points: np.ndarray, length: float) -> np.ndarray:
    """Return phi, (n_samples, n_classes, n_points), in which g is linear."""
    flat = kernel(log_probs, points, length).reshape(-1, len(points))
    return (flat @ whitening(points, length).T).reshape(*log_probs.shape, len(points))
