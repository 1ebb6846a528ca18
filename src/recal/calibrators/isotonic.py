"""Isotonic regression, one class against the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recal.calibrators.base import Calibrator, from_map, kept_by_answers
from recal.calibrators.machinery.monotone import Knots, fit_increasing, pack, smooth
from recal.calibrators.machinery.parameters import warn_if_few
from recal.calibrators.machinery.probabilities import class_scores
from recal.checks import Floats, Labels
from recal.maps.curves import Lines
from recal.plan import Answers
from recal.views import Views


class IsotonicCalibration(Calibrator):
    """Map each class's log-odds through an increasing function of its own, then normalise the rows.

    For every class the increasing function that best predicts "is it this class?" is found by pooling adjacent
    violators. It bends freely, so it wants many samples of each class: a thousand and more in all for ten classes.
    Rows are divided by their sums afterwards, which may change predictions. Reference: Zadrozny and Elkan,
    *Transforming classifier scores into accurate multiclass probability estimates* (KDD 2002).

    Parameters
    ----------
    penalty : float
        How many samples, spread evenly over the classes, are added to the frequencies so that none is 0 or 1. With 0
        the curves are those of scikit-learn's IsotonicRegression of the log-odds, which for two classes are the
        difference of the logits.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    knots_, values_ : ndarray
        The curves' corners, log-odds and probabilities, those of all classes end to end.
    offsets_ : ndarray of shape (n_classes + 1,)
        Where each class's curve begins in them.

    Examples
    --------
    >>> from recal.calibrators import IsotonicCalibration
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> IsotonicCalibration().fit(logits, [0, 1, 0, 1]).predict_proba([[2.5, 0.0]]).round(3)
    array([[0.7, 0.3]])
    """

    short_name = "isotonic"
    keeps_accuracy = kept_by_answers("free")

    map_: Lines
    knots_ = from_map("knots")
    values_ = from_map("values")
    offsets_ = from_map("offsets")

    def __init__(self, *, answers: Answers = "free", penalty: float = 1.0) -> None:
        self.penalty = penalty
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        warn_if_few(self, len(labels), views.n_classes, int((views.logits.argmax(axis=1) != labels).sum()))
        self._fit_columns(views.logits, labels, 1.0)

    def _fit_columns(self, logits: Floats, labels: Labels, beta: float) -> None:
        n_samples, n_classes = logits.shape
        columns = np.ascontiguousarray(class_scores(logits, beta).T)
        curves = [fit_increasing(columns[k], labels == k) for k in range(n_classes)]
        self.map_ = lines(curves, n_samples, n_classes, self.penalty, beta)


def lines(curves: Sequence[Knots], n_samples: int, n_classes: int, penalty: float, beta: float) -> Lines:
    """Return the map of curves, one for each class, whose values are moved as `penalty` more samples would."""
    knots, values, offsets = pack(curves)
    return Lines(knots, smooth(values, n_samples, n_classes, penalty), offsets, beta)
