"""Intervals that hold with few mistakes, where a bootstrap fails: it cannot draw a mistake that the sample lacks.

Four methods, each for one kind of number:

- a rate: Clopper and Pearson (1934), exact;
- a sum of scores over rare rows, such as the losses of all mistakes: the gamma interval of Fay and Feuer (1997), which
  adds one pseudo-observation and equals the exact Poisson interval if all scores are equal;
- a mean of a few numbers between 0 and 1, such as the AUROC: the Clopper-Pearson interval of as many coin flips, which
  vary more than any other numbers with this mean;
- a sum or a difference of two estimates with an interval each: MOVER (Zou and Donner, 2008).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Interval = tuple[float, float]

LEVEL = 0.95
NO_INTERVAL = (math.nan, math.nan)


def rate_interval(count: float, n: float, level: float = LEVEL) -> Interval:
    """Clopper-Pearson interval of a rate; `count` and `n` may be effective numbers, which are not whole.

    Examples
    --------
    >>> from recal.metrics.exact import rate_interval
    >>> low, high = rate_interval(0, 200)
    >>> low, round(high, 4)  # no mistake among 200
    (0.0, 0.0183)
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(count, n - count + 1, tail)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, n - count, 1 - tail)) if count < n else 1.0
    return low, high


def sum_interval(scores: Vector, pseudo: float, level: float = LEVEL) -> Interval:
    """Interval of the expected sum of scores over rare events, from the scores of the events that occurred.

    Parameters
    ----------
    scores : array of shape (n_events,)
        Positive numbers; the number of events is taken as Poisson.
    pseudo : float
        Score of the pseudo-observation: what an event that did not occur might have added.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.metrics.exact import sum_interval
    >>> low, high = sum_interval(np.ones(3), 1.0)
    >>> round(low, 2), round(high, 2)  # the exact Poisson interval of 3 events
    (0.62, 8.77)
    """
    from scipy.special import gammaincinv

    tail = (1 - level) / 2
    total, squares = float(scores.sum()), float(np.square(scores).sum())
    if not math.isfinite(total):
        return total, total
    low = squares / total * float(gammaincinv(total**2 / squares, tail)) if squares > 0 else 0.0
    total, squares = total + pseudo, squares + pseudo**2
    if not math.isfinite(total):
        return low, total
    high = squares / total * float(gammaincinv(total**2 / squares, 1 - tail)) if squares > 0 else 0.0
    return low, high


def bounded_mean_interval(mean: float, n: float, level: float = LEVEL) -> Interval:
    """Interval of the mean of `n` independent numbers in [0, 1]."""
    return rate_interval(mean * n, n, level)


def combined_interval(one: float, first: Interval, two: float, second: Interval, correlation: float = 0.0) -> Interval:
    """MOVER: interval of ``one + two`` from the interval of each; `correlation` is that of their estimates.

    For a difference pass the negative of the second estimate, of its interval and of the correlation.

    Examples
    --------
    >>> from recal.metrics.exact import combined_interval
    >>> combined_interval(1.0, (0.7, 1.3), 2.0, (1.6, 2.4))
    (2.5, 3.5)
    """
    below, above = (one - first[0], two - second[0]), (first[1] - one, second[1] - two)

    def length(a: float, b: float) -> float:
        return math.sqrt(max(a * a + b * b + 2 * correlation * a * b, 0.0))

    return one + two - length(*below), one + two + length(*above)
