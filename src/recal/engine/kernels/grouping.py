"""The rule for ties: which of two confidences is larger where their logarithms are too close to tell."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from recal.engine.kernels.compiled import kernel, part_of_kernel
from recal.engine.kernels.exponential import exp

# Two float32 softmax values whose logarithms differ by more than this are never equal or reversed: every exp, their
# sum in pairs and the quotient err by less than 2e-6 together for up to a million classes.
CLOSE = 1e-5


@lru_cache(maxsize=8)
def sum_order(count: int) -> NDArray[np.int64]:
    """Return the order in which numpy adds up `count` values, as additions in place: `values[a] += values[b]`.

    The sum ends in values[0]. numpy halves what is longer than 128, to a multiple of 8, and adds the halves; what is
    not, it adds up in eight lanes, then the lanes in pairs, then what is left over.
    """
    steps: list[tuple[int, int]] = []

    def add(begin: int, length: int) -> None:
        if length > 128:
            half = length // 2
            half -= half % 8
            add(begin, half)
            add(begin + half, length - half)
            steps.append((begin, begin + half))
            return
        whole = length - length % 8
        steps.extend((begin + j % 8, begin + j) for j in range(8, whole))
        if whole:
            steps.extend((begin + a, begin + b) for a, b in ((0, 1), (2, 3), (0, 2), (4, 5), (6, 7), (4, 6), (0, 4)))
        steps.extend((begin, begin + j) for j in range(max(whole, 1), length))

    add(0, count)
    return np.array(steps, dtype=np.int64).reshape(-1, 2)


@part_of_kernel()
def confidence32(row, top, scale, column, order, buffer):  # type: ignore[no-untyped-def]
    """Return a float32 softmax at `column`: each exp rounded to float32, divided in float32 by their float32 sum.

    `order` is `sum_order` of the number of classes, `buffer` has room for as many float32.
    """
    for j in range(len(row)):
        buffer[j] = exp(scale * (np.float64(row[j]) - top))
    share = buffer[column]
    for step in range(len(order)):
        buffer[order[step, 0]] += buffer[order[step, 1]]
    return np.float64(share / buffer[0])


@part_of_kernel()
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


# What the rule for ties compares, of many rows; row k stands in logits[index[k]] and has a buffer of its own.
@kernel()
def all_confidence32(index, start, stop, logits, tops, scales, columns, order, buffers, out):  # type: ignore[no-untyped-def]
    for k in range(start, stop):
        out[k] = confidence32(logits[index[k]], np.float64(tops[k]), scales[k], columns[k], order, buffers[k])


@kernel()
def all_log_odds(index, start, stop, logits, tops, scales, columns, order, buffers, out):  # type: ignore[no-untyped-def]
    for k in range(start, stop):
        out[k] = log_odds(logits[index[k]], scales[k], columns[k])
