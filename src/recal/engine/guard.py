"""The guard that keeps answers: the one place where probabilities are bent back to the model's own prediction."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.checks import Labels

# How far, relatively, a rival stays below the answer: enough for float32 to tell them apart in every runtime.
MARGIN = 1e-6


def keep_answers(probs: NDArray[np.float64], answers: Labels) -> NDArray[np.float64]:
    """Return the nearest probabilities in which each row's answer is the likeliest class.

    Where rivals are likelier, the answer and the rivals above it share their probability equally: with the rivals'
    probabilities in falling order, the level is the largest of the means over the answer and the first m rivals,
    m = 0, 1, ...; rivals above the level come down to it and the answer takes what they lose. Other classes keep
    theirs. Of all probabilities that keep the answer these have the least expected NLL, and the least expected Brier
    score, if `probs` were the truth: averaging what violates an order is the optimum for every such score.

    Each row's result depends on that row alone.

    Parameters
    ----------
    probs : (n_samples, n_classes), rows sum to 1
    answers : (n_samples,) column of the model's prediction

    Examples
    --------
    >>> from recal.engine.guard import keep_answers
    >>> keep_answers(np.array([[0.6, 0.1, 0.3]]), np.array([2])).round(3).tolist()
    [[0.45, 0.1, 0.45]]
    """
    kept = np.array(probs, dtype=np.float64, order="C")
    rows = np.arange(len(kept))
    own = kept[rows, answers]
    kept[rows, answers] = -1.0
    doubted = np.flatnonzero(kept.max(axis=1) > own * (1.0 - MARGIN))
    kept[rows, answers] = own
    if not len(doubted):
        return kept
    rivals, columns, own = kept[doubted], answers[doubted], own[doubted]
    place = np.arange(len(doubted))
    rivals[place, columns] = 0.0
    falling = -np.sort(-rivals, axis=1)
    means = (own[:, None] + np.cumsum(falling, axis=1)) / np.arange(2, rivals.shape[1] + 2)
    level = np.maximum(own, means.max(axis=1))
    lowered = np.minimum(rivals, (level * (1.0 - MARGIN))[:, None])
    lost = (rivals - lowered).sum(axis=1)
    lowered[place, columns] = own + lost
    kept[doubted] = lowered
    return kept
