"""The rule for ties: which of two confidences is larger where their logarithms are too close to tell."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from recal.engine.kernels.exponential import exp

# Two float32 softmax values whose logarithms differ by more than this are never equal or reversed: every exp, their
# sum in pairs and the quotient err by less than 2e-6 together for up to a million classes.
CLOSE = 1e-5


# Room in a buffer before its values: eight running sums, and the sums that wait for their sibling.
WORK = 8 + 56


@lru_cache(maxsize=8)
def sum_order(count: int) -> NDArray[np.int64]:
    """Return the order in which numpy adds up `count` values: blocks, each with its begin, its length and how many of
    the sums before it are added to it.

    numpy halves what is longer than 128, to a multiple of 8, and adds the halves.
    """

    def blocks(begin: int, length: int) -> list[list[int]]:
        if length <= 128:
            return [[begin, length, 0]]
        half = length // 2
        half -= half % 8
        both = blocks(begin, half) + blocks(begin + half, length - half)
        both[-1][2] += 1
        return both

    return np.array(blocks(0, count), dtype=np.int64)


@njit(cache=True, nogil=True, error_model="numpy")
def _ordered_sum(buffer, order):  # type: ignore[no-untyped-def]
    """Sum the buffer's values in numpy's order, so that the result is numpy's to the bit."""
    waiting = 8
    total = np.float32(0.0)
    for block in range(len(order)):
        begin = order[block, 0] + WORK
        end = begin + order[block, 1]
        total = np.float32(0.0)
        if end - begin >= 8:
            whole = end - (end - begin) % 8
            for lane in range(8):
                buffer[lane] = np.float32(0.0)
            for j in range(begin, whole):
                buffer[(j - begin) & 7] += buffer[j]
            total = (buffer[0] + buffer[1]) + (buffer[2] + buffer[3])
            total += (buffer[4] + buffer[5]) + (buffer[6] + buffer[7])
            begin = whole
        for j in range(begin, end):
            total += buffer[j]
        for _ in range(order[block, 2]):
            waiting -= 1
            total = buffer[waiting] + total
        buffer[waiting] = total
        waiting += 1
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def confidence32(row, top, scale, column, order, buffer):  # type: ignore[no-untyped-def]
    """Return a float32 softmax at `column`: each exp rounded to float32, divided in float32 by their float32 sum.

    `order` is `sum_order` of the number of classes, `buffer` has room for as many float32 after the first `WORK`.
    """
    for j in range(len(row)):
        buffer[WORK + j] = np.float32(exp(scale * (np.float64(row[j]) - top)))
    return np.float64(buffer[WORK + column] / _ordered_sum(buffer, order))


@njit(cache=True, nogil=True, error_model="numpy")
def log_odds(row, scale, column):  # type: ignore[no-untyped-def]
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


# What the rule for ties compares, of many rows; row k stands in logits[index[k]].
@njit(cache=True, nogil=True, error_model="numpy")
def all_confidence32(index, start, stop, logits, tops, scales, columns, order, out):  # type: ignore[no-untyped-def]
    buffer = np.empty(WORK + logits.shape[1], dtype=np.float32)
    for k in range(start, stop):
        out[k] = confidence32(logits[index[k]], np.float64(tops[k]), scales[k], columns[k], order, buffer)


@njit(cache=True, nogil=True, error_model="numpy")
def all_log_odds(index, start, stop, logits, tops, scales, columns, order, out):  # type: ignore[no-untyped-def]
    for k in range(start, stop):
        out[k] = log_odds(logits[index[k]], scales[k], columns[k])
