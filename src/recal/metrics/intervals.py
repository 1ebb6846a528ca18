"""Closed forms of 95 % intervals."""

from __future__ import annotations

import math

import numpy as np

from recal.metrics.row_scores import Vector

Interval = tuple[float, float]

LEVEL = 0.95
NO_INTERVAL = (math.nan, math.nan)


def rate_interval(count: float, n: float, level: float = LEVEL) -> Interval:
    """Clopper-Pearson interval of a rate; `count` and `n` may be effective numbers, which are not
    whole.

    Examples
    --------
    >>> from recal.metrics.intervals import rate_interval
    >>> low, high = rate_interval(0, 200)
    >>> low, round(high, 4)  # no mistake among 200
    (0.0, 0.0183)
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2  # of a rate
    low = float(betaincinv(count, n - count + 1, tail)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, n - count, 1 - tail)) if count < n else 1.0
    return low, high


def combined_interval(
    one: float, first: Interval, two: float, second: Interval, correlation: float = 0.0
) -> Interval:
    """MOVER: interval of ``one + two`` from the interval of each; `correlation` is the correlation
    of the estimates.

    For a difference pass the negative of the second estimate, of its interval and of the
    correlation.

    Examples
    --------
    >>> from recal.metrics.intervals import combined_interval
    >>> combined_interval(1.0, (0.7, 1.3), 2.0, (1.6, 2.4))
    (2.5, 3.5)
    """
    below, above = (one - first[0], two - second[0]), (first[1] - one, second[1] - two)

    def length(a: float, b: float) -> float:
        return math.sqrt(max(a * a + b * b + 2 * correlation * a * b, 0.0))

    return one + two - length(*below), one + two + length(*above)


def percentile_interval(draws: Vector, level: float = LEVEL) -> Interval:
    """Middle 95 % of the draws; draws in which a metric is undefined are left out."""
    defined = draws[~np.isnan(draws)]
    if len(defined) == 0:
        return NO_INTERVAL
    tail = (1 - level) / 2
    # Infinite draws cannot be interpolated.
    low, high = np.quantile(defined, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)
