"""One strictly increasing function for all classes: isotonic regression that keeps accuracy."""

from __future__ import annotations

import numpy as np

from recal.calibrators.base import Calibrator, from_map
from recal.calibrators.machinery.monotone import fit_increasing, smooth
from recal.calibrators.machinery.parameters import check_number
from recal.calibrators.machinery.probabilities import class_scores
from recal.checks import Labels
from recal.maps.curves import SharedLine
from recal.views import Views


class IsotonicMulticlass(Calibrator):
    """Map every class's log-odds through one shared, strictly increasing function, then normalise the rows.

    All n_samples * n_classes pairs (log-odds, "is it this class?") are pooled and one isotonic regression
    is fitted to them. A small slope is added where it is flat; dividing a row by its sum keeps its order; so the order
    of the classes, and with it the prediction, never changes. Sharing one curve needs far fewer samples than a curve
    for each class. Reference: Zhang, Kailkhura and Han, *Mix-n-Match* (ICML 2020), there IRM.

    Parameters
    ----------
    penalty : float
        How many samples, spread evenly over the classes, are added to the frequencies so that none is 0 or 1.
    slope : float
        What is added per unit of probability to make the function strictly increasing.

    Attributes
    ----------
    knots_, values_ : ndarray of shape (n_knots,)
        The corners of the shared function, log-odds and probabilities, before the slope is added.

    Examples
    --------
    >>> from recal.calibrators import IsotonicMulticlass
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> IsotonicMulticlass().fit(logits, [0, 1, 0, 1]).predict_proba([[2.5, 0.0]]).round(3)
    array([[0.767, 0.233]])
    """

    short_name = "irm"
    keeps_accuracy = True

    map_: SharedLine
    knots_ = from_map("knots")
    values_ = from_map("values")

    def __init__(self, *, penalty: float = 1.0, slope: float = 1e-9) -> None:
        self.penalty = penalty
        self.slope = slope

    def _fit(self, views: Views, labels: Labels) -> None:
        check_number("slope", self.slope, least=1e-12)
        scores = class_scores(views.logits)
        hits = np.zeros(scores.shape, dtype=bool)
        hits[np.arange(len(labels)), labels] = True
        knots, values = fit_increasing(scores.ravel(), hits.ravel())
        self.map_ = SharedLine(knots, smooth(values, len(labels), views.n_classes, self.penalty), self.slope)
