"""Platt scaling: a logistic curve for each class, one against the rest (Platt, 1999)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, kept_by_answers
from recal.calibrators.sample_checks import warn_if_few
from recal.calibrators.solvers.logistic import fit_logistic, largest_score, targets
from recal.checks import Labels
from recal.maps.arrays import class_scores
from recal.maps.curves import LogisticCurves
from recal.maps.plan import Answers
from recal.schema import NotNegative
from recal.views import Views


class PlattScaling(Calibrator):
    """Give each class a logistic curve of its log-odds, sigmoid(a * log(p / (1 - p)) + c), and divide by the sum.

    The score of a class is the log-odds of its softmax probability, not its bare logit: with two classes that is the
    difference of the logits, and with any number a constant added to all logits of a sample changes nothing.

    Parameters
    ----------
    penalty : float
        Fit to (N+ + s) / (N+ + 2s) and s / (N- + 2s) in place of 1 and 0. They keep the curve moderate where a class
        has few samples, and finite where it has none. 1, or True, is Platt's choice, 0, or False, hard targets; a
        tenth is better than both on most real sets.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    slopes_, intercepts_ : ndarray of shape (n_classes,)
        a and c.
    limit_ : float
        Log-odds count up to this: 36, or twice their median where that is more.

    Examples
    --------
    >>> from recal.calibrators import PlattScaling
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> PlattScaling().fit(logits, [0, 0, 1, 1]).predict_proba([[2.0, 0.0]]).round(2)
    array([[0.78, 0.22]])
    """

    short_name: ClassVar[str] = "platt"
    keeps_accuracy: ClassVar[bool] = kept_by_answers("free")

    map_: LogisticCurves

    def __init__(self, *, answers: Answers = "free", penalty: NotNegative | bool = 0.1) -> None:
        self.penalty = penalty
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        warn_if_few(self, len(labels), views.n_classes)
        scores = class_scores(views.logits)
        limit = largest_score(scores)
        scores = np.clip(scores, -limit, limit)
        high, low = targets(labels, views.n_classes, float(self.penalty))
        if views.n_classes == 2:  # the second class's curve is the first's, mirrored
            slope, intercept = fit_logistic([scores[:, :1]], labels, high[:1], low[:1])[:, 0]
            curves = np.array([[slope, slope], [intercept, -intercept]])
        else:
            curves = fit_logistic([scores], labels, high, low)
        self.map_ = LogisticCurves(curves, np.array([[-limit], [limit]]) * np.ones(views.n_classes))

    @property
    def slopes_(self) -> NDArray[np.float64]:
        return self.map_.coefficients[0]

    @property
    def intercepts_(self) -> NDArray[np.float64]:
        return self.map_.coefficients[1]

    @property
    def limit_(self) -> float:
        return float(self.map_.bounds[1, 0])
