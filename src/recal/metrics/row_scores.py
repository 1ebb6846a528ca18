"""Scores of rows: each row's confidence, whether it is right, and two proper scores; and the
metrics that are their means, or scores of the ranking by confidence.

One pass checks the probabilities and computes all of them. Metrics, intervals and decisions read
the arrays of `RowScores` and never the probabilities, except for the class-wise error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    is_graded,
)
from recal.clusters import ByRow
from recal.engine import SMALL, over_rows
from recal.engine import rows as kernels

Classes = Sequence[Any] | NDArray[Any] | None


@dataclass(frozen=True)
class RowScores(ByRow):
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
        brier = np.square(values).sum(axis=1) - 2.0 * own + 1.0
        valid = (np.abs(values.sum(axis=1) - 1.0) <= SUM_TOLERANCE) & (confidence <= 1.0)
        valid &= values.min(axis=1, initial=0.0) >= 0.0
    else:
        # One block, because the system takes back several large ones, and clears them again.
        confidence, own, brier = np.empty((3, n))
        correct, valid = np.empty((2, n), np.bool_)
        out = confidence, correct, own, brier, valid
        over_rows(kernels.score_rows, np.ascontiguousarray(probs), labels, SUM_TOLERANCE, *out)
    if not (n and valid.all()):
        check_probs(probs)  # says what is wrong
    if confidences is not None:
        confidence = check_confidences(confidences, n)
    return RowScores(confidence, correct, brier, _negative_log(own), n_classes)


def read_pair(probs: ArrayLike, y: ArrayLike, classes: Classes) -> tuple[Floats, Labels]:
    """Check shapes and labels; the pass over the rows checks the probabilities."""
    array = check_form(probs, "probs")
    return array, check_labels(y, len(array), array.shape[1], classes)


def _negative_log(values: Vector) -> Vector:
    """Replace values by their negative logarithms; new memory would cost more."""
    with np.errstate(divide="ignore", invalid="ignore"):  # a label with the probability 0
        np.log(values, out=values)
    return np.negative(values, out=values)


def brier(probs: ArrayLike, y: ArrayLike, *, classes: Classes = None) -> float:
    """Mean squared distance between the probabilities and the one-hot label, divided by the number
    of classes.

    Tables call it "Brier / K". Most libraries do not divide if there are more than two classes.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities. A 1-D array is the confidence of each answer; the two outcomes are then right
        and wrong.
    y : array-like of shape (n_samples,)
        Integers are column indices; other labels need `classes`. With a 1-D `probs`: which answers
        are right.
    classes : sequence of length n_classes, optional

    Examples
    --------
    >>> from recal.metrics import brier
    >>> round(brier([[0.9, 0.1]], [0]), 4)
    0.01
    """
    rows = score(probs, y, classes)
    return float(rows.brier.mean()) / rows.n_classes


def nll(probs: ArrayLike, y: ArrayLike, *, classes: Classes = None) -> float:
    """Mean negative log-likelihood of the label, in nats; infinite if a label has the probability
    0.

    Examples
    --------
    >>> from recal.metrics import nll
    >>> round(nll([[0.5, 0.5]], [0]), 4)
    0.6931
    """
    return float(score(probs, y, classes).nll.mean())


def error_rate(probs: ArrayLike, y: ArrayLike, *, classes: Classes = None) -> float:
    """Share of rows whose most probable class is not the label; among ties, the first class counts.

    Examples
    --------
    >>> from recal.metrics import error_rate
    >>> error_rate([[0.9, 0.1], [0.8, 0.2]], [0, 1])
    0.5
    """
    return 1.0 - float(score(probs, y, classes).correct.mean())


class Runs(NamedTuple):
    """Runs of rows with equal confidence, least confident first."""

    sizes: NDArray[np.intp]
    correct: Vector
    confidence: Vector


def runs(rows: RowScores) -> Runs:
    """Gather rows of equal confidence, so that metrics do not depend on the order of rows."""
    order = np.argsort(rows.confidence)
    confidence, correct = rows.confidence[order], rows.correct[order].astype(np.float64)
    starts = first_of_each(confidence)
    sizes = np.diff(starts, append=len(order))
    return Runs(sizes, np.add.reduceat(correct, starts), confidence[starts])


def first_of_each(numbers: NDArray[Any]) -> NDArray[np.intp]:
    """The index at which each run of equal numbers begins."""
    return np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])


def ks_error(probs: ArrayLike, y: ArrayLike, *, classes: Classes = None) -> float:
    """Kolmogorov-Smirnov calibration error (Gupta et al., 2021): no bins.

    Rows are sorted by confidence. The error is the largest distance between the cumulative sums of
    confidence and of right answers, divided by the number of rows.

    Examples
    --------
    >>> from recal.metrics import ks_error
    >>> round(ks_error([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 3)
    0.4
    """
    return ks_of(runs(score(probs, y, classes)))


def ks_of(gathered: Runs) -> float:
    gaps = np.cumsum(gathered.sizes * gathered.confidence - gathered.correct)
    return float(np.abs(gaps).max() / gathered.sizes.sum())


def aurc(probs: ArrayLike, y: ArrayLike, *, classes: Classes = None) -> float:
    """Area under the risk-coverage curve: the error rate among the i most confident rows, averaged
    over i = 1..n.

    Low if wrong predictions have low confidence; 0 if every row is right and 1 if every row is
    wrong. Rows of equal confidence count with the expectation over their order.

    Examples
    --------
    >>> from recal.metrics import aurc
    >>> aurc([[0.9, 0.1], [0.8, 0.2]], [0, 1])  # risks 0 and 1/2
    0.25
    """
    return aurc_of(runs(score(probs, y, classes)))


def aurc_of(gathered: Runs) -> float:
    """The mean of the risk at each row's coverage; the rows of a run share its errors equally."""
    sizes = gathered.sizes[::-1]
    risks = 1.0 - gathered.correct[::-1] / sizes
    if len(sizes) < sizes.sum():
        risks = np.repeat(risks, sizes)
    np.cumsum(risks, out=risks)
    risks /= np.arange(1, len(risks) + 1)
    return float(risks.mean())


def auroc(probs: ArrayLike, y: ArrayLike, *, classes: Classes = None) -> float:
    """How well confidence separates right from wrong predictions: the chance that a right one has
    more confidence.

    Equal confidences count one half. NaN if every row is right or every row is wrong, because there
    is no pair.

    Examples
    --------
    >>> from recal.metrics import auroc
    >>> auroc([[0.9, 0.1], [0.8, 0.2]], [0, 1])
    1.0
    """
    return auroc_of(runs(score(probs, y, classes)))


def auroc_of(gathered: Runs) -> float:
    wrong = gathered.sizes - gathered.correct
    pairs = gathered.correct.sum() * wrong.sum()
    if pairs == 0:
        return float("nan")
    wrong_below = np.cumsum(wrong) - wrong / 2
    return float(gathered.correct @ wrong_below / pairs)
