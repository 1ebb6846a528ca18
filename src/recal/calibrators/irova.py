"""Temperature scaling, then isotonic regression, one class against all others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.isotonic import IsotonicCalibration
from recal.calibrators.machinery.common_scale import fit_betas
from recal.calibrators.machinery.parameters import check_flag, warn_if_few
from recal.calibrators.machinery.probabilities import class_scores
from recal.calibrators.machinery.state import number
from recal.checks import Labels
from recal.engine.scaled import ScaledLogits
from recal.plan import Answers
from recal.views import Views


class IsotonicOneVsAll(IsotonicCalibration):
    """Scale by one temperature, then map each class's log-odds through an increasing function of its own.

    The temperature does the coarse work with one parameter, isotonic regression what is left; so the composition needs
    fewer samples than isotonic regression alone where a network is badly over-confident. Reference: Zhang, Kailkhura
    and Han, *Mix-n-Match* (ICML 2020), there IROvA-TS and, without the temperature, IROvA.

    Parameters
    ----------
    temperature : bool
        Whether to scale by a temperature first (IROvA-TS) or not (IROvA, which is `IsotonicCalibration`).
    penalty : float
        How many samples, spread evenly over the classes, are added to the frequencies so that none is 0 or 1.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    beta_ : float
        The inverse of the temperature; 1 where none is fitted.
    knots_, values_, offsets_ : ndarray
        The classes' curves, as in `IsotonicCalibration`.

    Examples
    --------
    >>> from recal.calibrators import IsotonicOneVsAll
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> IsotonicOneVsAll().fit(logits, [0, 1, 0, 1]).predict_proba([[2.5, 0.0]]).round(3)
    array([[0.7, 0.3]])
    """

    short_name = "irova-ts"

    beta_: float

    def __init__(self, *, answers: Answers = "free", temperature: bool = True, penalty: float = 1.0) -> None:
        self.temperature = temperature
        self.penalty = penalty
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        warn_if_few(self, len(labels), views.n_classes, int((views.logits.argmax(axis=1) != labels).sum()))
        scaled = check_flag("temperature", self.temperature)
        self.beta_ = fit_betas(ScaledLogits(views.logits), labels).values[0] if scaled else 1.0
        self._fit_columns(class_scores(views.logits, self.beta_), labels)

    def _check_state(self, n_classes: int) -> None:
        number(self, "beta_")
        super()._check_state(n_classes)

    def _predict_proba(self, views: Views) -> NDArray[np.float64]:
        return self._map_columns(class_scores(views.logits, self.beta_))
