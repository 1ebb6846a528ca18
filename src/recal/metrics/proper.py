"""Proper scores, which reward honest and sharp confidence together, and the error rate."""

from __future__ import annotations

from numpy.typing import ArrayLike

from recal.metrics.rows import Classes, score


def brier(probs: ArrayLike, y: ArrayLike, *, normalized: bool = True, classes: Classes = None) -> float:
    """Mean squared distance between probabilities and the truth as 0 and 1.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
    y : array-like of shape (n_samples,)
        Integers are column indices; anything else needs `classes`.
    normalized : bool
        Divide by the number of classes, as the ReCal paper does. False gives the plain score between 0 and 2.
    classes : sequence of length n_classes, optional

    Examples
    --------
    >>> from recal.metrics import brier
    >>> round(brier([[0.9, 0.1]], [0]), 4), round(brier([[0.9, 0.1]], [0], normalized=False), 4)
    (0.01, 0.02)
    """
    rows = score(probs, y, classes)
    mean = float(rows.brier.mean())
    return mean / rows.n_classes if normalized else mean


def nll(probs: ArrayLike, y: ArrayLike, *, classes: Classes = None) -> float:
    """Mean negative log-likelihood of the truth, in nats; infinite where the truth was given a probability of 0.

    Examples
    --------
    >>> from recal.metrics import nll
    >>> round(nll([[0.5, 0.5]], [0]), 4)
    0.6931
    """
    return float(score(probs, y, classes).nll.mean())


def error_rate(probs: ArrayLike, y: ArrayLike, *, classes: Classes = None) -> float:
    """Share of rows whose most probable class, the first of equals, is not the truth.

    Examples
    --------
    >>> from recal.metrics import error_rate
    >>> error_rate([[0.9, 0.1], [0.8, 0.2]], [0, 1])
    0.5
    """
    return 1.0 - float(score(probs, y, classes).correct.mean())
