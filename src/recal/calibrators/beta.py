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


class BetaCalibration(Calibrator):
    """Give each class the map 1 / (1 + 1 / (e^c p^a / (1 - p)^b)), with a, b >= 0, and divide by the sum.

    The map is exact for scores that are Beta-distributed within a class and outside it. It includes the identity
    (a = b = 1, c = 0) and, with a = b, Platt scaling of the log-odds; otherwise it bends differently near 0 and near 1.
    As published, a and b come from a logistic regression on log p and -log(1 - p). A negative coefficient is set to
    zero and the others are fitted again, so that the map never falls. With more than two classes, a last step moves
    all curves together to the least NLL of the normalised probabilities; a light penalty keeps them near.

    Parameters
    ----------
    penalty : float
        The strength s of smoothed targets: (N+ + s) / (N+ + 2s) and s / (N- + 2s) instead of 1 and 0. They keep the
        map moderate if a class has few samples, and finite if it has none. 1 (or True) is Platt's choice, 0 (or False)
        means hard targets; 0.1 is better than both on most real data sets.
    joint : bool
        Whether the curves move together at the end. False is one class against the rest, as published.
    answers : {"free", "kept"}
        "kept": predictions never change. Where another class becomes the most probable one, a guard puts the model's
        own prediction back on top at the least cost.

    Attributes
    ----------
    coefficients_ : ndarray of shape (3, n_classes)
        a, b and c of each class.
    limit_ : float
        Log p and -log(1 - p) are clipped at this size: 36, or twice the median log-odds if that is larger.

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

    def _fit_near(self, views: Views, labels: Labels, beta: float, near: Self | None) -> None:
        start = None if near is None else near.coefficients_
        warn_if_few(self, len(labels), views.n_classes)
        scores = class_scores(views.logits)
        limit = largest_score(scores)
        features = beta_features(scores, limit)
        high, low = targets(labels, views.n_classes, float(self.penalty))
        if views.n_classes == 2:  # the curve of the second class mirrors that of the first
            start = start if start is None else start[:, :1]
            a, b, c = _increasing([feature[:, :1] for feature in features], labels, high[:1], low[:1], start)[:, 0]
            self.map_ = BetaCurves(np.array([[a, b], [b, a], [c, -c]]), limit)
            return
        coefficients = _increasing(features, labels, high, low, start)
        if self.joint:
            coefficients = fit_jointly(features, labels, coefficients)
        self.map_ = BetaCurves(coefficients, limit)


def _increasing(
    features: Sequence[NDArray[np.float64]],
    labels: Labels,
    high: NDArray[np.float64],
    low: NDArray[np.float64],
    start: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """Return the coefficients of logistic regressions whose first two are not negative.

    `start` holds the coefficients of a fit to nearly the same samples; those that are zero there stay at zero.
    """
    free, tol = np.ones((3, len(high)), dtype=bool), TOL
    if start is not None:
        free[:2], tol = start[:2] > 0.0, NEAR_TOL
    coef = fit_logistic(features, labels, high, low, free, start, tol)
    # Setting one coefficient to zero may turn the other negative, so two rounds are enough.
    for _ in range(2):
        negative = (coef < 0.0) & free
        negative[-1] = False
        if not negative.any():
            break
        # If both are negative, the more negative one goes first.
        both = negative[:2].all(axis=0)
        negative[0] &= ~both | (coef[0] <= coef[1])
        negative[1] &= ~both | (coef[1] < coef[0])
        free &= ~negative
        coef = fit_logistic(features, labels, high, low, free, np.where(free, coef, 0.0), tol)
    coef[:2] = np.maximum(coef[:2], 0.0)
    return coef
