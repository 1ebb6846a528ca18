"""What a loss is made of: a part that calibration can remove, and one that only a better model can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from recal.checks import check_labels, check_probs
from recal.errors import InputError
from recal.metrics.proper import brier, nll
from recal.metrics.rows import Classes
from recal.transforms.preprocessing import PROBABILITY_FLOOR


@dataclass(frozen=True)
class Decomposition:
    """A loss and its two parts.

    Attributes
    ----------
    loss : float
        The mean loss of the probabilities as they are.
    refinement : float
        What remains after recalibration on samples left out: lower needs a better model, or views.
    calibration : float
        ``loss - refinement``: what post-hoc calibration could still gain. Near 0, or below it, where there is nothing
        to gain; a value below 0 is what fitting the recalibration on finitely many samples costs.
    """

    loss: float
    refinement: float
    calibration: float


def decompose(
    probs: ArrayLike,
    y: ArrayLike,
    *,
    loss: Literal["nll", "brier"] = "nll",
    calibrator: Any = None,
    n_folds: int = 5,
    classes: Classes = None,
    random_state: int = 0,
) -> Decomposition:
    """Split a proper loss into its calibration and refinement parts, by recalibration on samples left out.

    Each fold is recalibrated by a method that was fitted on the other folds. What the loss falls by is the calibration
    part. It is a lower bound of what calibration could gain: a better method, or more samples, may find more.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
    y : array-like of shape (n_samples,)
        Integers are column indices; anything else needs `classes`.
    loss : {"nll", "brier"}
    calibrator : Calibrator, optional
        The method of recalibration; a copy is fitted for each fold. By default structured matrix scaling, and
        structured vector scaling beyond 100 classes.
    n_folds : int
    classes : sequence of length n_classes, optional
    random_state : int

    Examples
    --------
    >>> import numpy as np
    >>> from recal.metrics import decompose
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 3))
    >>> y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> sure = np.exp(3 * logits) / np.exp(3 * logits).sum(axis=1, keepdims=True)  # three times too sure
    >>> parts = decompose(sure, y)
    >>> round(parts.loss, 2), round(parts.refinement, 2), round(parts.calibration, 2)
    (1.17, 0.86, 0.32)
    """
    from sklearn.base import clone

    from recal.calibrators import StructuredMatrixScaling, StructuredVectorScaling
    from recal.calibrators.machinery.folds import stratified_folds

    scores = {"nll": nll, "brier": brier}
    if loss not in scores:
        raise InputError("must be 'nll' or 'brier'", argument="loss", came=f"got {loss!r}")
    given = check_probs(probs).astype(np.float64)
    labels = check_labels(y, len(given), given.shape[1], classes)
    if not 2 <= n_folds <= len(labels):
        raise InputError(
            f"must lie from 2 to the number of samples, {len(labels)}", argument="n_folds", came=f"got {n_folds}"
        )
    if calibrator is None:
        calibrator = StructuredMatrixScaling() if given.shape[1] <= 100 else StructuredVectorScaling()
    logs = np.log(np.maximum(given, PROBABILITY_FLOOR))
    fold = stratified_folds(labels, n_folds, np.random.default_rng(random_state))
    again = np.empty_like(given)
    for held in range(n_folds):
        fitted = clone(calibrator).fit(logs[fold != held], labels[fold != held])
        again[fold == held] = fitted.predict_proba(logs[fold == held])
    whole, refined = scores[loss](given, labels), scores[loss](again, labels)
    return Decomposition(whole, refined, whole - refined)
