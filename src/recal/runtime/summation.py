"""The order in which numpy adds up a row of floats, so that other runtimes can follow it to the bit.

Float32 confidences decide ties, and the last bit of a sum depends on its order. numpy halves a row until a block has at
most 128 values, adds each block in eight lanes, the lanes in pairs, what is left of the last block one by one, and then
the blocks along the tree of halves.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

BLOCK, LANES = 128, 8


def half_of(count: int) -> int:
    """Return how many of `count` values go to the left half."""
    return count // 2 - count // 2 % LANES


def block_sizes(count: int) -> list[int]:
    """Return the sizes of the blocks, from left to right."""
    return [count] if count <= BLOCK else block_sizes(half_of(count)) + block_sizes(count - half_of(count))


@lru_cache(maxsize=32)
def lanes(count: int) -> NDArray[np.int64]:
    """Return the columns that each block's rows of eight hold, (n_blocks, n_rows, 8); `count` stands for a zero."""
    sizes = block_sizes(count)
    places = np.full((len(sizes), max(sizes) // LANES, LANES), count, dtype=np.int64)
    start = 0
    for block, size in enumerate(sizes):
        whole = size - size % LANES
        places[block, : whole // LANES] = np.arange(start, start + whole).reshape(-1, LANES)
        start += size
    return places
