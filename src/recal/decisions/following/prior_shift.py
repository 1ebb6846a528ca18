"""The other explanation of a changed batch: the same inputs of each class, in other shares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

_ROUNDS = 500
_CLOSE = 1e-7
_LEAST = 1e-300
# Of samples of the usual accuracy that each class's own recall is averaged with: few samples of a class say little.
_USUAL = 5.0


def class_shares(probs: Vector, shares: Vector, *, start: Vector | None = None, prior: float = 0.0) -> Vector:
    """Return the class shares that explain calibrated probabilities best, by expectation maximisation.

    Saerens, Latinne and Decaestecker (2002). `shares` are those of the samples that probabilities were calibrated on,
    and `start` those to begin with: a class whose share is 0 there keeps it. `prior` counts samples with the mix of
    `start` that join those of the batch.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions.following.prior_shift import class_shares
    >>> class_shares(np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]), np.array([0.5, 0.5])).round(2)
    array([0.71, 0.29])
    """
    base = np.maximum(shares, 1e-12)
    first = base / base.sum() if start is None else start
    found = first
    for _ in range(_ROUNDS):
        ratio = found / base
        counts = ratio * (probs.T @ (1.0 / np.maximum(probs @ ratio, _LEAST)))
        after = (counts + prior * first) / (counts.sum() + prior)
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
