"""Nine statistics of a set of logits that tell kinds and strengths of damage apart, without labels.

Mean confidence alone is not enough: a blurred and a dark set with the same mean confidence can differ in accuracy. The
shape of the confidence distribution, the size of the logits and the mix of predicted classes tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats

Vector = NDArray[np.float64]

N_STATISTICS = 9
CLASS_MIX = 7  # position of the entropy of the predicted classes
# The shares of confidences above these levels are counted.
_CONFIDENT = (0.99, 0.9, 0.6)
# Shares are clipped here before taking log-odds; a set of hundreds cannot resolve more.
_EDGE = 0.005
_TINY = 1e-12
_BLOCK = 2_000_000  # values per block


@dataclass(frozen=True)
class RowNumbers:
    """What each row of logits contributes to the nine statistics."""

    values: Vector  # (n_samples, 9): see `row_numbers`
    answers: NDArray[np.intp]
    n_classes: int

    def __getitem__(self, rows: NDArray[np.intp]) -> RowNumbers:
        return RowNumbers(self.values[rows], self.answers[rows], self.n_classes)


def join_rows(pieces: Sequence[RowNumbers]) -> RowNumbers:
    """Join the rows of several sets."""
    if len(pieces) == 1:
        return pieces[0]
    values, answers = (np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("values", "answers"))
    return RowNumbers(values, answers, pieces[0].n_classes)


def row_numbers(logits: Floats, beta: float, cut: float) -> RowNumbers:
    """Compute the numbers of each row.

    The columns: confidence at `beta`; whether the entropy lies below `cut` (ATC; Garg et al., 2022); whether the
    confidence exceeds .99, .9 and .6; the largest centred logit; the spread of the logits; the logarithm of their
    squared norm, and its square.
    """
    n, n_classes = logits.shape
    values, answers = np.empty((n, N_STATISTICS)), np.empty(n, np.intp)
    step = max(1, _BLOCK // n_classes)
    for start in range(0, n, step):
        block = slice(start, min(start + step, n))
        values[block], answers[block] = _block_numbers(np.asarray(logits[block], np.float64), beta, cut)
    return RowNumbers(values, answers, n_classes)


def entropies(logits: Floats, beta: float) -> Vector:
    """Return the entropy of each row's probabilities at `beta`, in nats."""
    scaled = np.asarray(logits, np.float64) * beta
    scaled -= scaled.max(axis=1, keepdims=True)
    weights = np.exp(scaled)
    total = weights.sum(axis=1)
    return np.asarray(np.log(total) - (weights * scaled).sum(axis=1) / total)


def statistics(rows: RowNumbers, weights: Vector | None = None) -> Vector:
    """Return the nine statistics of a set of rows, (9,); `weights` says how often each row counts.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions.watching.statistics import row_numbers, statistics
    >>> logits = 3 * np.random.default_rng(0).normal(size=(500, 4))
    >>> statistics(row_numbers(logits, beta=1.0, cut=0.5)).shape
    (9,)
    """
    means = rows.values.mean(axis=0) if weights is None else weights @ rows.values / weights.sum()
    shares = np.clip(means[:5], _EDGE, 1 - _EDGE)
    spread = np.sqrt(max(means[8] - means[7] ** 2, 0.0))
    sizes = np.log(np.maximum(means[5:7], _TINY))
    return np.r_[np.log(shares) - np.log1p(-shares), sizes, _answer_entropy(rows, weights), spread]


def _block_numbers(logits: Vector, beta: float, cut: float) -> tuple[Vector, NDArray[np.intp]]:
    answers = logits.argmax(axis=1)
    centred = logits - logits.mean(axis=1, keepdims=True)
    top = centred[np.arange(len(logits)), answers]
    confidence = 1.0 / np.exp(beta * (centred - top[:, None])).sum(axis=1)
    squares = np.einsum("ij,ij->i", centred, centred)
    norm = np.log(squares + _TINY)
    confident = [confidence > level for level in _CONFIDENT]
    columns = [confidence, entropies(logits, beta) < cut, *confident, top, np.sqrt(squares / logits.shape[1])]
    return np.column_stack([*columns, norm, norm**2]), answers


def _answer_entropy(rows: RowNumbers, weights: Vector | None) -> float:
    """Return the entropy of the predicted classes, with Miller and Madow's correction for small sets."""
    counts = np.bincount(rows.answers, weights, minlength=rows.n_classes)
    seen = counts[counts > 0] / counts.sum()
    return float(-(seen * np.log(seen)).sum() + (len(seen) - 1) / (2 * counts.sum()))
