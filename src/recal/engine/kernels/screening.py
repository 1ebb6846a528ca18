"""Grouping that looks at a view's logits only where it must.

A view's scale changes by one beta between two looks at it. The log-probability b(s) = s * gap - F(s) of a column is
concave in the scale, so its tangent at the last look bounds it from above; chords and a bound on how fast the
curvature can grow bound it from below. Most comparisons are decided by these bounds; the others get a pass over the
row in float32, and those still too close to call are decided by the rule for ties, in full.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from recal.engine.kernels.fast import row_slopes

# What is remembered of a row: its last look.
AT, VALUE, SLOPE, CURVATURE = 0, 1, 2, 3


@njit(cache=True, nogil=True, error_model="numpy")
def extremes(row):  # type: ignore[no-untyped-def]
    """Return the largest value, its column and the range of a row."""
    best = row[0]
    worst = row[0]
    column = 0
    for j in range(1, len(row)):
        if row[j] > best:
            best = row[j]
            column = j
        worst = min(worst, row[j])
    return best, column, np.float64(best) - np.float64(worst)


@njit(cache=True, nogil=True, error_model="numpy")
def look(index, start, stop, logits, maxima, columns, ranges):  # type: ignore[no-untyped-def]
    """Fill each row's largest logit, its column and how far the smallest lies below it."""
    for i in range(start, stop):
        maxima[i], columns[i], ranges[i] = extremes(logits[index[i]])


def upper_bound(at: Any, value: Any, slope: Any, gap: Any, s: Any) -> Any:
    """Return an upper bound of b(s) from the last look at the row: the tangent."""
    return at * gap - value + (gap - slope) * (s - at)


def lower_bound(
    at: Any, value: Any, slope: Any, curvature: Any, gap: Any, reach: Any, log_classes: float, s: Any
) -> Any:
    """Return a lower bound of b(s) from the last look at the row."""
    tangent = at * gap - value + (gap - slope) * (s - at)
    # Below the last look a chord to b(0) = -log K; above it, F only falls.
    below = np.minimum(s / at, 1.0)
    chord = s * gap - below * value - (1.0 - below) * log_classes
    # The curvature at s is at most e**x of that at the last look, x = reach * |step|; and e**y <= 1 + y + 0.72 y**2
    # up to y = 1, beyond which nothing is known. What is added to the curvature outweighs its rounding in float32.
    step = s - at
    y = 0.125 * reach * np.abs(step)
    root = 1.0 + y + 0.72 * y * y + 1e30 * np.maximum(y - 1.0, 0.0)
    growth = root * root * root * root
    bend = 0.5 * step * step * (curvature + 1e-6 * slope * slope + 1e-30) * growth * growth
    return np.minimum(np.maximum(tangent - bend, chord), tangent)


# The same for one row, in compiled code. A fit, which asks for all rows at once, is as fast without, and compiles less.
upper_bound_of_row = njit(cache=True, nogil=True, error_model="numpy", inline="always")(upper_bound)
lower_bound_of_row = njit(cache=True, nogil=True, error_model="numpy")(lower_bound)


@njit(cache=True, nogil=True, error_model="numpy")
def look_again(chosen, start, stop, view, view_index, maxima, scales, last):  # type: ignore[no-untyped-def]
    """Remember the log-partition of the rows `chosen` and its derivatives at their present scales.

    Row chosen[k] of the view stands in view[view_index[k]].
    """
    for k in range(start, stop):
        i = chosen[k]
        value, slope, curvature = row_slopes(view[view_index[k]], maxima[i], np.float32(scales[i]))
        last[AT, i], last[VALUE, i], last[SLOPE, i], last[CURVATURE, i] = scales[i], value, slope, curvature
