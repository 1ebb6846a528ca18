"""Resize images along both axes: every pixel of the result is a weighted sum of a few rows, then of
a few columns.
"""

from __future__ import annotations

import numpy as np

from recal.engine import kernel

# Rows of the result that are computed side by side, in vector instructions.
_LANES = 32


@kernel()
def weighted_sums(  # type: ignore[no-untyped-def]
    lines,
    start,
    stop,
    channels,
    rows_to,
    rows_at,
    rows_by,
    columns_to,
    columns_at,
    columns_by,
    steps,
    out,
):
    """Fill images `start` to `stop` of `out`; `recal.transforms.image.Bands` explains the
    arguments.

    `lines` is (n, height, width * channels). Sums are taken in the dtype of the weights, tap after
    tap, with the same bits as numpy's elementwise operations. If `steps` is not 0, they are rounded
    to that many steps and then to whole numbers. Taps are read in pairs, which halves the number of
    writes.
    """
    height, wide = lines.shape[1], lines.shape[2]
    across = np.zeros((_LANES, wide), rows_by.dtype)
    turned = np.empty((wide, _LANES), rows_by.dtype)
    sums, done = np.empty(_LANES, rows_by.dtype), np.empty(_LANES, out.dtype)
    for i in range(start, stop):
        for first in range(0, len(rows_at), _LANES):
            lanes = min(_LANES, len(rows_at) - first)
            for lane in range(lanes):
                line = across[lane]
                for j in range(wide):
                    line[j] = 0
                for k in range(0, rows_by.shape[1], 2):
                    one, other = rows_by[first + lane, k], rows_by[first + lane, k + 1]
                    at = rows_at[first + lane] + k
                    above, below = lines[i, at], lines[i, min(at + 1, height - 1)]
                    for j in range(wide):
                        line[j] = (line[j] + one * above[j]) + other * below[j]
            for j in range(wide):
                for lane in range(_LANES):
                    turned[j, lane] = across[lane, j]
            for j in range(len(columns_at)):
                for channel in range(channels):
                    for lane in range(_LANES):
                        sums[lane] = 0
                    for k in range(0, columns_by.shape[1], 2):
                        one, other = columns_by[j, k], columns_by[j, k + 1]
                        at = (columns_at[j] + k) * channels + channel
                        left, right = turned[at], turned[min(at + channels, wide - 1)]
                        for lane in range(_LANES):
                            sums[lane] = (sums[lane] + one * left[lane]) + other * right[lane]
                    if steps:
                        for lane in range(_LANES):
                            done[lane] = int(np.rint(np.rint(sums[lane] * steps) / steps))
                    else:
                        for lane in range(_LANES):
                            done[lane] = sums[lane]
                    for column in range(columns_to[j], columns_to[j + 1]):
                        for lane in range(lanes):
                            out[i, rows_to[first + lane], column * channels + channel] = done[lane]
            for lane in range(first, first + lanes):
                for row in range(rows_to[lane] + 1, rows_to[lane + 1]):
                    for j in range(wide):
                        out[i, row, j] = out[i, rows_to[lane], j]
