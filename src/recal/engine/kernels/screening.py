"""Grouping that looks at a view's logits only where it must.

A view's scale changes by one beta between two looks at it. The log-probability b(s) = s * gap - F(s) of a column is
concave in the scale, so its tangent at the last look bounds it from above; chords and a bound on how fast the
curvature can grow bound it from below. Most comparisons are decided by these bounds; the others get a pass over the
row in float32, and those still too close to call are decided by the rule for ties, in full.
"""

from __future__ import annotations

import numpy as np

from recal.engine.kernels.compiled import CONTRACT, FAST, kernel, part_of_kernel
from recal.engine.kernels.exponential import exp32
from recal.engine.kernels.grouping import CLOSE
from recal.engine.kernels.table import AGAINST, KNOWN, LANES
from recal.engine.kernels.table import VALUE as F

# What is remembered of a row: its last look, how far its smallest logit lies below the largest, how far the one whose
# confidence is read does, and 2 where its prediction is the original's, else 0.
AT, VALUE, SLOPE, CURVATURE, RANGE, GAP, KEPT, LOOK = range(8)
UNDECIDED = -1.0
# float32 sums over more columns than this would lose digits that matter.
_BLOCK = 4096


@part_of_kernel(inline="always")
def upper_bound(at, value, slope, gap, s):  # type: ignore[no-untyped-def]
    """Return an upper bound of b(s) from the last look at the row: the tangent."""
    return at * gap - value + (gap - slope) * (s - at)


@part_of_kernel(inline="always")
def lower_bound(at, value, slope, curvature, gap, reach, log_classes, s):  # type: ignore[no-untyped-def]
    """Return a lower bound of b(s) from the last look at the row."""
    step = s - at
    tangent = at * gap - value + (gap - slope) * step
    # Below the last look a chord to b(0) = -log K; above it, F only falls.
    below = min(s / at, 1.0)
    chord = s * gap - below * value - (1.0 - below) * log_classes
    # The curvature at s is at most e**x of that at the last look, x = reach * |step|; and e**y <= 1 + y + 0.72 y**2
    # up to y = 1, beyond which nothing is known. What is added to the curvature outweighs its rounding in float32.
    y = 0.125 * reach * abs(step)
    root = 1.0 + y + 0.72 * y * y + 1e30 * max(y - 1.0, 0.0)
    growth = root * root * root * root
    bend = 0.5 * step * step * (curvature + 1e-6 * slope * slope + 1e-30) * growth * growth
    return min(max(tangent - bend, chord), tangent)


@kernel(fastmath=CONTRACT)
def screen(blocks, start, stop, groups, own, error, looks, scales, log_classes, saturated):  # type: ignore[no-untyped-def]
    """Fill the groups that the last look's bounds decide for certain, and UNDECIDED elsewhere.

    `own` is what `kernels.table` knows of the originals; `error` is how far its log-partition can be off. Above a
    confidence of `saturated`, in logarithms, nothing is decided.
    """
    for block in range(start, stop):
        known = own[block * KNOWN * LANES : (block + 1) * KNOWN * LANES]
        last = looks[block * LOOK * LANES : (block + 1) * LOOK * LANES]
        present = scales[block * LANES : (block + 1) * LANES]
        out = groups[block * LANES : (block + 1) * LANES]
        for lane in range(LANES):
            confidence = -known[F * LANES + lane]
            close = CLOSE + error * known[AGAINST * LANES + lane]
            at, value, slope = last[AT * LANES + lane], last[VALUE * LANES + lane], last[SLOPE * LANES + lane]
            curvature, gap, reach = last[CURVATURE * LANES + lane], last[GAP * LANES + lane], last[RANGE * LANES + lane]
            s = present[lane]
            upper = upper_bound(at, value, slope, gap, s)
            lower = lower_bound(at, value, slope, curvature, gap, reach, log_classes, s)
            kept = last[KEPT * LANES + lane]
            group = kept if confidence < lower - close else UNDECIDED
            group = kept + 1.0 if confidence > upper + close else group
            out[lane] = group if confidence <= saturated else UNDECIDED


@kernel(fastmath=FAST)
def look(chosen, start, stop, view, where, scales, maxima, columns, looks, is_first):  # type: ignore[no-untyped-def]
    """Remember the log-partition of the rows `chosen` and its derivatives at their present scales, in float32.

    Row chosen[k] of the view stands in view[where[k]]. A first look also finds its largest logit, the column of that,
    and how far the smallest lies below.
    """
    n_classes = view.shape[1]
    for k in range(start, stop):
        i, r = chosen[k], where[k]
        place = (i // LANES) * LOOK * LANES + i % LANES
        if is_first:
            best = worst = view[r, 0]
            column = 0
            for j in range(1, n_classes):
                value = view[r, j]
                if value > best:
                    best = value
                    column = j
                if value < worst:
                    worst = value
            maxima[i], columns[i] = best, column
            looks[place + RANGE * LANES] = np.float64(best) - np.float64(worst)
        top, scale = maxima[i], np.float32(scales[i])
        total = first = second = 0.0
        for begin in range(0, n_classes, _BLOCK):
            t = f = q = np.float32(0.0)
            for j in range(begin, min(begin + _BLOCK, n_classes)):
                drop = np.float32(view[r, j] - top)
                weight = exp32(scale * drop)
                pull = weight * drop
                t += weight
                f += pull
                q += pull * drop
            total, first, second = total + t, first + f, second + q
        mean = first / total
        looks[place + AT * LANES] = scales[i]
        looks[place + VALUE * LANES] = np.log(total)
        looks[place + SLOPE * LANES] = mean
        looks[place + CURVATURE * LANES] = max(second / total - mean * mean, 0.0)
