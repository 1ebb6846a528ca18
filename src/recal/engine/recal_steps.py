"""One step of a plan over rows: which of two confidences is larger, and both rows rescaled by their group's beta."""

from __future__ import annotations

from math import exp, log1p

import numpy as np

from recal.engine.compiled import FAST, kernel, part_of_kernel
from recal.engine.rows import exp as fast_exp
from recal.engine.rows import place_of_largest, read
from recal.engine.scaled import AT, REACH, SCALE, remainder

# As in `engine.grouping`: what is closer than this is for the rule for ties, and below these log-odds against it a
# prediction's float32 confidence is 1.
CLOSE, SATURATED = 1e-5, -16.8
# Below these log-odds, the logarithm of a confidence is closer to 0 than CLOSE.
_ALMOST_SURE = -11.5
# A series with a larger error is not used.
_USELESS, _UNKNOWN = 0.5, 1e300
LEAST_SCALE, LARGEST_SCALE = 1e-100, 1e100
# The sum of exponentials of a row whose log-odds against its prediction are SATURATED, and almost so.
_SATURATED_SUM, _ALMOST_SURE_SUM = 1.0 + exp(SATURATED), 1.0 + exp(_ALMOST_SURE)
# How many short rows are summed together, so that they stay in the L1 cache.
_TOGETHER = 256

_remainder = part_of_kernel(remainder)


@part_of_kernel()
def odds_near(numbers):  # type: ignore[no-untyped-def]
    """Return the log-odds x at a row's scale by its series, as `scaled.expand` does, and a bound on their error."""
    t = numbers[SCALE] - numbers[AT]
    if t == 0.0:
        return numbers[1], 0.0
    error = _remainder(t, numbers[REACH - 1], numbers[REACH])
    if not error < _USELESS:
        return 0.0, _UNKNOWN
    rise = 0.0
    for k in range(REACH - 1, 2, -1):
        rise = (rise + numbers[k]) * t
    rise *= t
    # A mean of exponentials about their mean is at least 1.
    return numbers[1] + t * numbers[2] + log1p(max(rise, 0.0)), error


@part_of_kernel()
def log_partition(x):  # type: ignore[no-untyped-def]
    """Return log(1 + e**x)."""
    return x + log1p(exp(-x)) if x > 0.0 else log1p(exp(x))


@kernel()
def step(logits, start, stop, view, columns, view_columns, numbers, view_numbers, gaps, betas, exact, tied):  # type: ignore[no-untyped-def]
    """Group each row by its confidence and its view's, and rescale both; mark rows as tied that are too close to call.

    Rows are read only if their series cannot decide. `gaps` is how far the view's logit at the column of its confidence
    lies below its largest.
    """
    for i in range(start, stop):
        own, other = numbers[:, i], view_numbers[:, i]
        (x, error), (y, view_error) = odds_near(own), odds_near(other)
        fell, close = True, False
        while exact or x + error > SATURATED:  # else the confidence is 1, which none exceeds
            margin = log_partition(y) - other[SCALE] * gaps[i] - log_partition(x)
            fell = margin > 0.0
            close = abs(margin) <= CLOSE + error + view_error
            if not close or error + view_error == 0.0:
                break
            if error > view_error:
                read(logits[i], columns[i], own)
                x, error = own[1], 0.0
            else:
                read(view[i], view_columns[i], other)
                y, view_error = other[1], 0.0
            fell, close = True, False
        close = close or (exact and x - error < _ALMOST_SURE)
        tied[i] = close
        if not close:
            beta = betas[2 * (columns[i] == view_columns[i]) + fell]
            own[SCALE] = min(max(own[SCALE] * beta, LEAST_SCALE), LARGEST_SCALE)
            other[SCALE] = min(max(other[SCALE] * beta, LEAST_SCALE), LARGEST_SCALE)


@kernel()
def transpose(logits, start, stop, columns, drops):  # type: ignore[no-untyped-def]
    """Fill the column of each row's largest logit, and drops[j, i], how far the others lie below it."""
    for i in range(start, stop):
        row = logits[i]
        columns[i] = place_of_largest(row)
        top = np.float64(row[columns[i]])
        for j in range(len(row)):
            drops[j, i] = np.float64(row[j]) - top


@part_of_kernel(fastmath=FAST)
def add_exponentials(sums, scales, drops):  # type: ignore[no-untyped-def]
    for i in range(len(scales)):
        sums[i] += fast_exp(scales[i] * np.float64(drops[i]))


@kernel()
def short_step(tied, start, stop, drops, view, kept, scales, view_scales, gaps, betas, exact):  # type: ignore[no-untyped-def]
    """Do the same as `step` for short rows, where all exponentials cost less than the bookkeeping of a series.

    Classes are the first axis of `drops` and `view`, so that vector instructions run along the samples.
    """
    sums, view_sums = np.empty(_TOGETHER), np.empty(_TOGETHER)
    for first in range(start, stop, _TOGETHER):
        last = min(first + _TOGETHER, stop)
        sums[:] = 0.0
        view_sums[:] = 0.0
        for j in range(len(drops)):
            add_exponentials(sums, scales[first:last], drops[j, first:last])
            add_exponentials(view_sums, view_scales[first:last], view[j, first:last])
        for i in range(first, last):
            own, other = sums[i - first], view_sums[i - first]
            level = own * fast_exp(view_scales[i] * gaps[i])  # the view's sum at which the confidences are equal
            saturated = not exact and own < _SATURATED_SUM  # a confidence of 1, which none exceeds
            close = abs(other - level) <= CLOSE * other and not saturated
            tied[i] = close or (exact and own < _ALMOST_SURE_SUM)
            if not tied[i]:
                beta = betas[2 * kept[i] + (saturated or other > level)]
                scales[i] = min(max(scales[i] * beta, LEAST_SCALE), LARGEST_SCALE)
                view_scales[i] = min(max(view_scales[i] * beta, LEAST_SCALE), LARGEST_SCALE)
