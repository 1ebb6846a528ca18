"""Ensemble temperature scaling: a mixture of three answers."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.calibrators.machinery.common_scale import fit_betas
from recal.calibrators.machinery.probabilities import softmax
from recal.calibrators.machinery.state import number, part
from recal.checks import Labels
from recal.engine.scaled import ScaledLogits, Vector
from recal.errors import InputError
from recal.views import Views

# A truth that got probability 0 from two of the three must not make the loss infinite while weights are sought.
_FLOOR = 1e-30
# The loss has several valleys in the temperature: these multiples of the best single one are tried, on some samples.
_MULTIPLES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
_MOST_TRIED = 5_000
# What is thought of log(beta / the best single beta) before the data speak: normal, with this standard deviation. A
# share of the uniform answer can explain one or two mistakes, and nothing else then holds beta back.
_PRIOR_SPREAD = 0.5


class EnsembleTemperatureScaling(Calibrator):
    """Mix the answers at a fitted temperature, at temperature 1, and the uniform one.

    The temperature and three weights that are at least 0 and sum to 1 are fitted together, by the negative
    log-likelihood: beside a share of the uniform answer, which guards against confident mistakes, another temperature
    is best than alone. The publication fits the temperature first; from there this begins, and it is never worse on
    the fitted samples. A normal prior on log(beta), centred at the best single temperature's with a standard deviation
    of 0.5, holds beta where there are only a few mistakes to learn from.
    A mixture of increasing functions is increasing: the prediction is kept. Where every answer is right only a
    temperature is fitted.
    Reference: Zhang, Kailkhura and Han, *Mix-n-Match* (ICML 2020).

    Attributes
    ----------
    beta_ : float
        The inverse of the fitted temperature.
    weights_ : ndarray of shape (3,)
        Of the answer at the fitted temperature, of the model's own, and of the uniform one.

    Examples
    --------
    >>> from recal.calibrators import EnsembleTemperatureScaling
    >>> logits = [[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]
    >>> EnsembleTemperatureScaling().fit(logits, [0, 0, 1, 1]).predict_proba([[4.0, 0.0]]).round(3)
    array([[0.75, 0.25]])
    """

    short_name = "ets"
    keeps_accuracy = True

    beta_: float
    weights_: NDArray[np.float64]

    def _fit(self, views: Views, labels: Labels) -> None:
        state = ScaledLogits(views.logits)
        single = fit_betas(state, labels).values[0]
        if not (state.drop_at(labels) < 0.0).any():
            self.beta_, self.weights_ = single, np.array([1.0, 0.0, 0.0])
            return
        mixture = Mixture(state, labels, views.n_classes, single)
        few = slice(None, None, -(-len(labels) // _MOST_TRIED))
        some = mixture
        if len(labels) > _MOST_TRIED:
            some = Mixture(ScaledLogits(views.logits[few]), labels[few], views.n_classes, single)
        tried = [(beta, some.best_weights(beta)) for beta in single * np.array(_MULTIPLES)]
        start = min(tried, key=lambda pair: some.loss(*pair))
        candidates = [(single, mixture.best_weights(single)), mixture.descend(*start)]
        self.beta_, self.weights_ = min(candidates, key=lambda pair: mixture.loss(*pair))

    def _check_state(self, n_classes: int) -> None:
        number(self, "beta_")
        weights = part(self, "weights_", (3,), 0.0, 1.0)
        if abs(weights.sum() - 1.0) > 1e-6:
            raise InputError("must sum to 1", argument="weights_", came=f"got {weights.sum():.6g}")

    def _predict_proba(self, views: Views) -> NDArray[np.float64]:
        scaled, own, uniform = self.weights_
        return scaled * softmax(views.logits, self.beta_) + own * softmax(views.logits) + uniform / views.n_classes


class Mixture:
    """The mean negative log-likelihood of the mixture and its prior, as a function of its beta and weights."""

    def __init__(self, state: ScaledLogits, labels: Labels, n_classes: int, single: float) -> None:
        self.state, self.drops, self.centre = state, state.drop_at(labels), float(np.log(single))
        self.precision = 1.0 / (_PRIOR_SPREAD**2 * len(labels))
        self.own, self.uniform = self._truth(1.0)[0], 1.0 / n_classes

    def _truth(self, beta: float) -> tuple[Vector, Vector]:
        """Return the probability of each truth at beta, and its derivative in log beta."""
        factors = np.full(len(self.drops), beta)
        probs = np.exp(beta * self.drops - self.state.log_partition_at(factors))
        return probs, probs * beta * (self.drops - self.state.slopes(factors)[0])

    def parts(self, beta: float) -> NDArray[np.float64]:
        return np.stack([self._truth(beta)[0], self.own, np.full(len(self.own), self.uniform)], axis=1)

    def best_weights(self, beta: float) -> NDArray[np.float64]:
        return mixture_weights(self.parts(beta))

    def loss(self, beta: float, weights: NDArray[np.float64]) -> float:
        likelihoods = np.maximum(np.maximum(self.parts(beta), _FLOOR) @ weights, _FLOOR)
        return float(-np.log(likelihoods).mean()) + 0.5 * self.precision * (float(np.log(beta)) - self.centre) ** 2

    def descend(self, beta: float, weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the beta and weights at the bottom of the valley in which these lie."""

        def loss(point: Vector) -> tuple[float, Vector]:
            scaled, slope = self._truth(float(np.exp(point[0])))
            parts = np.maximum(np.stack([scaled, self.own, np.full(len(self.own), self.uniform)], axis=1), _FLOOR)
            mixed = np.maximum(parts @ point[1:], _FLOOR)
            by_weight = -(parts / mixed[:, None]).mean(axis=0)
            off = point[0] - self.centre
            by_beta = self.precision * off - point[1] * (slope / mixed).mean()
            return float(-np.log(mixed).mean()) + 0.5 * self.precision * off**2, np.append(by_beta, by_weight)

        answer = scipy.optimize.minimize(
            loss,
            np.append(np.log(beta), weights),
            jac=True,
            method="SLSQP",
            bounds=[(np.log(beta) - 3.0, np.log(beta) + 3.0)] + [(0.0, 1.0)] * 3,
            constraints={"type": "eq", "fun": lambda x: x[1:].sum() - 1.0, "jac": lambda x: np.array([0.0, 1, 1, 1])},
            options={"maxiter": 100, "ftol": 1e-12},
        )
        found = float(np.exp(np.clip(answer.x[0], np.log(beta) - 3.0, np.log(beta) + 3.0)))
        return found, self.best_weights(found)


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
