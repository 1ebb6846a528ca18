"""The rule for ties: which of two confidences is larger where their logarithms are too close to tell."""

from __future__ import annotations

import numpy as np
from numba import njit

from recal.kernels.exponential import exp

# Two float32 softmax values whose logarithms differ by more than this are never equal or reversed: every exp, their
# sum in pairs and the quotient err by less than 2e-6 together for up to a million classes.
CLOSE = 1e-5


@njit(cache=True, nogil=True)
def _sum_block(values, start, count):  # type: ignore[no-untyped-def]
    """Sum up to 128 float32 values as numpy does: eight running sums, then the rest."""
    if count < 8:
        total = np.float32(0.0)
        for j in range(start, start + count):
            total += values[j]
        return total
    r0, r1, r2, r3 = values[start], values[start + 1], values[start + 2], values[start + 3]
    r4, r5, r6, r7 = values[start + 4], values[start + 5], values[start + 6], values[start + 7]
    whole = count - count % 8
    for j in range(start + 8, start + whole, 8):
        r0 += values[j]
        r1 += values[j + 1]
        r2 += values[j + 2]
        r3 += values[j + 3]
        r4 += values[j + 4]
        r5 += values[j + 5]
        r6 += values[j + 6]
        r7 += values[j + 7]
    total = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
    for j in range(start + whole, start + count):
        total += values[j]
    return total


@njit(cache=True, nogil=True)
def _pairwise_sum(values, count):  # type: ignore[no-untyped-def]
    """Sum float32 values in numpy's order of pairs, so that the result is numpy's to the bit.

    Written with a stack because numba cannot load a recursive function from its cache.
    """
    start = 0
    if count <= 128:
        return _sum_block(values, start, count)
    sums = np.empty(64, dtype=np.float32)  # what was summed and waits for its sibling
    depth_of = np.empty((3, 64), dtype=np.int64)
    counts, depths, sum_depths = depth_of[0], depth_of[1], depth_of[2]  # what is still to be summed, and how deep
    counts[0], depths[0] = count, 0
    pending, waiting = 1, 0
    while pending > 0:
        size, depth = counts[pending - 1], depths[pending - 1]
        if size > 128:
            half = size // 2
            half -= half % 8
            counts[pending - 1], depths[pending - 1] = size - half, depth + 1
            counts[pending], depths[pending] = half, depth + 1
            pending += 1
            continue
        pending -= 1
        total = _sum_block(values, start, size)
        start += size
        while waiting > 0 and sum_depths[waiting - 1] == depth:
            waiting -= 1
            total = sums[waiting] + total
            depth -= 1
        sums[waiting], sum_depths[waiting] = total, depth
        waiting += 1
    return sums[0]


@njit(cache=True, nogil=True)
def _confidence32(row, top, scale, column, buffer):  # type: ignore[no-untyped-def]
    """Return a float32 softmax at `column`: each exp rounded to float32, divided in float32 by their float32 sum."""
    for j in range(len(row)):
        buffer[j] = np.float32(exp(scale * (np.float64(row[j]) - top)))
    return buffer[column] / _pairwise_sum(buffer, len(row))


@njit(cache=True, nogil=True)
def _log_odds(row, scale, column):  # type: ignore[no-untyped-def]
    """Return log(p / (1 - p)) at `column` without ever forming p, so that nothing saturates."""
    rival = -np.inf
    for j in range(len(row)):
        if j != column:
            rival = max(rival, np.float64(row[j]))
    total = 0.0
    for j in range(len(row)):
        if j != column:
            total += exp(scale * (np.float64(row[j]) - rival))
    return scale * (np.float64(row[column]) - rival) - np.log(total)


@njit(cache=True, nogil=True)
def did_not_rise(row, top, scale, column, view_row, view_top, view_scale, view_column, exact, buffer):  # type: ignore[no-untyped-def]
    """Whether p >= p_t, by the rule for ties."""
    if exact:
        return _log_odds(row, scale, column) >= _log_odds(view_row, view_scale, view_column)
    p = _confidence32(row, top, scale, column, buffer)
    return p >= _confidence32(view_row, view_top, view_scale, view_column, buffer)


@njit(cache=True, nogil=True)
def break_ties(  # type: ignore[no-untyped-def]
    chosen, start, stop, logits, maxima, scales, columns,
    view, view_index, view_maxima, view_scales, view_at, exact, fell,
):  # fmt: skip
    """Fill fell[k] with whether p >= p_t in row chosen[k], by the rule for ties.

    Row chosen[k] of the view stands in view[view_index[k]]; `view_at` is the column at which its confidence is read.
    """
    buffer = np.empty(logits.shape[1], dtype=np.float32)
    for k in range(start, stop):
        i = chosen[k]
        fell[k] = did_not_rise(
            logits[i], np.float64(maxima[i]), scales[i], columns[i],
            view[view_index[k]], np.float64(view_maxima[i]), view_scales[i], view_at[i], exact, buffer,
        )  # fmt: skip
