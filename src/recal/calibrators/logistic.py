"""Logistic curves of each class's log-odds: Platt scaling and beta calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_fit, from_map
from recal.calibrators.sample_checks import warn_if_few
from recal.calibrators.samples import Samples
from recal.checks import Labels
from recal.maps.arrays import class_scores
from recal.maps.blend import Answers
from recal.maps.curves import BetaCurves, LogisticCurves, beta_features
from recal.schema import NotNegative
from recal.solvers.logistic import TOL, fit_jointly, fit_logistic, largest_score, targets
from recal.solvers.softmax import NEAR_TOL

Array = NDArray[np.float64]


class PlattScaling(Calibrator):
    """Give each class a logistic curve of its log-odds, sigmoid(a * log(p / (1 - p)) + c), and
    divide by the sum.

    The score of a class is the log-odds of its softmax probability, not its logit. With two classes
    that is the difference of the logits. A constant added to all logits of a sample changes
    nothing.

    Parameters
    ----------
    penalty : float
        The strength s of smoothed targets: (N+ + s) / (N+ + 2s) and s / (N- + 2s) instead of 1 and
        0. They keep the curve moderate if a class has few samples, and finite if it has none. 1 (or
        True) is Platt's choice, 0 (or False) means hard targets; 0.1 is better than both on most
        real data sets.
    answers : {"free", "kept"}
        "kept": predictions never change: a guard keeps the model's prediction the likeliest class
        at the lowest cost.

    Attributes
    ----------
    slopes_, intercepts_ : ndarray of shape (n_classes,)
        a and c.
    limit_ : float
        Log-odds are clipped at this size: 36, or twice their median if that is more.

    Examples
    --------
    >>> from recal.calibrators import PlattScaling
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> PlattScaling().fit(logits, [0, 0, 1, 1]).predict_proba([[2.0, 0.0]]).round(2)
    array([[0.78, 0.22]])
    """

    short_name: ClassVar[str] = "platt"

    answers: Answers = "free"
    penalty: NotNegative | bool = 0.1

    map_: LogisticCurves = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        warn_if_few(self, samples)
        labels, n_classes = samples.labels, samples.n_classes
        scores = class_scores(samples.logits)
        limit = largest_score(scores)
        scores = np.clip(scores, -limit, limit)
        high, low = targets(labels, n_classes, float(self.penalty))
        if n_classes == 2:  # the curve of the second class mirrors the first
            slope, shift = fit_logistic([scores[:, :1]], labels, high[:1], low[:1])[:, 0]
            coefficients = np.array([[slope, slope], [shift, -shift]])
        else:
            coefficients = fit_logistic([scores], labels, high, low)
        return {"map_": LogisticCurves(coefficients, limit)}

    @property
    def slopes_(self) -> Array:
        return self.map_.coefficients[0]

    @property
    def intercepts_(self) -> Array:
        return self.map_.coefficients[1]

    @property
    def limit_(self) -> float:
        return self.map_.limit


class BetaCalibration(Calibrator):
    """Give each class the map 1 / (1 + 1 / (e^c p^a / (1 - p)^b)), with a, b >= 0, and divide by
    the sum.

    The map is exact for scores that are Beta-distributed within a class and outside it. It includes
    the identity (a = b = 1, c = 0) and, with a = b, Platt scaling of the log-odds; otherwise it
    bends differently near 0 and near 1. As published, a and b come from a logistic regression on
    log p and -log(1 - p). A negative coefficient is set to zero and the others are fitted again, so
    that the map never falls. With more than two classes, a last step moves all curves together to
    the lowest NLL of the normalised probabilities; a weak penalty keeps them close.

    Parameters
    ----------
    penalty : float
        The strength s of smoothed targets: (N+ + s) / (N+ + 2s) and s / (N- + 2s) instead of 1 and
        0. They keep the map moderate if a class has few samples, and finite if it has none. 1 (or
        True) is Platt's choice, 0 (or False) means hard targets; 0.1 is better than both on most
        real data sets.
    joint : bool
        Whether the curves move together at the end. False is one class against the rest, as
        published.
    answers : {"free", "kept"}
        "kept": predictions never change: a guard keeps the model's prediction the likeliest class
        at the lowest cost.

    Attributes
    ----------
    coefficients_ : ndarray of shape (3, n_classes)
        a, b and c of each class.
    limit_ : float
        Log p and -log(1 - p) are clipped at this size: 36, or twice the median log-odds if that is
        larger.

    Examples
    --------
    >>> from recal.calibrators import BetaCalibration
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> BetaCalibration().fit(logits, [0, 0, 1, 1]).predict_proba([[2.0, 0.0]]).round(2)
    array([[0.81, 0.19]])
    """

    short_name: ClassVar[str] = "beta"

    answers: Answers = "free"
    penalty: NotNegative | bool = 0.1
    joint: bool = True

    map_: BetaCurves = from_fit()
    coefficients_ = from_map("coefficients")
    limit_ = from_map("limit")

    def _fit(self, samples: Samples) -> dict[str, Any]:
        warn_if_few(self, samples)
        start = getattr(samples.near, "coefficients", None)
        labels, n_classes = samples.labels, samples.n_classes
        scores = class_scores(samples.logits)
        limit = largest_score(scores)
        features = beta_features(scores, limit)
        high, low = targets(labels, n_classes, float(self.penalty))
        if n_classes == 2:  # the curve of the second class mirrors the first
            start = start if start is None else start[:, :1]
            a, b, c = _increasing(
                [feature[:, :1] for feature in features], labels, high[:1], low[:1], start
            )[:, 0]
            return {"map_": BetaCurves(np.array([[a, b], [b, a], [c, -c]]), limit)}
        coefficients = _increasing(features, labels, high, low, start)
        if self.joint:
            coefficients = fit_jointly(features, labels, coefficients)
        return {"map_": BetaCurves(coefficients, limit)}


def _increasing(
    features: Sequence[Array], labels: Labels, high: Array, low: Array, start: Array | None
) -> Array:
    """Return the coefficients of logistic regressions whose first two are not negative.

    `start` are the coefficients of a fit to nearly the same samples; coefficients that are zero
    there stay at zero.
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
