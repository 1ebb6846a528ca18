"""Temperature scaling: one number for all samples (Guo et al., 2017)."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.calibrators.machinery.common_scale import fit_temperature
from recal.calibrators.machinery.state import check_plan
from recal.checks import Labels
from recal.engine.replay import scaled_answers, start_scales
from recal.plan import Plan
from recal.views import Views


class TemperatureScaling(Calibrator):
    """Divide all logits by one temperature, the one that minimises the negative log-likelihood.

    Exact to 1e-8 in beta = 1/T and always positive, whatever the scale of the logits. If every sample is right, no
    finite temperature is best. The fit then adds one wrong sample: a typical one whose true class is the second most
    likely. A `FewSamplesWarning` says so. If chance does better than the model, T is 1000, or more where the logits are
    larger than usual.

    Attributes
    ----------
    plan_ : Plan
        A start beta and no steps.
    temperature_, beta_ : float
        The temperature T, and 1/T.
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
    in_parts: ClassVar[bool] = False

    def _fit(self, views: Views, labels: Labels) -> None:
        self._fit_weighted(views, labels, None)

    def _fit_weighted(self, views: Views, labels: Labels, weights: NDArray[np.float64] | None) -> None:
        answer = fit_temperature(views.logits, labels, weights)
        self._take(answer.values[0], answer.converged)

    def _fit_near(self, views: Views, labels: Labels, beta: float, near: Self | None) -> None:
        self._take(beta, True)

    def _take(self, beta: float, converged: bool) -> None:
        self.beta_, self.temperature_, self.converged_ = beta, 1.0 / beta, converged
        self.plan_ = Plan(start=beta)

    def _check_state(self, n_classes: int) -> None:
        check_plan(self, n_classes)

    def _predict_proba(self, views: Views) -> NDArray[np.float64]:
        return self._answer(views)[0]

    def _answer(self, views: Views) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return scaled_answers(views.logits, start_scales(self.plan_, views.n_samples))
