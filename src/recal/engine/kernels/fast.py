"""A row's log-partition in float32: four times faster than `rows`, within a relative 2e-6.

For large problems only, and only where an answer is then confirmed or corrected in float64.
"""

from __future__ import annotations

import numpy as np

from recal.engine.kernels.compiled import FAST, kernel, part_of_kernel
from recal.engine.kernels.exponential import exp32

# float32 sums over more columns than this would lose digits that matter.
_BLOCK = 4096


@part_of_kernel(fastmath=FAST)
def _sums(row, top, scale):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    first = np.float32(0.0)
    second = np.float32(0.0)
    for j in range(len(row)):
        drop = np.float32(row[j] - top)
        weight = exp32(scale * drop)
        pull = weight * drop
        total += weight
        first += pull
        second += pull * drop
    return np.float64(total), np.float64(first), np.float64(second)


@part_of_kernel()
def row_slopes(row, top, scale):  # type: ignore[no-untyped-def]
    """Return F(s) = log sum_j exp(s * (z_j - max z)) of one row and its first two derivatives in s."""
    total, first, second = 0.0, 0.0, 0.0
    for begin in range(0, len(row), _BLOCK):
        more = _sums(row[begin : begin + _BLOCK], top, scale)
        total, first, second = total + more[0], first + more[1], second + more[2]
    mean = first / total
    return np.log(total), mean, max(second / total - mean * mean, 0.0)


@kernel()
def log_partition_and_slopes(logits, start, stop, maxima, scales, out):  # type: ignore[no-untyped-def]
    """Fill F(s) and its first two derivatives in s into out[0], out[1], out[2]. Rows of scale 0 are left out."""
    for i in range(start, stop):
        if scales[i] == 0.0:
            continue
        out[0, i], out[1, i], out[2, i] = row_slopes(logits[i], maxima[i], np.float32(scales[i]))
