"""Temperature scaling: one number for all samples (Guo et al., 2017)."""

from __future__ import annotations

from typing import Any, ClassVar

from recal.calibrators.base import Calibrator, from_fit, from_map
from recal.calibrators.samples import Samples
from recal.maps.scaling import Temperature
from recal.maps.steps import Plan
from recal.solvers.temperature import fit_temperature


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

    short_name: ClassVar[str] = "ts"
    keeps_accuracy: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True
    beta_ = from_map("beta")
    map_: Temperature = from_fit()
    converged_: bool = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        if samples.known_beta is not None:
            return {"map_": Temperature(samples.known_beta), "converged_": True}
        solution = fit_temperature(samples.logits, samples.labels, samples.weights)
        return {"map_": Temperature(float(solution.values[0])), "converged_": solution.converged}

    @property
    def temperature_(self) -> float:
        return 1.0 / self.beta_

    @property
    def plan_(self) -> Plan:
        return self.map_.plan
