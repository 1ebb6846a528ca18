"""Vector scaling: a scale and a shift for each class (Guo et al., 2017)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_map, kept_by_answers
from recal.calibrators.sample_checks import warn_if_few
from recal.calibrators.solvers.linear import DiagonalMap
from recal.calibrators.solvers.temperature import fit_beta
from recal.checks import Floats, Labels
from recal.maps.plan import Answers
from recal.maps.scaling import Affine, within
from recal.schema import Strength
from recal.views import Views


class VectorScaling(Calibrator):
    """Scale and shift the logits class by class, softmax(v * z + b), to the least negative log-likelihood.

    Parameters
    ----------
    penalty : float
        Strength of a trace of ridge, ``penalty * (sum of (v - beta)^2 + sum of b^2)`` with beta the one common scale of
        temperature scaling. It keeps the solution finite and unique, for instance if a class is missing from the
        labels or is separated perfectly. Elsewhere the default changes the loss by less than 1e-7.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    scales_, shifts_ : ndarray of shape (n_classes,)
        v and b.
    loss_ : float
        The penalised loss at the minimum.
    limit_ : float
        The largest logit of a usual row times 20, and at least 100. A row with larger ones, such as a constant row at
        the least float32, has its maximum subtracted, and what is then below minus the limit counts as minus the limit.

    Examples
    --------
    >>> from recal.calibrators import VectorScaling
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> VectorScaling(penalty=0.1).fit(logits, [0, 0, 1, 1]).predict_proba([[2.0, 0.0]]).round(2)
    array([[0.79, 0.21]])
    """

    short_name: ClassVar[str] = "vs"
    takes_weights: ClassVar[bool] = True
    keeps_accuracy: ClassVar[bool] = kept_by_answers("free")

    map_: Affine
    loss_: float
    scales_ = from_map("scale")
    shifts_ = from_map("shift")
    limit_ = from_map("limit")

    def __init__(self, *, answers: Answers = "free", penalty: Strength = 1e-7) -> None:
        self.penalty = penalty
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        self._fit_weighted(views, labels, None)

    def _fit_weighted(
        self,
        views: Views,
        labels: Labels,
        weights: NDArray[np.float64] | None,
        clusters: NDArray[np.intp] | None = None,
    ) -> None:
        warn_if_few(self, len(labels), views.n_classes, int((views.logits.argmax(axis=1) != labels).sum()))
        logits: Floats = np.array(views.logits, dtype=np.float64, order="C")
        limit = max(100.0, 20.0 * float(np.median(np.abs(logits).max(axis=1))))
        logits = within(logits, limit)
        start = np.zeros((2, views.n_classes))
        start[0] = fit_beta(logits, labels, weights)
        solution = DiagonalMap(logits, labels, ridge=self.penalty, centre=start, weights=weights).solve(start)
        scale, shift = solution.point
        self.map_, self.loss_ = Affine(scale, shift, limit), solution.loss
