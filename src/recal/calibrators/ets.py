"""Ensemble temperature scaling: a mixture of three answers."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.calibrators.machinery.common_scale import fit_betas
from recal.calibrators.machinery.probabilities import softmax
from recal.checks import Labels
from recal.engine.scaled import ScaledLogits
from recal.views import Views

# A truth that got probability 0 from two of the three must not make the loss infinite while weights are sought.
_FLOOR = 1e-30


class EnsembleTemperatureScaling(Calibrator):
    """Mix the answers at a fitted temperature, at temperature 1, and the uniform one.

    The temperature is fitted first, then three weights that are at least 0 and sum to 1, both by the negative
    log-likelihood. It has three free numbers in all, so a few hundred samples are enough, and a little of the uniform
    answer guards against confident mistakes. A mixture of increasing functions is increasing: the prediction is kept.
    Reference: Zhang, Kailkhura and Han, *Mix-n-Match* (ICML 2020).

    Attributes
    ----------
    beta_ : float
        The inverse of the fitted temperature.
    weights_ : ndarray of shape (3,)
        Of the answer at the fitted temperature, of the model's own, and of the uniform one.

    Examples
    --------
    >>> from recal import EnsembleTemperatureScaling
    >>> logits = [[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]
    >>> EnsembleTemperatureScaling().fit(logits, [0, 0, 1, 1]).predict_proba([[4.0, 0.0]]).round(3)
    array([[0.75, 0.25]])
    """

    short_name = "ets"
    keeps_accuracy = True

    beta_: float
    weights_: NDArray[np.float64]

    def _fit(self, views: Views, labels: Labels) -> None:
        self.beta_ = fit_betas(ScaledLogits(views.logits), labels).values[0]
        rows = np.arange(len(labels))
        likelihoods = np.stack(
            [
                softmax(views.logits, self.beta_)[rows, labels],
                softmax(views.logits)[rows, labels],
                np.full(len(labels), 1.0 / views.n_classes),
            ],
            axis=1,
        )
        self.weights_ = mixture_weights(likelihoods)

    def _predict_proba(self, views: Views) -> NDArray[np.float64]:
        scaled, own, uniform = self.weights_
        return scaled * softmax(views.logits, self.beta_) + own * softmax(views.logits) + uniform / views.n_classes


def mixture_weights(likelihoods: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights w >= 0 with sum 1 that maximise sum_i log(likelihoods_i . w); the problem is convex."""
    parts = np.maximum(likelihoods, _FLOOR)
    n_parts = parts.shape[1]

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        mixed = np.maximum(parts @ weights, _FLOOR)  # a trial step may leave the simplex
        return float(-np.log(mixed).mean()), -(parts / mixed[:, None]).mean(axis=0)

    answer = scipy.optimize.minimize(
        loss,
        np.full(n_parts, 1.0 / n_parts),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * n_parts,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1.0, "jac": np.ones_like},
        options={"maxiter": 200, "ftol": 1e-13},
    )
    inside = np.clip(answer.x, 0.0, 1.0)
    # The corners are candidates too: the solver may stop a hair's breadth away from one.
    candidates = [inside / inside.sum(), *np.eye(n_parts)]
    return min(candidates, key=lambda w: loss(w)[0])
