"""A row's log-odds near a scale at which it was read: arithmetic that numpy does on arrays and kernels on numbers.

With the likeliest class left out, the log-odds against it at the scale s are x(s) = log sum_j exp(s d_j), where
d_j = z_j - max z. About a scale at which the row was read, x(s + t) = x(s) + t m + log E exp(t (d - m)), with m the
mean of d under weights exp(s d). The exponential's series to the eighth power, whose terms are central moments, is good
for steps of several per cent, and Taylor's remainder says how good.
"""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np

DEGREE = 8
# Of each row: the scale, x and m there, E (d - m)**k / k! for k = 2..8, and the largest |d - m|; as many numbers.
AT, REACH, TERMS = 0, 10, 11
# Beside them what reading a row asks for: the scale, the largest logit, and how far the least lies below it.
SCALE, TOP, LOWEST, NUMBERS = 11, 12, 13, 14
# An error of x, over t, times this is what the error of its slope can be.
SHARPER = 9.0
_FACTORIALS = tuple(float(factorial(k)) for k in range(DEGREE + 1))


def fill_terms(numbers: Any) -> None:
    """Turn the sums of w d**k, k = 0..8, that stand in numbers[1:10] into the terms of a row, or of many."""
    total = np.maximum(numbers[1], 1e-300)
    mean = numbers[2] / total
    for k in range(1, DEGREE + 1):
        numbers[1 + k] = numbers[1 + k] / total
    numbers[1] = 1.0
    for done in range(1, DEGREE + 1):  # of E (d - m)**done d**(k - done) each round makes the next
        for k in range(DEGREE, done - 1, -1):
            numbers[1 + k] = numbers[1 + k] - mean * numbers[k]
    for k in range(2, DEGREE + 1):
        numbers[1 + k] = numbers[1 + k] / _FACTORIALS[k]
    numbers[AT], numbers[1], numbers[2] = numbers[SCALE], np.log(total), mean
    numbers[REACH] = np.maximum(-mean, mean - numbers[LOWEST])


def remainder(t: Any, last: Any, reach: Any) -> Any:
    """Return how far the sum can be off: the next term is at most c8 t**8 q / 9, and those beyond it less than as much.

    So it is as long as q, the largest |t (d - m)|, is below 4.
    """
    square = t * t
    fourth = square * square
    q = np.abs(t) * reach
    return np.abs(last) * fourth * fourth * q * 0.25 + 1e300 * (q > 4.0)


def expand(t: Any, x: Any, mean: Any, c2: Any, c3: Any, c4: Any, c5: Any, c6: Any, c7: Any, c8: Any) -> Any:
    """Return x, and the first two derivatives of the log-partition log(1 + e**x), at a step t from the scale."""
    rise = t * t * (c2 + t * (c3 + t * (c4 + t * (c5 + t * (c6 + t * (c7 + t * c8))))))
    once = t * (2 * c2 + t * (3 * c3 + t * (4 * c4 + t * (5 * c5 + t * (6 * c6 + t * (7 * c7 + t * (8 * c8)))))))
    twice = 2 * c2 + t * (6 * c3 + t * (12 * c4 + t * (20 * c5 + t * (30 * c6 + t * (42 * c7 + t * (56 * c8))))))
    first, second = once / (1.0 + rise), twice / (1.0 + rise)
    odds = x + t * mean + np.log1p(rise)
    against = 1.0 / (1.0 + np.exp(-np.maximum(odds, -700.0)))
    slope = mean + first
    bend = np.maximum(second - first * first, 0.0)
    return odds, against * slope, against * (bend + (1.0 - against) * slope * slope)
