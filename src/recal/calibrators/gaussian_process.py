"""Calibration by a latent Gaussian process (GPcalib; Wenger, Kjellström and Triebel, 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from recal.calibrators.base import GuardedCalibrator, from_fit
from recal.calibrators.samples import Samples
from recal.checks import Labels
from recal.engine import row_blocks
from recal.maps.arrays import log_softmax
from recal.maps.scaling import LatentFunction
from recal.progress import track
from recal.schema import RandomState
from recal.solvers.convex import minimise


@dataclass(frozen=True)
class Posterior:
    """The posterior of g: the mean and covariance of w, the kernel, and the bound."""

    mean: np.ndarray
    covariance: np.ndarray
    length: float
    variance: float
    bound: float


class LatentProcess:
    """Minus the bound of one data set for one length scale, as a function of m; S follows from m in
    closed form.

    Parameters
    ----------
    log_probs : ndarray of shape (n_samples, n_classes)
    labels : ndarray of shape (n_samples,)
    points : ndarray of shape (n_points,)
        The inducing points.
    length : float
        The kernel's length scale.
    """

    def __init__(
        self, log_probs: np.ndarray, labels: Labels, points: np.ndarray, length: float
    ) -> None:
        self.log_probs, self.labels, self.points, self.length = log_probs, labels, points, length
        width = log_probs.shape[1] * len(points)
        # Parts of this many values stay in or near the processor's cache.
        self._rows = list(row_blocks(len(labels), width, 500_000))
        self._kept: list[np.ndarray | None] = [None] * len(self._rows)
        # Up to 160 MB, phi is kept between the hundred passes; computing it takes most of a pass.
        if log_probs.size * len(points) <= 20_000_000:
            self._kept = [kernel_features(log_probs[rows], points, length) for rows in self._rows]

    def fit(self, variance: float, start: Posterior | None = None) -> Posterior:
        """Maximise the bound over m."""
        self.variance = variance
        first = np.zeros(len(self.points)) if start is None else start.mean
        # The bound is a sum over samples.
        found = minimise(self, first, tol=1e-4, warn=False)
        return Posterior(found.point, self.covariance, self.length, variance, -found.loss)

    def evaluate(self, point: np.ndarray) -> float:
        precision = np.eye(len(point)) / self.variance
        # The negative Hessian of the log-likelihood in w.
        for phi, probs, _, _ in self._parts(point):
            flat = (phi * np.sqrt(probs)[:, :, None]).reshape(-1, len(point))
            centre = np.einsum("nk,nkm->nm", probs, phi)
            precision += flat.T @ flat - centre.T @ centre
        self.precision = 0.5 * (precision + precision.T)
        inverse = np.linalg.inv(self.precision)
        self.covariance = 0.5 * (inverse + inverse.T)
        value, self.slope = self.bound(point, self.covariance)
        return -value

    def gradient(self) -> np.ndarray:
        return -self.slope

    def hessian_times(self, direction: np.ndarray) -> np.ndarray:
        return self.precision @ direction

    def precondition(self, residual: np.ndarray) -> np.ndarray:
        return self.covariance @ residual

    def bound(self, mean: np.ndarray, covariance: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the bound and its gradient in `mean` for a fixed covariance."""
        value, slope = 0.0, np.zeros(len(mean))
        root = np.linalg.cholesky(covariance)
        for phi, probs, at_truth, labels in self._parts(mean):
            spread = (phi.reshape(-1, len(mean)) @ root).reshape(phi.shape)
            by_class = np.square(spread).sum(axis=2)
            centre = np.einsum("nk,nkm->nm", probs, spread)
            within = np.einsum("nk,nk->n", probs, by_class)
            between = np.square(centre).sum(axis=1)
            value += float(at_truth.sum() - 0.5 * (within - between).sum())
            along = np.einsum("nkm,nm->nk", spread, centre)
            excess = by_class - within[:, None] - 2.0 * (along - between[:, None])
            pull = -probs - 0.5 * probs * excess
            pull[np.arange(len(labels)), labels] += 1.0
            slope += np.einsum("nk,nkm->m", pull, phi)
        value -= 0.5 * (float(mean @ mean + np.trace(covariance)) / self.variance - len(mean))
        value -= 0.5 * len(mean) * np.log(self.variance) - np.log(np.diagonal(root)).sum()
        return value, slope - mean / self.variance

    def _parts(
        self, mean: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, Labels]]:
        """Yield phi, the probabilities, the log-probability of each label, and the labels."""
        for rows, phi in zip(self._rows, self._kept):
            logs, labels = self.log_probs[rows], self.labels[rows]
            if phi is None:
                phi = kernel_features(logs, self.points, self.length)
            scores = log_softmax(logs + phi @ mean)
            yield phi, np.exp(scores), scores[np.arange(len(labels)), labels], labels


