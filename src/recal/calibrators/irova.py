"""Temperature scaling, then isotonic regression, one class against all others."""

from __future__ import annotations

import numpy as np
import scipy

from recal.calibrators.base import from_map
from recal.calibrators.isotonic import IsotonicCalibration
from recal.calibrators.machinery.common_scale import fit_betas
from recal.calibrators.machinery.parameters import check_flag, warn_if_few
from recal.calibrators.machinery.probabilities import softmax
from recal.checks import Floats, Labels
from recal.engine.scaled import ScaledLogits
from recal.plan import Answers
from recal.views import Views


class IsotonicOneVsAll(IsotonicCalibration):
    """Scale by one temperature, then map each class's log-odds through an increasing function of its own.

    The temperature does the coarse work with one parameter, isotonic regression what is left; so the composition needs
    fewer samples than isotonic regression alone where a network is badly overconfident. Reference: Zhang, Kailkhura
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
        The inverse of the temperature, that of the least Brier score as its authors use; 1 where none is fitted.
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

    beta_ = from_map("beta")

    def __init__(self, *, answers: Answers = "free", temperature: bool = True, penalty: float = 1.0) -> None:
        self.temperature = temperature
        self.penalty = penalty
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        warn_if_few(self, len(labels), views.n_classes, int((views.logits.argmax(axis=1) != labels).sum()))
        scaled = check_flag("temperature", self.temperature)
        self._fit_columns(views.logits, labels, _least_squares_beta(views.logits, labels) if scaled else 1.0)


def _least_squares_beta(logits: Floats, labels: Labels) -> float:
    """Return the beta of the least Brier score, which the authors use before the curves.

    It is sought within a factor of 50 of the likelihood's, which is drawn down by confident mistakes.
    """
    likeliest = float(fit_betas(ScaledLogits(logits), labels).values[0])
    rows = np.arange(len(labels))

    def loss(step: float) -> float:
        probs = softmax(logits, likeliest * float(np.exp(step)))
        probs[rows, labels] -= 1.0
        return float(np.square(probs).sum(axis=1).mean())

    found = scipy.optimize.minimize_scalar(loss, bounds=(-4.0, 4.0), method="bounded", options={"xatol": 1e-4})
    return likeliest * float(np.exp(found.x))
