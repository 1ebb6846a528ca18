"""Scores of rows: each row's confidence, whether it is right, and two proper scores.

One pass checks the probabilities and computes all of them. Metrics, intervals and decisions read
the arrays of `RowScores` and never the probabilities, except for the class-wise error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import (
    SUM_TOLERANCE,
    Floats,
    Labels,
    Vector,
    check_confidences,
    check_form,
    check_graded,
    check_labels,
    check_probs,
    check_weights,
    is_graded,
)
from recal.engine import rows as kernels
from recal.engine.compiled import SMALL, over_rows

Classes = Sequence[Any] | NDArray[Any] | None


class RowOptions(TypedDict, total=False):
    """Options of every metric; see `recal.metrics.ece`."""

    classes: Classes
    sample_weight: ArrayLike | None


@dataclass(frozen=True)
class RowScores:
    """Per-row numbers, each of shape (n_samples,), in the order of the rows.

    `graded` is True if only the confidence of each answer and whether it is right are known.
    `brier` and `nll` are then those of the two outcomes "right" and "wrong", and `n_classes` is 2.
    """

    confidence: Vector
    correct: NDArray[np.bool_]
    brier: Vector
    nll: Vector
    n_classes: int
    graded: bool = False

    @property
    def gap(self) -> Vector:
        """Confidence minus outcome; zero on average if the confidence is calibrated."""
        return self.confidence - self.correct

    def __len__(self) -> int:
        return len(self.confidence)

    def __getitem__(self, rows: NDArray[Any]) -> RowScores:
        return replace(
            self,
            confidence=self.confidence[rows],
            correct=self.correct[rows],
            brier=self.brier[rows],
            nll=self.nll[rows],
        )


def score(
    probs: ArrayLike, y: ArrayLike, classes: Classes = None, confidences: ArrayLike | None = None
) -> RowScores:
    """Check and score every row.

    This is the one place that accepts both kinds of input: probabilities of shape (n_samples,
    n_classes) with labels, and a 1-D array with the confidence of each answer; `y` then says which
    answers are right.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes) or (n_samples,)
    y : array-like of shape (n_samples,)
        Labels; booleans, or 0 and 1, if `probs` is 1-D.
    classes : sequence of length n_classes, optional
    confidences : array-like of shape (n_samples,), optional
        Confidence of each prediction; by default the largest probability of the row.

    Examples
    --------
    >>> from recal.metrics.row_scores import score
    >>> score([[0.9, 0.1], [0.2, 0.8]], [0, 0]).correct
    array([ True, False])
    >>> score([0.9, 0.8], [True, False]).correct
    array([ True, False])
    """
    if is_graded(probs):
        return score_graded(*check_graded(probs, y, classes, confidences))
    return score_labelled(*read_pair(probs, y, classes), confidences)


def score_graded(confidence: Vector, correct: NDArray[np.bool_]) -> RowScores:
    """Score answers of which only the confidence is known, and whether they are right."""
    losses = _negative_log(np.where(correct, confidence, 1.0 - confidence))
    return RowScores(confidence, correct, 2.0 * (confidence - correct) ** 2, losses, 2, graded=True)


def score_labelled(
    probs: Floats, labels: Labels, confidences: ArrayLike | None = None
) -> RowScores:
    """Score probabilities of every class, and refuse them if they are none."""
    n, n_classes = probs.shape
    if probs.size <= SMALL:
        values, rows = np.asarray(probs, np.float64), np.arange(n)
        confidence, own = values.max(axis=1, initial=0.0), values[rows, labels]
        correct = values.argmax(axis=1) == labels
        brier = ((values - (np.arange(n_classes) == labels[:, None])) ** 2).sum(axis=1)
        valid = (np.abs(values.sum(axis=1) - 1.0) <= SUM_TOLERANCE) & (confidence <= 1.0)
        valid &= values.min(axis=1, initial=0.0) >= 0.0
    else:
        rows = np.ascontiguousarray(probs)
        # One block, because the system takes back several large ones, and clears them again.
        confidence, own, brier = np.empty((3, n))
        correct, valid = np.empty((2, n), np.bool_)
        out = confidence, correct, own, brier, valid
        over_rows(kernels.score_rows, rows, labels, SUM_TOLERANCE, *out)
    if not (n and valid.all()):
        check_probs(probs)  # says what is wrong
    if confidences is not None:
        confidence = check_confidences(confidences, n)
    return RowScores(confidence, correct, brier, _negative_log(own), n_classes)


def weighted_rows(
    probs: ArrayLike, y: ArrayLike, classes: Classes = None, sample_weight: ArrayLike | None = None
) -> tuple[RowScores, Vector | None]:
    """Return the rows with a positive weight, and their weights; None means equal weights."""
    rows = score(probs, y, classes)
    if sample_weight is None:
        return rows, None
    return positive_rows(rows, check_weights(sample_weight, len(rows)))


def positive_rows(rows: RowScores, weights: Vector) -> tuple[RowScores, Vector]:
    """Leave out rows of weight 0: 0 times an infinite loss would be NaN."""
    positive = weights > 0.0
    return rows[positive], weights[positive]


def read_pair(probs: ArrayLike, y: ArrayLike, classes: Classes) -> tuple[Floats, Labels]:
    """Check shapes and labels; the pass over the rows checks the probabilities."""
    array = check_form(probs, "probs")
    return array, check_labels(y, len(array), array.shape[1], classes)


def _negative_log(values: Vector) -> Vector:
    """Replace values by their negative logarithms; new memory would cost more than the logarithm."""
    with np.errstate(divide="ignore", invalid="ignore"):  # a label with the probability 0
        np.log(values, out=values)
    return np.negative(values, out=values)
