"""A polynomial exp that a compiler can turn into vector instructions; numba's own np.exp is a call per value."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_LOG2_E = 1.4426950408889634
# ln 2 in two parts, the first with trailing zeros, so that k * LN2_HIGH is exact.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
# Adding 1.5 * 2**52 leaves the rounded integer in the low bits of a float64: rounding without a conversion
# instruction, which AVX2 lacks for 64-bit integers.
_ROUND = 6755399441055744.0
_SMALLEST = -708.0


@intrinsic
def _bits(typing_context: Any, value: Any) -> Any:
    """Read a float64 as an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def _float(typing_context: Any, value: Any) -> Any:
    """Read an int64 as a float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


# Reassociation would fold `x + _ROUND - _ROUND` to x. The False must be written out: a function without the option
# inherits it from whichever caller happens to compile it first.
@njit(cache=True, nogil=True, fastmath=False)
def exp(x: float) -> float:
    """Return e**x for x <= 0 to one unit in the last place of float64; exp(0) is exactly 1, below -708 it is 0."""
    shifted = max(x, _SMALLEST) * _LOG2_E + _ROUND
    k = shifted - _ROUND
    r = (max(x, _SMALLEST) - k * _LN2_HIGH) - k * _LN2_LOW
    p = 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    value = _float(_bits(p) + (_bits(shifted) << 52))
    return value if x >= _SMALLEST else 0.0
