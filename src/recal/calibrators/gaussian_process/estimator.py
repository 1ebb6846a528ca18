"""Calibration by a latent Gaussian process (GPcalib; Wenger, Kjellström and Triebel, 2020)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from recal.calibrators.base import Calibrator, from_map, kept_by_answers
from recal.calibrators.gaussian_process.latent_process import LatentProcess, Posterior, whitening
from recal.calibrators.machinery.common_scale import fit_beta
from recal.calibrators.machinery.parameters import check_count, check_random_state
from recal.calibrators.machinery.probabilities import log_softmax
from recal.checks import Labels
from recal.maps.scaling import LatentFunction
from recal.plan import Answers
from recal.progress import track
from recal.views import Views

# Below e^-12 a class hardly weighs in the softmax, and there is nothing to learn about g.
_LOWEST = -12.0
_LENGTHS = (1.0, 2.0, 4.0)
_VARIANCES = (0.01, 0.1, 1.0, 10.0)


class GaussianProcessCalibration(Calibrator):
    """Bend the log-probabilities by one smooth function, the same for every class, with a Gaussian process as prior.

    After temperature scaling, a class with the log-probability x gets the score x + g(x), and the answer is the
    softmax of the scores, averaged over draws of g from its posterior. g is a Gaussian process in one variable; its
    posterior is a sparse variational one on `n_points` inducing points, and its length scale and variance are those
    with the highest bound on the evidence.

    Parameters
    ----------
    n_points : int
        Inducing points, spread evenly over the log-probabilities that matter.
    n_draws : int
        Functions drawn from the posterior; an answer is the mean of theirs.
    max_search : int
        The length scale and the variance are chosen on at most this many log-probabilities (samples times classes,
        drawn at random); the posterior itself always uses every sample.
    random_state : int, optional
        Seed of the draws, and of that choice.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

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
    A departure from the paper: a temperature is fitted first. Where samples are few, the result then falls back to
    temperature scaling instead of the uncalibrated model.

    Time and memory grow with the number of samples times classes; the memory is bounded by taking samples in parts.
    5,000 x 10 takes about a second, 5,000 x 100 ten, 25,000 x 1,000 some minutes.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.calibrators import GaussianProcessCalibration
    >>> rng = np.random.default_rng(0)
    >>> honest = rng.normal(size=(300, 3))
    >>> y = (honest + rng.gumbel(size=(300, 3))).argmax(axis=1)
    >>> model = GaussianProcessCalibration(random_state=0).fit(3.0 * honest, y)
    >>> model.draws_.shape
    (32, 16)
    """

    short_name: ClassVar[str] = "gp"
    keeps_accuracy: ClassVar[bool] = kept_by_answers("free")

    map_: LatentFunction
    variance_: float
    bound_: float
    beta_ = from_map("beta")
    length_ = from_map("length")
    points_ = from_map("points")
    draws_ = from_map("draws")

    def __init__(
        self,
        *,
        answers: Answers = "free",
        n_points: int = 16,
        n_draws: int = 32,
        max_search: int = 200000,
        random_state: int | None = 0,
    ) -> None:
        self.n_points = n_points
        self.n_draws = n_draws
        self.max_search = max_search
        self.random_state = random_state
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        for name in ("n_points", "n_draws", "max_search"):
            check_count(name, getattr(self, name))
        rng = check_random_state(self.random_state)
        beta = fit_beta(views.logits, labels)
        log_probs = log_softmax(np.multiply(views.logits, beta, dtype=np.float64))
        lowest = max(float(log_probs.min()), _LOWEST)
        points = np.linspace(min(lowest, -1.0), 0.0, self.n_points)
        most = max(1, self.max_search // views.n_classes)
        some = np.sort(rng.permutation(len(labels))[:most])
        best = _best_kernel(log_probs[some], labels[some], points)
        process = LatentProcess(log_probs, labels, points, best.length)
        found = process.fit(best.variance, start=best)
        self.variance_, self.bound_ = found.variance, found.bound
        normal = rng.standard_normal((self.n_draws, self.n_points))
        # Antithetic pairs: the draws' mean is the posterior's.
        normal[self.n_draws // 2 : 2 * (self.n_draws // 2)] = -normal[: self.n_draws // 2]
        weights = found.mean + normal @ np.linalg.cholesky(found.covariance).T
        self.map_ = LatentFunction(beta, found.length, points, weights @ whitening(points, found.length))


def _best_kernel(log_probs: np.ndarray, labels: Labels, points: np.ndarray) -> Posterior:
    """Return the posterior of the length scale and variance with the highest bound."""
    tried = []
    for length in track(_LENGTHS, "choosing the kernel"):
        process = LatentProcess(log_probs, labels, points, length)
        found = None
        for variance in _VARIANCES:
            found = process.fit(variance, start=found)
            tried.append(found)
    return max(tried, key=lambda posterior: posterior.bound)
