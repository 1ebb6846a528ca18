"""Proper scores, the error rate, and scores of the ranking by confidence."""

from __future__ import annotations

from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Vector
from recal.metrics.calibration_error import first_of_each
from recal.metrics.row_scores import RowOptions, RowScores, weighted_rows


def brier(
    probs: ArrayLike, y: ArrayLike, *, normalised: bool = True, **options: Unpack[RowOptions]
) -> float:
    """Mean squared distance between the probabilities and the one-hot label, divided by the number
    of classes.

    Tables call it "Brier / K". Most libraries do not divide if there are more than two classes; use
    ``normalised=False`` to compare with them.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities. A 1-D array is the confidence of each answer; the two outcomes are then right
        and wrong.
    y : array-like of shape (n_samples,)
        Integers are column indices; other labels need `classes`. With a 1-D `probs`: which answers
        are right.
    normalised : bool
        Divide by the number of classes, as the ReCal paper does. False gives the plain score
        between 0 and 2.
    classes : sequence of length n_classes, optional
    sample_weight : array-like of shape (n_samples,), optional
        Relative weights: multiplying all of them by a number changes nothing.

    Examples
    --------
    >>> from recal.metrics import brier
    >>> round(brier([[0.9, 0.1]], [0]), 4), round(brier([[0.9, 0.1]], [0], normalised=False), 4)
    (0.01, 0.02)
    """
    rows, weights = weighted_rows(probs, y, **options)
    mean = float(np.average(rows.brier, weights=weights))
    return mean / rows.n_classes if normalised else mean


def nll(probs: ArrayLike, y: ArrayLike, **options: Unpack[RowOptions]) -> float:
    """Mean negative log-likelihood of the label, in nats; infinite if a label has the probability
    0.

    Examples
    --------
    >>> from recal.metrics import nll
    >>> round(nll([[0.5, 0.5]], [0]), 4)
    0.6931
    """
    rows, weights = weighted_rows(probs, y, **options)
    return float(np.average(rows.nll, weights=weights))


def error_rate(probs: ArrayLike, y: ArrayLike, **options: Unpack[RowOptions]) -> float:
    """Share of rows whose most probable class is not the label; among ties, the first class counts.

    Examples
    --------
    >>> from recal.metrics import error_rate
    >>> error_rate([[0.9, 0.1], [0.8, 0.2]], [0, 1])
    0.5
    """
    rows, weights = weighted_rows(probs, y, **options)
    return 1.0 - float(np.average(rows.correct, weights=weights))


class Runs(NamedTuple):
    """Runs of rows with equal confidence, least confident first.

    `sizes` and `correct` are sums of weights, or of rows if these are not weighted; `rows` is the
    number of rows in each run.
    """

    sizes: Vector
    correct: Vector
    confidence: Vector
    rows: NDArray[np.intp]


def runs(rows: RowScores, weights: Vector | None = None) -> Runs:
    """Gather rows of equal confidence, so that metrics do not depend on the order of rows."""
    order = np.argsort(rows.confidence)
    confidence, correct = rows.confidence[order], rows.correct[order].astype(np.float64)
    starts = first_of_each(confidence)
    counts = np.diff(starts, append=len(order))
    if weights is None:
        right = np.add.reduceat(correct, starts)
        return Runs(counts.astype(np.float64), right, confidence[starts], counts)
    ordered = weights[order]
    right = np.add.reduceat(ordered * correct, starts)
    return Runs(np.add.reduceat(ordered, starts), right, confidence[starts], counts)


def ks_error(probs: ArrayLike, y: ArrayLike, **options: Unpack[RowOptions]) -> float:
    """Kolmogorov-Smirnov calibration error (Gupta et al., 2021): no bins.

    Rows are sorted by confidence. The error is the largest distance between the cumulative sums of
    confidence and of right answers, divided by the number of rows.

    Examples
    --------
    >>> from recal.metrics import ks_error
    >>> round(ks_error([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 3)
    0.4
    """
    return ks_of(runs(*weighted_rows(probs, y, **options)))


def ks_of(gathered: Runs) -> float:
    gaps = np.cumsum(gathered.sizes * gathered.confidence - gathered.correct)
    return float(np.abs(gaps).max() / gathered.sizes.sum())


def aurc(probs: ArrayLike, y: ArrayLike, **options: Unpack[RowOptions]) -> float:
    """Area under the risk-coverage curve: the error rate among the i most confident rows, averaged
    over i = 1..n.

    Low if wrong predictions have low confidence; 0 if every row is right and 1 if every row is
    wrong. Rows of equal confidence count with the expectation over their order. With weights, the
    error rates and the average are weighted.

    Examples
    --------
    >>> from recal.metrics import aurc
    >>> aurc([[0.9, 0.1], [0.8, 0.2]], [0, 1])  # risks 0 and 1/2
    0.25
    """
    return aurc_of(runs(*weighted_rows(probs, y, **options)))


def aurc_of(gathered: Runs) -> float:
    """The weighted mean of the risk at each row's coverage; the rows of a run share its weight and
    its errors equally.
    """
    rows, weights = gathered.rows[::-1], gathered.sizes[::-1]
    wrong = weights - gathered.correct[::-1]
    if len(rows) < rows.sum():
        wrong, weights = np.repeat(wrong / rows, rows), np.repeat(weights / rows, rows)
    return float(weights @ (np.cumsum(wrong) / np.cumsum(weights)) / weights.sum())


def auroc(probs: ArrayLike, y: ArrayLike, **options: Unpack[RowOptions]) -> float:
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
    return auroc_of(runs(*weighted_rows(probs, y, **options)))


def auroc_of(gathered: Runs) -> float:
    wrong = gathered.sizes - gathered.correct
    pairs = gathered.correct.sum() * wrong.sum()
    if pairs == 0:
        return float("nan")
    wrong_below = np.cumsum(wrong) - wrong / 2
    return float(gathered.correct @ wrong_below / pairs)
