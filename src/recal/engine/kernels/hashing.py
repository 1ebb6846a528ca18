"""Hashes of rows: what `recal.engine.same_rows` makes of small arrays in numpy, in one pass."""

from __future__ import annotations

import numpy as np

from recal.engine.kernels.compiled import kernel, part_of_kernel

_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_A, _B, _C = np.uint64(30), np.uint64(27), np.uint64(31)


@part_of_kernel()
def mixed(value):  # type: ignore[no-untyped-def]
    """Spread every bit over all 64 (the finish of splitmix64)."""
    value = value + _STEP
    value = (value ^ (value >> _A)) * _FIRST
    value = (value ^ (value >> _B)) * _SECOND
    return value ^ (value >> _C)


@kernel()
def row_hashes(rows, start, stop, factors, out):  # type: ignore[no-untyped-def]
    """Fill each row's hash, of as many of its numbers, as float32, as there are factors; 0 and -0 are one."""
    for i in range(start, stop):
        total = np.uint64(0)
        for j in range(len(factors)):
            bits = np.float32(np.float32(rows[i, j]) + np.float32(0.0)).view(np.uint32)
            total += np.uint64(bits) * factors[j]
        out[i] = mixed(total)
