"""The mean of softmax over the original and its transformed copies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.calibrators.machinery.probabilities import softmax
from recal.checks import Labels
from recal.views import Views


class ViewAveraging(Calibrator):
    """Average the softmax over the original and all its views, as in test-time augmentation.

    Nothing is learned: `fit` only notes which transformations to use. The average may predict another class than the
    model did, and transformations that lose much information make it worse than no calibration at all: it suits mild
    views only. Reference: Bahat and Shakhnarovich, *Classification confidence estimation with test-time
    data-augmentation* (2020).

    Attributes
    ----------
    transforms_ : list of str
        The specs of the transformations that are averaged over; new views must hold them.

    Examples
    --------
    >>> from recal import ViewAveraging, Views
    >>> views = Views([[2.0, 0.0], [0.0, 1.0]], {"zoom:0.5": [[0.0, 0.0], [0.0, 3.0]]}, labels=[0, 1])
    >>> ViewAveraging().fit(views).predict_proba(views).round(3)
    array([[0.69 , 0.31 ],
           [0.158, 0.842]])
    """

    short_name = "tta"
    keeps_accuracy = False
    needs_views = True

    transforms_: list[str]

    def _fit(self, views: Views, labels: Labels) -> None:
        self.transforms_ = [str(transform) for transform in views.transforms]

    def _predict_proba(self, views: Views) -> NDArray[np.float64]:
        total = softmax(views.logits)
        for spec in self.transforms_:
            total += softmax(views.transformed(spec))
        return total / (1 + len(self.transforms_))
