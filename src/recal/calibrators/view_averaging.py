"""The mean of softmax over the original and its transformed copies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, kept_by_answers
from recal.calibrators.machinery.common_scale import fit_beta
from recal.calibrators.machinery.parameters import check_flag
from recal.calibrators.machinery.probabilities import SMALLEST, softmax
from recal.calibrators.machinery.state import number
from recal.checks import Labels
from recal.plan import Answers
from recal.views import Views


class ViewAveraging(Calibrator):
    """Average the softmax over the original and all its views, as in test-time augmentation.

    By itself it learns nothing: `fit` only notes which transformations to use. The average may predict another class
    than the model did, and transformations that lose much information make it worse than no calibration at all: it
    suits mild views only. Reference: Bahat and Shakhnarovich, *Classification confidence estimation with test-time
    data-augmentation* (2020).

    Parameters
    ----------
    temperature : bool
        Whether to correct the average by one temperature, fitted by the negative log-likelihood.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    beta_ : float
        The inverse of the fitted temperature; 1 where none was asked for.
    transforms_ : list of str
        The specs of the transformations that are averaged over; new views must hold them.

    Examples
    --------
    >>> from recal import Views
    >>> from recal.calibrators import ViewAveraging
    >>> views = Views([[2.0, 0.0], [0.0, 1.0]], {"zoom:0.5": [[0.0, 0.0], [0.0, 3.0]]}, labels=[0, 1])
    >>> ViewAveraging().fit(views).predict_proba(views).round(3)
    array([[0.69 , 0.31 ],
           [0.158, 0.842]])
    """

    short_name = "tta"
    keeps_accuracy = kept_by_answers("free")
    needs_views = True

    transforms_: list[str]
    beta_: float

    def __init__(self, *, answers: Answers = "free", temperature: bool = False) -> None:
        self.temperature = temperature
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        check_flag("temperature", self.temperature)
        self.transforms_ = [str(transform) for transform in views.transforms]
        self.beta_ = fit_beta(_logarithm(self._mean(views)), labels) if self.temperature else 1.0

    def _check_state(self, n_classes: int) -> None:
        if "beta_" in vars(self):  # files from before there was a temperature hold none
            number(self, "beta_")

    def _predict_proba(self, views: Views) -> NDArray[np.float64]:
        mean = self._mean(views)
        beta = getattr(self, "beta_", 1.0)  # files from before there was a temperature hold none
        return mean if beta == 1.0 else softmax(_logarithm(mean), beta)

    def _mean(self, views: Views) -> NDArray[np.float64]:
        total = softmax(views.logits)
        for spec in self.transforms_:
            total += softmax(views.transformed(spec))
        return total / (1 + len(self.transforms_))


def _logarithm(probs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.maximum(probs, SMALLEST))
