"""Temperature scaling, and mixtures of it with the model's own and uniform probabilities (ETS)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from recal.calibrators.base import Calibrator, from_fit
from recal.calibrators.samples import Samples
from recal.checks import Labels, Vector
from recal.engine import one_thread
from recal.engine.series import ScaledLogits
from recal.maps.scaling import Temperature, TemperatureMixture
from recal.maps.steps import Plan
from recal.solvers.convex import mixture_weights
from recal.solvers.temperature import fit_betas, fit_temperature


class TemperatureScaling(Calibrator):
    """Divide all logits by the temperature that minimises the negative log-likelihood.

    beta = 1/T is exact to 1e-8 and always positive, for any scale of the logits. If every
    prediction is right, no finite temperature is best. The fit then adds one wrong sample: a
    typical one whose true class is the second most likely. A `FewSamplesWarning` says so. If chance
    does better than the model, T is 1000, or more if the logits are larger than usual.

    Attributes
    ----------
    map_ : Temperature
    temperature_, beta_ : float
        The temperature T, and 1/T.
    plan_ : Plan
        The same as a plan: a start beta and no steps.
    converged_ : bool
        Whether the solver met its tolerance.

    Examples
    --------
    >>> from recal import TemperatureScaling
    >>> logits = [[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]
    >>> round(TemperatureScaling().fit(logits, [0, 0, 1, 1]).temperature_, 3)
    3.641
    """

    keeps_accuracy: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True
    map_: Temperature = from_fit()
    converged_: bool = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        if samples.known_beta is not None:
            return {"map_": Temperature(samples.known_beta), "converged_": True}
        solution = fit_temperature(samples.logits, samples.labels, samples.weights)
        return {"map_": Temperature(float(solution.values[0])), "converged_": solution.converged}

    @property
    def beta_(self) -> float:
        return self.map_.beta

    @property
    def temperature_(self) -> float:
        return 1.0 / self.beta_

    @property
    def plan_(self) -> Plan:
        return self.map_.plan


class EnsembleTemperatureScaling(Calibrator):
    """Mix the probabilities at a fitted temperature, those at temperature 1, and the uniform
    distribution.

    The temperature and three weights, at least 0 and of sum 1, are fitted together by the negative
    log-likelihood. A share of the uniform distribution guards against confident mistakes, and the
    best temperature beside it differs from the best one alone. The publication fits the temperature
    first. The fit starts there and is never worse on the fitted samples. A normal prior on
    log(beta), centred at the best single temperature with a standard deviation of 0.5, limits beta
    if there are only a few mistakes to learn from. A mixture of increasing functions is increasing,
    so predictions never change. If every prediction is right, only a temperature is fitted.
    Reference: Zhang, Kailkhura and Han, *Mix-n-Match* (ICML 2020).

    Examples
    --------
    >>> model = EnsembleTemperatureScaling().fit([4.0, 4.0, 4.0, -4.0], [1, 1, 0, 0])
    >>> model.map_.weights.round(2).tolist()
    [0.48, 0.27, 0.25]
    """

    keeps_accuracy = True

    map_: TemperatureMixture = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        with one_thread():
            return {"map_": _fit_mixture(samples)}


def _fit_mixture(samples: Samples) -> TemperatureMixture:
    logits, labels = samples.logits, samples.labels
    near = getattr(samples.near, "beta", None)
    state, single = ScaledLogits(logits), samples.known_beta
    if single is None:
        single = float(fit_betas(state, labels).values[0])
    if not (state.drop_at(labels) < 0.0).any():
        return TemperatureMixture(single, np.array([1.0, 0.0, 0.0]))
    mixture = some = _Loss(state, labels, logits.shape[1], single)
    if near is not None:
        step = mixture.step_from(near)
        return TemperatureMixture(step, mixture.best(step)[1])
    # The loss has several minima in the temperature: try multiples of the best single beta.
    multiples = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
    if len(labels) > 1000:
        few = slice(None, None, -(-len(labels) // 1000))
        some = _Loss(ScaledLogits(logits[few]), labels[few], logits.shape[1], single)
    start = min(single * np.array(multiples), key=lambda beta: some.best(beta)[0])
    best = min((single, mixture.descend(float(start))), key=lambda beta: mixture.best(beta)[0])
    return TemperatureMixture(best, mixture.best(best)[1])


class _Loss:
    """The mean negative log-likelihood of the mixture and its prior, as a function of its beta
    alone.

    At each beta the weights are the best ones, which is a convex problem.
    """

    def __init__(self, state: ScaledLogits, labels: Labels, n_classes: int, single: float) -> None:
        self.state, self.drops, self.centre = state, state.drop_at(labels), float(np.log(single))
        # For few values a plain sum is faster than the state's series, whose purpose is to read
        # many classes only once.
        small = state.logits.size < 500_000
        self.centred = state.logits - state.maxima[:, None].astype(np.float64) if small else None
        # The prior of log(beta / the best single beta) is normal with a standard deviation of 0.5.
        # A share of the uniform distribution can explain one or two mistakes; without a prior, beta
        # would then grow without limit.
        self.precision = 1.0 / (0.5**2 * len(labels))
        self.counts, self.weights = np.ones(len(labels)), np.full(3, 1.0 / 3.0)
        self.parts = np.stack(
            [self._truth(1.0)] * 2 + [np.full(len(labels), 1.0 / n_classes)], axis=1
        )

    def _truth(self, beta: float) -> Vector:
        """Return the probability of each sample's label at beta."""
        if self.centred is None:
            return np.exp(beta * self.drops - self.state.log_partition_at(beta))
        return np.exp(beta * self.drops) / np.exp(beta * self.centred).sum(axis=1)

    def best(self, beta: float) -> tuple[float, Vector]:
        """Return the lowest loss at this beta, and the weights that give it."""
        self.parts[:, 0] = self._truth(beta)
        # Start near the last weights, but not at 0, from which a weight would rise slowly.
        self.weights = mixture_weights(
            self.parts, self.counts, np.zeros(3), 0.97 * self.weights + 0.01
        )
        weights = self.weights
        # Finite even if two of the three parts give the label probability 0.
        likelihoods = np.maximum(self.parts @ weights, 1e-30)
        return float(
            -np.log(likelihoods).mean() + 0.5 * self.precision * (np.log(beta) - self.centre) ** 2
        ), weights

    def step_from(self, beta: float, apart: float = 0.05) -> float:
        """Return the minimum of the parabola through the losses at, below and above a beta that is
        nearly the best.
        """
        at = np.log(beta) + apart * np.array([-1.0, 0.0, 1.0])
        low, middle, high = (self.best(float(np.exp(x)))[0] for x in at)
        bend = low - 2.0 * middle + high
        step = 0.5 * (low - high) / bend if bend > 0.0 else np.sign(low - high)
        return float(np.exp(at[1] + apart * np.clip(step, -3.0, 3.0)))

    def descend(self, beta: float) -> float:
        """Return the beta of the local minimum near `beta`."""
        # Slow to import, and of no use to one temperature.
        from scipy.optimize import minimize_scalar

        # A factor of e on either side reaches beyond the neighbouring multiples.
        low, high = np.log(beta) - 1.0, np.log(beta) + 1.0
        answer = minimize_scalar(
            lambda x: self.best(float(np.exp(x)))[0],
            bounds=(low, high),
            method="bounded",
            options={"xatol": 1e-5},
        )
        return float(np.exp(answer.x))