def gaussian_kernel(log_probs: np.ndarray, points: np.ndarray, length: float) -> np.ndarray:
    """Return exp(-d^2 / 2 l^2) between each log-probability and each point, (n_samples, n_classes,
    n_points).
    """
    # Far from all points the kernel is 0; clipping keeps squares of saturated log-probabilities
    # finite.
    distance = np.clip(log_probs, -1e6, None)[:, :, None] - points
    distance /= length
    np.square(distance, out=distance)
    distance *= -0.5
    return np.exp(distance, out=distance)


def whitening(points: np.ndarray, length: float) -> np.ndarray:
    """Return L^-1 for the kernel between the points, L L^T, with 1e-6 added to the diagonal against
    rounding.
    """
    between = gaussian_kernel(points[None, :], points, length)[0]
    root = np.linalg.cholesky(between + 1e-6 * np.eye(len(points)))
    return scipy.linalg.solve_triangular(root, np.eye(len(points)), lower=True)


def kernel_features(log_probs: np.ndarray, points: np.ndarray, length: float) -> np.ndarray:
    """Return the features phi, (n_samples, n_classes, n_points); g is linear in them."""
    flat = gaussian_kernel(log_probs, points, length).reshape(-1, len(points))
    return (flat @ whitening(points, length).T).reshape(*log_probs.shape, len(points))


class GaussianProcessCalibration(GuardedCalibrator):
    """Bend the log-probabilities by one smooth function, the same for every class, with a Gaussian
    process as prior.

    After temperature scaling, a class with the log-probability x gets the score x + g(x). The
    probabilities are the softmax of the scores, averaged over draws of g from its posterior. g is a
    Gaussian process in one variable with a sparse variational posterior on 16 inducing
    points. Its length scale and variance maximise the bound on the evidence.

    Parameters
    ----------
    random_state : int, optional
        Seed of the draws, and of the 200,000 log-probabilities on which the kernel is chosen.

    Notes
    -----
    Unlike in the paper, a temperature is fitted first. With few samples, the result is then close
    to temperature scaling instead of the uncalibrated model.

    Time and memory grow with the number of samples times classes; processing samples in parts
    bounds the memory. 5,000 x 10 takes about a second, 5,000 x 100 ten seconds, and 25,000 x 1,000
    a few minutes.

    Examples
    --------
    >>> model = GaussianProcessCalibration().fit(4.0 * np.eye(3)[[0, 1, 2, 0, 1]], [0, 1, 2, 1, 0])
    >>> model.map_.draws.shape  # draws of the function, by inducing points
    (32, 16)
    """

    random_state: RandomState = 0

    map_: LatentFunction = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        rng = np.random.default_rng(self.random_state)
        beta, labels = samples.beta, samples.labels
        log_probs = log_softmax(np.multiply(samples.logits, beta, dtype=np.float64))
        # A class with a probability below e^-12 hardly affects the softmax.
        lowest = max(float(log_probs.min()), -12.0)
        points = np.linspace(min(lowest, -1.0), 0.0, 16)
        # The kernel is chosen on a part; the posterior itself uses every sample.
        some = np.sort(rng.permutation(len(labels))[: max(1, 200_000 // samples.n_classes)])
        best = _best_kernel(log_probs[some], labels[some], points)
        process = LatentProcess(log_probs, labels, points, best.length)
        posterior = process.fit(best.variance, start=best)
        # Antithetic pairs: the mean of the draws equals the mean of the posterior.
        normal = rng.standard_normal((32, len(points)))
        normal[16:] = -normal[:16]
        weights = posterior.mean + normal @ np.linalg.cholesky(posterior.covariance).T
        draws = weights @ whitening(points, posterior.length)
        return {"map_": LatentFunction(beta, posterior.length, points, draws)}


def _best_kernel(log_probs: np.ndarray, labels: Labels, points: np.ndarray) -> Posterior:
    """Return the posterior for the length scale and variance with the highest bound."""
    posteriors = []
    for length in track((1.0, 2.0, 4.0), "choosing the kernel"):
        process, start = LatentProcess(log_probs, labels, points, length), None
        for variance in (0.01, 0.1, 1.0, 10.0):
            start = process.fit(variance, start=start)
            posteriors.append(start)
    return max(posteriors, key=lambda posterior: posterior.bound)
