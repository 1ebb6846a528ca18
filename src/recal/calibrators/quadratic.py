"""Quadratic scaling: a bend in the log-odds beside their scale and shift, for two classes or one against the rest."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.affine import AffineScaling, straight
from recal.calibrators.machinery.one_vs_rest import fit_logistic
from recal.calibrators.machinery.parameters import check_flag
from recal.checks import Labels
from recal.plan import Answers

Array = NDArray[np.float64]


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
        if not check_flag("monotone", self.monotone):
            return found, bounds
        falls = found[0] + 2.0 * found[1] * np.median(scores, axis=0) <= 0.0
        if falls.any():
            found[:, falls] = np.insert(straight(scores, labels), 1, 0.0, axis=0)[:, falls]
        bent = found[1] != 0.0
        turn = np.where(bent, -found[0] / np.where(bent, 2.0 * found[1], 1.0), 0.0)
        bounds[0] = np.where(found[1] > 0.0, np.maximum(bounds[0], turn), bounds[0])
        bounds[1] = np.where(found[1] < 0.0, np.minimum(bounds[1], turn), bounds[1])
        return found, bounds
