"""Beta calibration, one class against the rest (Kull, Silva Filho and Flach, 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_map, kept_by_answers
from recal.calibrators.sample_checks import warn_if_few
from recal.calibrators.solvers.logistic import (
    TOL,
    fit_jointly,
    fit_logistic,
    largest_score,
    targets,
)
from recal.calibrators.solvers.newton import NEAR_TOL
from recal.checks import Labels
from recal.maps.arrays import class_scores
from recal.maps.curves import BetaCurves, beta_features
from recal.maps.plan import Answers
from recal.schema import NotNegative
from recal.views import Views

# As a member of the ensemble, which calls `_fit_near`, curves are moved together with so many classes only: with fewer
# the mixture is no better for it, with more it takes too long.
_MOVED_IN_ENSEMBLE = range(21, 257)


class BetaCalibration(Calibrator):
    """Give each class the map 1 / (1 + 1 / (e^c p^a / (1 - p)^b)), with a, b >= 0, and divide by the sum.

    The map fits scores that are Beta-distributed among the samples of a class and among the rest. It holds the identity
    (a = b = 1, c = 0) and, with a = b, Platt's curve of the log-odds; else it bends differently near 0 and near 1.
    As published, a and b come from a logistic regression on log p and -log(1 - p); one that turns out negative is set
    to zero and the rest is fitted again, so that the map never falls. With more than two classes the classes' curves
    then move together to where the normalised answers have the least NLL; a light penalty keeps them near.

    Parameters
    ----------
    penalty : float
        Fit to (N+ + s) / (N+ + 2s) and s / (N- + 2s) in place of 1 and 0. They keep the map moderate where a class
        has few samples, and finite where it has none. 1, or True, is Platt's choice, 0, or False, hard targets; a
        tenth is better than both on most real sets.
    joint : bool
        Whether the curves move together at the end. False is the publication's one class against the rest.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    coefficients_ : ndarray of shape (3, n_classes)
        a, b and c of each class.
    limit_ : float
        Log p and -log(1 - p) count up to this size: 36, or twice the median log-odds where that is more.

    Examples
    --------
    >>> from recal.calibrators import BetaCalibration
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> BetaCalibration().fit(logits, [0, 0, 1, 1]).predict_proba([[2.0, 0.0]]).round(2)
    array([[0.81, 0.19]])
    """

    short_name: ClassVar[str] = "beta"
    keeps_accuracy: ClassVar[bool] = kept_by_answers("free")

    map_: BetaCurves
    coefficients_ = from_map("coefficients")
    limit_ = from_map("limit")

    def __init__(self, *, answers: Answers = "free", penalty: NotNegative | bool = 0.1, joint: bool = True) -> None:
        self.penalty = penalty
        self.joint = joint
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        self._fit_near(views, labels, 1.0, None)
        if views.n_classes > 2 and views.n_classes not in _MOVED_IN_ENSEMBLE:
            self._move_together(beta_features(class_scores(views.logits), self.limit_), labels)

    def _fit_near(self, views: Views, labels: Labels, beta: float, near: Self | None) -> None:
        start = None if near is None else near.coefficients_
        warn_if_few(self, len(labels), views.n_classes)
        scores = class_scores(views.logits)
        limit = largest_score(scores)
        features = beta_features(scores, limit)
        high, low = targets(labels, views.n_classes, float(self.penalty))
        if views.n_classes == 2:  # the second class's map is the first's, mirrored
            start = start if start is None else start[:, :1]
            a, b, c = _increasing([feature[:, :1] for feature in features], labels, high[:1], low[:1], start)[:, 0]
            self.map_ = BetaCurves(np.array([[a, b], [b, a], [c, -c]]), limit)
            return
        self.map_ = BetaCurves(_increasing(features, labels, high, low, start), limit)
        if views.n_classes in _MOVED_IN_ENSEMBLE:
            self._move_together(features, labels)

    def _move_together(self, features: Sequence[NDArray[np.float64]], labels: Labels) -> None:
        if self.joint:
            self.map_ = BetaCurves(fit_jointly(features, labels, self.coefficients_), self.limit_)


def _increasing(
    features: Sequence[NDArray[np.float64]],
    labels: Labels,
    high: NDArray[np.float64],
    low: NDArray[np.float64],
    start: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """Return the coefficients of logistic regressions of which the first two are not negative.

    Those of nearly the same samples, `start`, also tell which stay at zero.
    """
    free, tol = np.ones((3, len(high)), dtype=bool), TOL
    if start is not None:
        free[:2], tol = start[:2] > 0.0, NEAR_TOL
    coef = fit_logistic(features, labels, high, low, free, start, tol)
    # Setting one to zero may turn the other negative: twice is enough for two.
    for _ in range(2):
        negative = (coef < 0.0) & free
        negative[-1] = False
        if not negative.any():
            break
        # Where both are negative the more negative goes first.
        both = negative[:2].all(axis=0)
        negative[0] &= ~both | (coef[0] <= coef[1])
        negative[1] &= ~both | (coef[1] < coef[0])
        free &= ~negative
        coef = fit_logistic(features, labels, high, low, free, np.where(free, coef, 0.0), tol)
    coef[:2] = np.maximum(coef[:2], 0.0)
    return coef
