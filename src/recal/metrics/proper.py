"""Proper scores, which reward calibrated and sharp confidence together, and the error rate."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_weights
from recal.metrics import passes
from recal.metrics.rows import Classes, check_pair, ranked, run, score


def brier(
    probs: ArrayLike,
    y: ArrayLike,
    *,
    normalised: bool = True,
    classes: Classes = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean squared distance between probabilities and the truth as 0 and 1, divided by the number of classes.

    Where it is printed it is named "Brier / K". Most libraries do not divide where there are more than two classes:
    compare with them by ``normalised=False``.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
    y : array-like of shape (n_samples,)
        Integers are column indices; anything else needs `classes`.
    normalised : bool
        Divide by the number of classes, as the ReCal paper does. False gives the plain score between 0 and 2.
    classes : sequence of length n_classes, optional
    sample_weight : array-like of shape (n_samples,), optional
        How often each sample counts.

    Examples
    --------
    >>> from recal.metrics import brier
    >>> round(brier([[0.9, 0.1]], [0]), 4), round(brier([[0.9, 0.1]], [0], normalised=False), 4)
    (0.01, 0.02)
    """
    rows = score(probs, y, classes)
    mean = _mean(rows.brier, sample_weight)
    return mean / rows.n_classes if normalised else mean


def nll(probs: ArrayLike, y: ArrayLike, *, classes: Classes = None, sample_weight: ArrayLike | None = None) -> float:
    """Mean negative log-likelihood of the truth, in nats; infinite where the truth was given a probability of 0.

    Examples
    --------
    >>> from recal.metrics import nll
    >>> round(nll([[0.5, 0.5]], [0]), 4)
    0.6931
    """
    array, labels = check_pair(probs, y, classes)
    losses = np.empty(len(array))
    run(passes.negative_log_likelihoods, array, labels, losses)
    return _mean(losses, sample_weight)


def error_rate(
    probs: ArrayLike, y: ArrayLike, *, classes: Classes = None, sample_weight: ArrayLike | None = None
) -> float:
    """Share of rows whose most probable class, the first of equals, is not the truth.

    Examples
    --------
    >>> from recal.metrics import error_rate
    >>> error_rate([[0.9, 0.1], [0.8, 0.2]], [0, 1])
    0.5
    """
    return 1.0 - _mean(ranked(probs, y, classes)[1], sample_weight)


def _mean(values: NDArray[Any], sample_weight: ArrayLike | None) -> float:
    if sample_weight is None:
        return float(values.mean())
    weights = check_weights(sample_weight, len(values))
    counted = weights > 0.0  # a truth of probability 0 that does not count must not make NaN of infinity
    return float(np.average(values[counted], weights=weights[counted]))
