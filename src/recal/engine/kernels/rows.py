"""Reductions over the rows of a logit matrix, each row with a scale of its own.

Kernels take arrays and fill arrays for the rows `start` to `stop`; nothing crosses from row to row, so a row's result
is the same bit for bit whatever its batch. `kernels.threads.over_rows` runs them on all cores. Loops go by index
because recent numba turns `for value in row` into code without vector instructions, five times slower.
"""

from __future__ import annotations

import numpy as np

from recal.engine.kernels.compiled import FAST, kernel
from recal.engine.kernels.exponential import exp

# A probability of exactly 0 at the truth is an infinite loss, and nothing is certain: answers stay within these.
ABOVE_ZERO = 1e-300
BELOW_ONE = 1.0 - 2.0**-53


@kernel()
def row_maxima(logits, start, stop, maxima, columns):  # type: ignore[no-untyped-def]
    """Fill each row's largest value and its column, the first one where several are equal."""
    for i in range(start, stop):
        best = logits[i, 0]
        column = 0
        for j in range(1, logits.shape[1]):
            if logits[i, j] > best:
                best = logits[i, j]
                column = j
        maxima[i] = best
        columns[i] = column


@kernel()
def runners_up(logits, start, stop, columns, out):  # type: ignore[no-untyped-def]
    """Fill each row's largest value apart from the one at its column."""
    for i in range(start, stop):
        best = -np.inf
        for j in range(logits.shape[1]):
            if j != columns[i]:
                best = max(best, np.float64(logits[i, j]))
        out[i] = best


@kernel(fastmath=FAST)
def log_partition(logits, start, stop, maxima, scales, out):  # type: ignore[no-untyped-def]
    """Fill F(s) = log sum_j exp(s * (z_j - max z)) into out[0]: minus the log of the confidence."""
    for i in range(start, stop):
        top = np.float64(maxima[i])
        scale = scales[i]
        total = 0.0
        row = logits[i]
        for j in range(len(row)):
            total += exp(scale * (np.float64(row[j]) - top))
        out[0, i] = np.log(total)


@kernel(fastmath=FAST)
def log_partition_and_slopes(logits, start, stop, maxima, scales, out):  # type: ignore[no-untyped-def]
    """Fill F(s) and its first two derivatives in s into out[0], out[1], out[2], in one pass over the row.

    Rows of scale 0 are left out.
    """
    for i in range(start, stop):
        top = np.float64(maxima[i])
        scale = scales[i]
        if scale == 0.0:
            continue
        total = 0.0
        first = 0.0
        second = 0.0
        row = logits[i]
        for j in range(len(row)):
            drop = np.float64(row[j]) - top
            weight = exp(scale * drop)
            pull = weight * drop
            total += weight
            first += pull
            second += pull * drop
        mean = first / total
        out[0, i] = np.log(total)
        out[1, i] = mean
        out[2, i] = max(second / total - mean * mean, 0.0)


@kernel()
def softmax(logits, start, stop, maxima, scales, probs):  # type: ignore[no-untyped-def]
    """Fill softmax(s * z), never exactly 0 or 1.

    The largest logit keeps the largest probability even where a tiny scale would tie them.
    """
    for i in range(start, stop):
        top = np.float64(maxima[i])
        scale = scales[i]
        total = 0.0
        for j in range(logits.shape[1]):
            drop = np.float64(logits[i, j]) - top
            weight = exp(scale * drop)
            if drop < 0.0 and weight > BELOW_ONE:
                weight = BELOW_ONE
            probs[i, j] = weight
            total += weight
        for j in range(logits.shape[1]):
            probs[i, j] = min(max(probs[i, j] / total, ABOVE_ZERO), BELOW_ONE)


@kernel()
def floored_log_softmax(logits, start, stop, maxima, scales, floor, out):  # type: ignore[no-untyped-def]
    """Fill log(max(softmax(s * z), floor))."""
    for i in range(start, stop):
        top = np.float64(maxima[i])
        total = 0.0
        for j in range(logits.shape[1]):
            total += exp(scales[i] * (np.float64(logits[i, j]) - top))
        log_total = np.log(total)
        least = np.log(floor)
        for j in range(logits.shape[1]):
            out[i, j] = max(scales[i] * (np.float64(logits[i, j]) - top) - log_total, least)
