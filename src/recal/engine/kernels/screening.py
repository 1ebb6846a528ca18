"""Grouping that looks at a view's logits only where it must.

A view's scale changes by one beta between two looks at it. The log-probability b(s) = s * gap - F(s) of a column is
concave in the scale, so its tangent at the last look bounds it from above; chords and a bound on how fast the
curvature can grow bound it from below. Most comparisons are decided by these bounds; the others get a pass over the
row in float32, and those still too close to call are decided by the rule for ties, in full.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from recal.engine.kernels.compiled import CONTRACT, FAST, kernel
from recal.engine.kernels.exponential import exp32
from recal.engine.kernels.grouping import CLOSE
from recal.engine.kernels.instructions import Lane, Number, is_fields, maximum, minimum
from recal.engine.kernels.table import AGAINST, KNOWN, LANES
from recal.engine.kernels.table import VALUE as F

# What is remembered of a row: its last look, how far its smallest logit lies below the largest, how far the one whose
# confidence is read does, and 2 where its prediction is the original's, else 0.
AT, VALUE, SLOPE, CURVATURE, RANGE, GAP, KEPT, LOOK = range(8)
UNDECIDED = -1.0
# Where those fields begin in a block.
_AT, _VALUE, _SLOPE, _CURVATURE, _RANGE = range(0, 5 * LANES, LANES)
_KNOWN, _LOOK = KNOWN * LANES, LOOK * LANES
# float32 sums over more columns than this would lose digits that matter.
_BLOCK = 4096


def upper_bound(at: Number, value: Number, slope: Number, gap: Number | float, s: Number) -> Number:
    """Return an upper bound of b(s) from the last look at the row: the tangent."""
    return at * gap - value + (gap - slope) * (s - at)


def lower_bound(
    at: Number, value: Number, slope: Number, curvature: Number, gap: Number | float, reach: Number,
    log_classes: Number, s: Number,
) -> Number:  # fmt: skip
    """Return a lower bound of b(s) from the last look at the row."""
    step = s - at
    tangent = at * gap - value + (gap - slope) * step
    # Below the last look a chord to b(0) = -log K; above it, F only falls.
    below = minimum(s / at, 1.0)
    chord = s * gap - below * value - (1.0 - below) * log_classes
    # The curvature at s is at most e**x of that at the last look, x = reach * |step|; and e**y <= 1 + y + 0.72 y**2
    # up to y = 1, beyond which nothing is known. What is added to the curvature outweighs its rounding in float32.
    y = 0.125 * reach * step.call("fabs")
    root = 1.0 + y + 0.72 * y * y + 1e30 * maximum(y - 1.0, 0.0)
    growth = root * root * root * root
    bend = 0.5 * step * step * (curvature + 1e-6 * slope * slope + 1e-30) * growth * growth
    return minimum(maximum(tangent - bend, chord), tangent)


@intrinsic
def _screened(
    typing_context: Any, known: Any, last: Any, lane: Any, scale: Any, error: Any, log_classes: Any, saturated: Any
) -> Any:
    """Return the group of the row in one lane, or UNDECIDED."""
    if not is_fields(known, last):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        own, view = (Lane(context, builder, signature.args[k], arguments[k], arguments[2], LANES) for k in range(2))
        s, error, log_classes, saturated = (Number(builder, value) for value in arguments[3:])
        confidence, close = 0.0 - own[F], CLOSE + error * own[AGAINST]
        at, value, slope, curvature, reach, gap, kept = (view[field] for field in range(LOOK))
        lower = lower_bound(at, value, slope, curvature, gap, reach, log_classes, s)
        upper = upper_bound(at, value, slope, gap, s)
        undecided = kept * 0.0 + UNDECIDED
        group = kept.where(confidence < lower - close, undecided)
        group = (kept + 1.0).where(upper + close < confidence, group)
        return group.where(confidence <= saturated, undecided).value

    return types.float64(known, last, types.intp, *[types.float64] * 4), generate


@kernel(fastmath=CONTRACT)
def screen(blocks, start, stop, groups, own, error, looks, scales, log_classes, saturated):  # type: ignore[no-untyped-def]
    """Fill the groups that the last look's bounds decide for certain, and UNDECIDED elsewhere.

    `own` is what `kernels.table` knows of the originals; `error` is how far its log-partition can be off. Above a
    confidence of `saturated`, in logarithms, nothing is decided.
    """
    for block in range(start, stop):
        known = own[block * _KNOWN : (block + 1) * _KNOWN]
        last = looks[block * _LOOK : (block + 1) * _LOOK]
        present = scales[block * LANES : (block + 1) * LANES]
        out = groups[block * LANES : (block + 1) * LANES]
        for lane in range(LANES):
            out[lane] = _screened(known, last, lane, present[lane], error, log_classes, saturated)


@kernel(fastmath=FAST)
def look(chosen, start, stop, view, where, scales, maxima, columns, looks, is_first):  # type: ignore[no-untyped-def]
    """Remember the log-partition of the rows `chosen` and its derivatives at their present scales, in float32.

    Row chosen[k] of the view stands in view[where[k]]. A first look also finds its largest logit, the column of that,
    and how far the smallest lies below.
    """
    n_classes = view.shape[1]
    for k in range(start, stop):
        i, r = chosen[k], where[k]
        place = (i // LANES) * _LOOK + i % LANES
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
            looks[place + _RANGE] = np.float64(best) - np.float64(worst)
        top, scale = maxima[i], np.float32(scales[i])
        total = first = second = 0.0
        for begin in range(0, n_classes, _BLOCK):
            weights = pulls = squares = np.float32(0.0)
            for j in range(begin, min(begin + _BLOCK, n_classes)):
                drop = np.float32(view[r, j] - top)
                weight = exp32(scale * drop)
                pull = weight * drop
                weights += weight
                pulls += pull
                squares += pull * drop
            total += np.float64(weights)
            first += np.float64(pulls)
            second += np.float64(squares)
        mean = first / total
        looks[place + _AT] = scales[i]
        looks[place + _VALUE] = np.log(total)
        looks[place + _SLOPE] = mean
        looks[place + _CURVATURE] = max(second / total - mean * mean, 0.0)
