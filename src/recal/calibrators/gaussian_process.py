"""Calibration by a latent Gaussian process (GPcalib; Wenger, Kjellström and Triebel, 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy

from recal.calibrators.base import Calibrator, from_fit, from_map
from recal.calibrators.samples import Samples
from recal.checks import Labels
from recal.maps.arrays import log_softmax
from recal.maps.blend import Answers
from recal.maps.scaling import LatentFunction
from recal.progress import track
from recal.schema import Count, RandomState
from recal.solvers.convex import minimise

# Rows are processed in parts of this many values, so that they stay in or near the processor's
# cache.
_PART = 500_000


@dataclass(frozen=True)
class Posterior:
    """The posterior of g: the mean and covariance of w, the kernel, and the bound."""

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
        The inducing points.
    length : float
        The kernel's length scale.
    """

    def __init__(
        self, log_probs: np.ndarray, labels: Labels, points: np.ndarray, length: float
    ) -> None:
        self.log_probs, self.labels, self.points, self.length = log_probs, labels, points, length
        step = max(1, _PART // (log_probs.shape[1] * len(points)))
        self._parts = [slice(first, first + step) for first in range(0, len(labels), step)]
        self._kept = None
        # Up to 160 MB, phi is kept between the hundred passes; computing it takes most of a pass.
        if log_probs.size * len(points) <= 20_000_000:
            self._kept = [kernel_features(log_probs[part], points, length) for part in self._parts]

    def fit(self, variance: float, start: Posterior | None = None) -> Posterior:
        """Maximise the bound over m; S follows from m in closed form."""
        problem = _NegativeBound(self, variance)
        first = np.zeros(len(self.points)) if start is None else start.mean
        # The bound is a sum over samples.
        found = minimise(problem, first, tol=1e-4, warn=False)
        return Posterior(found.point, problem.covariance, self.length, variance, -found.loss)

    def bound(
        self, mean: np.ndarray, covariance: np.ndarray, variance: float
    ) -> tuple[float, np.ndarray]:
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
            pull = -probs - 0.5 * probs * (
                by_class - within[:, None] - 2.0 * (along - between[:, None])
            )
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
        phi = (
            kernel_features(logs, self.points, self.length)
            if self._kept is None
            else self._kept[part]
        )
        scores = logs + phi @ mean
        scores -= scores.max(axis=1, keepdims=True)
        at_truth = scores[np.arange(len(labels)), labels]
        np.exp(scores, out=scores)
        totals = scores.sum(axis=1)
        scores /= totals[:, None]
        return phi, scores, at_truth - np.log(totals), labels


class _NegativeBound:
    """Minus the bound as a function of m, with the best S for each m."""

    def __init__(self, process: LatentProcess, variance: float) -> None:
        self.process, self.variance = process, variance

    def evaluate(self, point: np.ndarray) -> float:
        precision = self.process.curvature(point) + np.eye(len(point)) / self.variance
        self.precision = 0.5 * (precision + precision.T)
        inverse = np.linalg.inv(self.precision)
        self.covariance = 0.5 * (inverse + inverse.T)
        value, self.slope = self.process.bound(point, self.covariance, self.variance)
        return -value

    def gradient(self) -> np.ndarray:
        return -self.slope

    def hessian_times(self, direction: np.ndarray) -> np.ndarray:
        return self.precision @ direction

    def precondition(self, residual: np.ndarray) -> np.ndarray:
        return self.covariance @ residual


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


class GaussianProcessCalibration(Calibrator):
    """Bend the log-probabilities by one smooth function, the same for every class, with a Gaussian
    process as prior.

    After temperature scaling, a class with the log-probability x gets the score x + g(x). The
    probabilities are the softmax of the scores, averaged over draws of g from its posterior. g is a
    Gaussian process in one variable with a sparse variational posterior on `n_points` inducing
    points. Its length scale and variance maximise the bound on the evidence.

    Parameters
    ----------
    n_points : int
        Inducing points, spread evenly over the log-probabilities that matter.
    n_draws : int
        The number of functions drawn from the posterior; the probabilities are the mean over them.
    max_search : int
        The length scale and the variance are chosen on at most this many log-probabilities (samples
        times classes, drawn at random); the posterior itself always uses every sample.
    random_state : int, optional
        Seed of the draws and of the random choice for `max_search`.
    answers : {"free", "kept"}
        "kept": predictions never change: a guard keeps the model's prediction the likeliest class
        at the lowest cost.

    Attributes
    ----------
    beta_ : float
        The scale 1/T of the temperature scaling that comes first.
    points_ : ndarray of shape (n_points,)
    draws_ : ndarray of shape (n_draws, n_points)
        Each drawn g as weights of the kernels at the points.
    length_, variance_ : float
        The kernel's length scale and variance.
    bound_ : float
        The bound on the log evidence, a sum over samples.

    Notes
    -----
    Unlike in the paper, a temperature is fitted first. With few samples, the result is then close
    to temperature scaling instead of the uncalibrated model.

    Time and memory grow with the number of samples times classes; processing samples in parts
    bounds the memory. 5,000 x 10 takes about a second, 5,000 x 100 ten seconds, and 25,000 x 1,000
    a few minutes.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.calibrators import GaussianProcessCalibration
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(size=(300, 3))
    >>> y = (scores + rng.gumbel(size=(300, 3))).argmax(axis=1)
    >>> model = GaussianProcessCalibration(random_state=0).fit(3.0 * scores, y)
    >>> model.draws_.shape
    (32, 16)
    """

    short_name: ClassVar[str] = "gp"

    answers: Answers = "free"
    n_points: Count = 16
    n_draws: Count = 32
    max_search: Count = 200000
    random_state: RandomState = 0

    map_: LatentFunction = from_fit()
    variance_: float = from_fit()
    bound_: float = from_fit()
    beta_ = from_map("beta")
    length_ = from_map("length")
    points_ = from_map("points")
    draws_ = from_map("draws")

    def _fit(self, samples: Samples) -> dict[str, Any]:
        rng = np.random.default_rng(self.random_state)
        beta, labels = samples.beta, samples.labels
        log_probs = log_softmax(np.multiply(samples.logits, beta, dtype=np.float64))
        # A class with a probability below e^-12 hardly affects the softmax.
        lowest = max(float(log_probs.min()), -12.0)
        points = np.linspace(min(lowest, -1.0), 0.0, self.n_points)
        most = max(1, self.max_search // samples.n_classes)
        some = np.sort(rng.permutation(len(labels))[:most])
        best = _best_kernel(log_probs[some], labels[some], points)
        process = LatentProcess(log_probs, labels, points, best.length)
        posterior = process.fit(best.variance, start=best)
        normal = rng.standard_normal((self.n_draws, self.n_points))
        # Antithetic pairs: the mean of the draws equals the mean of the posterior.
        normal[self.n_draws // 2 : 2 * (self.n_draws // 2)] = -normal[: self.n_draws // 2]
        weights = posterior.mean + normal @ np.linalg.cholesky(posterior.covariance).T
        draws = weights @ whitening(points, posterior.length)
        return {
            "map_": LatentFunction(beta, posterior.length, points, draws),
            "variance_": posterior.variance,
            "bound_": posterior.bound,
        }


def _best_kernel(log_probs: np.ndarray, labels: Labels, points: np.ndarray) -> Posterior:
    """Return the posterior for the length scale and variance with the highest bound."""
    posteriors = []
    for length in track((1.0, 2.0, 4.0), "choosing the kernel"):
        process, start = LatentProcess(log_probs, labels, points, length), None
        for variance in (0.01, 0.1, 1.0, 10.0):
            start = process.fit(variance, start=start)
            posteriors.append(start)
    return max(posteriors, key=lambda posterior: posterior.bound)
