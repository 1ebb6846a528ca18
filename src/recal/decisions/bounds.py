"""Exact binomial bounds: what a number of mistakes among independent answers says about their true share."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Interval = tuple[float, float]
Vector = NDArray[np.float64]

# More answers than anybody has: a lower risk cannot be shown, and larger numbers could not be counted.
_NEVER = 1e15


def chance_of_so_few(errors: ArrayLike, counts: ArrayLike, risk: float) -> Vector:
    """P(at most `errors` mistakes among `counts` answers) if each is wrong with probability `risk`.

    It is the exact p-value of "the true share of mistakes is at least `risk`"; 1 where there are no answers.
    """
    from scipy.special import betainc  # half of what a command costs that never comes here

    count, wrong = np.asarray(counts, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    right = np.maximum(count - wrong, 0.0)
    # All wrong, or no answers: as many or fewer is certain, where the beta function has no value.
    return np.where(right > 0, betainc(np.maximum(right, 1.0), wrong + 1.0, 1.0 - risk), 1.0)


def share_interval(hits: int, count: int, confidence: float) -> Interval:
    """The Clopper-Pearson interval of a share: it holds the true one with at least this probability.

    Examples
    --------
    >>> from recal.decisions.bounds import share_interval
    >>> low, high = share_interval(0, 100, 0.95)
    >>> low, round(high, 4)
    (0.0, 0.0362)
    """
    from scipy.special import betaincinv

    if count == 0:
        return 0.0, 1.0
    tail = (1.0 - confidence) / 2
    low = float(betaincinv(hits, count - hits + 1, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, count - hits, 1.0 - tail)) if hits < count else 1.0
    return low, high


def fewest_answers(risk: float, level: float) -> int:
    """How many answers, all of them right, show a risk at this level; nothing can be shown with fewer."""
    return int(min(np.ceil(np.log(level) / np.log1p(-risk)), _NEVER))


def smallest_size(errors: int, risk: float, level: float) -> int:
    """How many answers, with so many mistakes among them, show a risk at this level."""
    low, high = errors, errors + 1
    while chance_of_so_few(errors, high, risk) > level:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance_of_so_few(errors, middle, risk) <= level else (middle, high)
    return high
