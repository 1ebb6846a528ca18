"""Grouping that looks at a view's logits only where it must.

A view's scale changes by one beta between two looks at it. The log-probability b(s) = s * gap - F(s) of a column is
concave in the scale, so its tangent at the last look bounds it from above; chords and a bound on how fast the
curvature can grow bound it from below. Most comparisons are decided by these bounds; the others get a pass over the
row in float32, and those still too close to call are decided by the rule for ties, in full.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from recal.kernels.fast import row_slopes
from recal.kernels.grouping import CLOSE

# What is remembered of each row of a view: its last look, in the columns of one array.
AT, VALUE, SLOPE, CURVATURE = 0, 1, 2, 3
UNDECIDED = -1


@njit(cache=True, nogil=True)
def look(index, start, stop, logits, maxima, columns, ranges):  # type: ignore[no-untyped-def]
    """Fill each row's largest logit, its column and how far the smallest lies below it."""
    for i in range(start, stop):
        row = logits[index[i]]
        best = row[0]
        worst = row[0]
        column = 0
        for j in range(1, len(row)):
            if row[j] > best:
                best = row[j]
                column = j
            worst = min(worst, row[j])
        maxima[i] = best
        columns[i] = column
        ranges[i] = best - worst


@njit(cache=True, nogil=True, inline="always")
def upper_bound(last, gap, s):  # type: ignore[no-untyped-def]
    """Return an upper bound of b(s) from the last look at the row: the tangent."""
    return last[AT] * gap - last[VALUE] + (gap - last[SLOPE]) * (s - last[AT])


@njit(cache=True, nogil=True)
def lower_bound(last, gap, reach, log_classes, s):  # type: ignore[no-untyped-def]
    """Return a lower bound of b(s) from the last look at the row."""
    s0 = last[AT]
    tangent = upper_bound(last, gap, s)
    step = s - s0
    # Below the last look a chord to b(0) = -log K; above it, F only falls.
    value = s0 * gap - last[VALUE]
    chord = (value * s - (s0 - s) * log_classes) / s0 if s < s0 else s * gap - last[VALUE]
    eighth = 0.125 * reach * abs(step)
    if eighth > 0.75:
        return min(chord, tangent)
    # The curvature at s is at most e**x of that at s0, x = reach * |step|; and e**x <= (1 - x/8)**-8.
    root = 1.0 / (1.0 - eighth)
    growth = root * root * root * root
    bend = 0.5 * step * step * last[CURVATURE] * growth * growth
    return min(max(tangent - bend, chord), tangent)


@njit(cache=True, nogil=True)
def screen(scales, start, stop, last, gaps, ranges, kept, log_classes, log_confidence, slack, exact, groups):  # type: ignore[no-untyped-def]
    """Fill the groups 0..3 that the bounds decide, and UNDECIDED for the others.

    `slack` is how far `log_confidence` can be off.
    """
    for i in range(start, stop):
        confidence, close = log_confidence[i], CLOSE + slack[i]
        groups[i] = UNDECIDED
        # In log-odds a saturated pair may differ although its logarithms do not.
        if exact and confidence > -CLOSE:
            continue
        if confidence > upper_bound(last[i], gaps[i], scales[i]) + close:
            groups[i] = 2 * kept[i] + 1
        elif confidence < lower_bound(last[i], gaps[i], ranges[i], log_classes, scales[i]) - close:
            groups[i] = 2 * kept[i]


@njit(cache=True, nogil=True)
def look_again(chosen, start, stop, view, view_index, maxima, scales, last):  # type: ignore[no-untyped-def]
    """Remember the log-partition of the rows `chosen` and its derivatives at their present scales.

    Row chosen[k] of the view stands in view[view_index[k]].
    """
    for k in range(start, stop):
        i = chosen[k]
        value, slope, curvature = row_slopes(view[view_index[k]], maxima[i], np.float32(scales[i]))
        last[i, AT], last[i, VALUE], last[i, SLOPE], last[i, CURVATURE] = scales[i], value, slope, curvature
