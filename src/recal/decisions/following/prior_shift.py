"""The other explanation of a changed batch: the same inputs of each class, in other shares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

_ROUNDS = 100
_CLOSE = 1e-6
# Of samples of the usual accuracy that each class's own recall is averaged with: few samples of a class say little.
_USUAL = 5.0


def class_shares(probs: Vector, shares: Vector) -> Vector:
    """Return the class shares that explain calibrated probabilities best, by expectation maximisation.

    Saerens, Latinne and Decaestecker (2002). `shares` are those of the samples that probabilities were calibrated on.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions.following.prior_shift import class_shares
    >>> class_shares(np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]), np.array([0.5, 0.5])).round(2)
    array([0.71, 0.29])
    """
    base = np.maximum(shares, 1e-12)
    found = base / base.sum()
    for _ in range(_ROUNDS):
        weighted = probs * (found / base)
        after = (weighted / weighted.sum(axis=1, keepdims=True)).mean(axis=0)
        moved = float(np.abs(after - found).max())
        found = after
        if moved < _CLOSE:
            break
    return np.asarray(found)


def recalls(right: NDArray[np.bool_], labels: NDArray[np.intp], n_classes: int) -> tuple[Vector, Vector]:
    """Return each class's share of the samples, and of right answers to its own, (n_classes,) both."""
    counts = np.bincount(labels, minlength=n_classes)
    hits = np.bincount(labels, right, minlength=n_classes)
    return counts / len(labels), (hits + _USUAL * right.mean()) / (counts + _USUAL)
