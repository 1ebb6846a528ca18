"""From logits to probabilities, and the promise that none is ever exactly 0 or 1.

Everything here works row by row on C-ordered float64, so that a row alone gets what it gets in a batch: bit for bit,
but for a softmax of so many values that it is compiled, which differs in the last bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Labels
from recal.engine.kernels import SMALL, rows
from recal.engine.kernels.threads import over_rows
from recal.engine.reference import lift_answers
from recal.engine.scaled import as_rows

# The ends of what float64 can say strictly between 0 and 1, leaving out subnormal numbers.
SMALLEST = float(np.finfo(np.float64).tiny)
LARGEST = float(np.nextafter(1.0, 0.0))
# A sum below this may have lost some of what was added.
_UNDERFLOWING = 1e-290


def log_softmax(logits: ArrayLike, beta: float = 1.0) -> NDArray[np.float64]:
    """Return the logarithm of softmax(beta * logits), (n_samples, n_classes) float64; large and negative, not -inf."""
    shifted = np.array(logits, dtype=np.float64, order="C")
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted *= beta
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def softmax(logits: ArrayLike, beta: float = 1.0) -> NDArray[np.float64]:
    """Return softmax(beta * logits), (n_samples, n_classes) float64. Far-off classes may underflow to 0.

    Examples
    --------
    >>> from recal.calibrators.machinery.probabilities import softmax
    >>> softmax([[0.0, 0.0], [1000.0, -1000.0]])
    array([[0.5, 0.5],
           [1. , 0. ]])
    """
    given = np.asarray(logits)
    if given.size >= SMALL:
        given = as_rows(given)
        probs = np.empty(given.shape)
        over_rows(rows.plain_softmax, given, float(beta), probs)
        return probs
    probs = np.array(given, dtype=np.float64, order="C")
    probs -= probs.max(axis=1, keepdims=True)
    probs *= beta
    np.exp(probs, out=probs)
    probs /= probs.sum(axis=1, keepdims=True)
    return probs


def log_odds(log_probs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(p / (1 - p)) of each class; with two classes the difference of their logits, however large.

    1 - p of the largest is the others' sum: 1 - p itself would have lost its digits, and beyond a margin of 37 all of
    them. Beyond a margin of 690 that sum is taken relative to the largest of them.
    """
    probs = np.exp(log_probs)
    every, top = np.arange(len(probs)), log_probs.argmax(axis=1)
    probs[every, top] = 0.0
    rest = probs.sum(axis=1)
    far = np.flatnonzero(rest < _UNDERFLOWING)
    np.negative(probs, out=probs)
    log_rest = np.log1p(probs, out=probs)
    log_rest[every, top] = np.log(np.maximum(rest, _UNDERFLOWING))
    if len(far):
        others = log_probs[far]
        others[every[: len(far)], top[far]] = -np.inf
        second = others.max(axis=1)
        log_rest[far, top[far]] = second + np.log(np.exp(others - second[:, None]).sum(axis=1))
    return log_probs - log_rest


def class_scores(logits: ArrayLike, beta: float = 1.0) -> NDArray[np.float64]:
    """Return each class's log-odds at the scale beta: what it is sorted by, one against the rest.

    It says the same as the probability, and keeps apart what has saturated there.
    """
    two = np.asarray(logits)
    if two.shape[1] == 2:
        margin = beta * np.subtract(two[:, 1], two[:, 0], dtype=np.float64)
        return np.stack([-margin, margin], axis=1)
    return log_odds(log_softmax(logits, beta))


def normalise(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide rows of scores >= 0 by their sums; a row of zeros becomes uniform."""
    scores = np.ascontiguousarray(scores)
    sums = scores.sum(axis=1, keepdims=True)
    uniform = 1.0 / scores.shape[1]
    return np.where(sums > 0, scores / np.where(sums > 0, sums, 1.0), uniform)


def bounded_probs(probs: NDArray[np.float64], top: Labels | None = None) -> NDArray[np.float64]:
    """Return `probs` strictly inside (0, 1), and with its largest value at `top` where that is given.

    A probability that underflowed to 0 becomes the smallest normal float64 (a loss of 708, not infinity); one that
    rounded to 1 becomes the float64 before 1. Where rounding made the predicted class tie with another, it is lifted
    by one unit in the last place, so that `argmax` still gives the model's own answer.

    Parameters
    ----------
    probs : (n_samples, n_classes), rows sum to 1
    top : (n_samples,) column of the model's prediction, optional

    Examples
    --------
    >>> from recal.calibrators.machinery.probabilities import bounded_probs
    >>> bounded_probs(np.array([[1.0, 0.0]]))[0].tolist()
    [0.9999999999999999, 2.2250738585072014e-308]
    >>> bounded_probs(np.array([[0.5, 0.5]]), top=np.array([1])).argmax(axis=1)
    array([1])
    """
    bounded = np.maximum(probs, SMALLEST)
    np.minimum(bounded, LARGEST, out=bounded)
    return bounded if top is None else lift_answers(bounded, top)
