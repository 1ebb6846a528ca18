"""Affine and quadratic scaling of log-odds, for two classes or one class against the rest."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_map, kept_by_answers
from recal.calibrators.sample_checks import warn_if_few
from recal.calibrators.solvers.logistic import fit_logistic, largest_score
from recal.checks import Labels
from recal.maps.arrays import class_scores
from recal.maps.curves import LogisticCurves
from recal.maps.plan import Answers
from recal.views import Views

Array = NDArray[np.float64]


class AffineScaling(Calibrator):
    """Scale and shift the log-odds, sigmoid(a z + c) with a >= 0, to the least negative log-likelihood.

    For two classes this is temperature scaling with a shift towards one of them: two numbers, fitted to the labels as
    they are (`PlattScaling` fits the same curve to smoothed labels). With more classes each has a curve of its log-odds
    against the rest, and rows are divided by their sums. A trace of ridge keeps the curve finite where a class is
    missing or told apart without an error.

    Parameters
    ----------
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    coefficients_ : ndarray of shape (2, n_classes)
        a and c of each class.
    bounds_ : ndarray of shape (2, n_classes)
        The least and the largest log-odds that count: 36 apart from 0, or twice the median where that is more.

    Examples
    --------
    >>> from recal.calibrators import AffineScaling
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.5, 0.0]]
    >>> AffineScaling().fit(logits, [0, 1, 0, 1, 1]).predict_proba([[2.0, 0.0]]).round(2)
    array([[0.59, 0.41]])
    """

    short_name: ClassVar[str] = "affine"
    keeps_accuracy: ClassVar[bool] = kept_by_answers("free")

    map_: LogisticCurves
    coefficients_ = from_map("coefficients")
    bounds_ = from_map("bounds")

    def __init__(self, *, answers: Answers = "free") -> None:
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        warn_if_few(self, len(labels), views.n_classes)
        scores = class_scores(views.logits)
        limit = largest_score(scores)
        scores = np.clip(scores, -limit, limit)
        two = views.n_classes == 2
        coefficients, bounds = self._fit_curves(scores[:, :1] if two else scores, labels, limit)
        if two:  # the second class's curve is the first's, mirrored: what is odd in z keeps its sign
            signs = np.where(np.arange(len(coefficients)) == 0, 1.0, -1.0)
            coefficients = np.stack([coefficients[:, 0], signs * coefficients[:, 0]], axis=1)
            bounds = np.stack([bounds[:, 0], -bounds[::-1, 0]], axis=1)
        self.map_ = LogisticCurves(coefficients, bounds)

    def _fit_curves(self, scores: Array, labels: Labels, limit: float) -> tuple[Array, Array]:
        """Return the curves' coefficients and between which log-odds they hold."""
        return straight(scores, labels), np.array([[-limit], [limit]]) * np.ones(scores.shape[1])


def straight(scores: Array, labels: Labels) -> Array:
    """Return slopes that are not negative, and shifts, (2, n_classes), by logistic regressions."""
    ones, zeros = np.ones(scores.shape[1]), np.zeros(scores.shape[1])
    found = fit_logistic([scores], labels, ones, zeros)
    falling = found[0] < 0.0
    if falling.any():
        free = np.ones(found.shape, dtype=bool)
        free[0] = ~falling
        found = fit_logistic([scores], labels, ones, zeros, free)
    return found


class QuadraticScaling(AffineScaling):
    """Scale, bend and shift the log-odds, sigmoid(a z + b z^2 + c), to the least negative log-likelihood.

    One number more than `AffineScaling`: log-odds of one sign may be stretched while those of the other are drawn
    together, as tree ensembles on imbalanced tables need it. A parabola turns somewhere; beyond that point the curve
    stays level, so that a higher score never means a lower probability. Where it falls at the median score, the class
    gets the straight line of `AffineScaling`. With more than two classes each has a curve against the rest, and rows
    are divided by their sums.

    Parameters
    ----------
    monotone : bool
        Whether the curve is held level beyond its turning point; without, it is the plain logistic regression on z and
        z^2.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    coefficients_ : ndarray of shape (3, n_classes)
        a, b and c of each class.
    bounds_ : ndarray of shape (2, n_classes)
        The least and the largest log-odds that count for each class: up to 36 (or twice the median), or up to the
        turning point.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.calibrators import QuadraticScaling
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=2000)
    >>> y = (rng.random(2000) < 1 / (1 + np.exp(-(z + 0.2 * z**2)))).astype(int)
    >>> model = QuadraticScaling().fit(np.stack([0 * z, z], axis=1), y)
    >>> model.coefficients_[:2, 1].round(1)
    array([1.1, 0.2])
    """

    short_name: ClassVar[str] = "quadratic"

    def __init__(self, *, answers: Answers = "free", monotone: bool = True) -> None:
        self.monotone = monotone
        self.answers = answers

    def _fit_curves(self, scores: Array, labels: Labels, limit: float) -> tuple[Array, Array]:
        n_curves = scores.shape[1]
        bounds = np.array([[-limit], [limit]]) * np.ones(n_curves)
        found = fit_logistic([scores, np.square(scores)], labels, np.ones(n_curves), np.zeros(n_curves))
        if not self.monotone:
            return found, bounds
        falls = found[0] + 2.0 * found[1] * np.median(scores, axis=0) <= 0.0
        if falls.any():
            found[:, falls] = np.insert(straight(scores, labels), 1, 0.0, axis=0)[:, falls]
        bent = found[1] != 0.0
        turn = np.where(bent, -found[0] / np.where(bent, 2.0 * found[1], 1.0), 0.0)
        bounds[0] = np.where(found[1] > 0.0, np.maximum(bounds[0], turn), bounds[0])
        bounds[1] = np.where(found[1] < 0.0, np.minimum(bounds[1], turn), bounds[1])
        return found, bounds
