"""A polynomial exp that a compiler can turn into vector instructions; numba's own np.exp is a call per value."""

from __future__ import annotations

from typing import Any

import numpy as np
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


# The same for float32.
_ROUND32 = np.float32(12582912.0)
_SMALLEST32 = np.float32(-87.0)
_LOG2_E32 = np.float32(1.4426950408889634)
_LN2_HIGH32 = np.float32(0.693359375)
_LN2_LOW32 = np.float32(-2.12194440e-4)
# Coefficients of r**2..r**5 that make the largest relative error over |r| <= ln(2)/2 smallest: 1.05e-7.
_C2, _C3 = np.float32(0.49999231), np.float32(0.16667116)
_C4, _C5 = np.float32(0.04189014), np.float32(0.008312458)
_ONE32 = np.float32(1.0)


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


@intrinsic
def _bits32(typing_context: Any, value: Any) -> Any:
    """Read a float32 as an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def _float32(typing_context: Any, value: Any) -> Any:
    """Read an int32 as a float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


# Contraction (fused multiply-add) and nothing more: reassociation would fold `x + _ROUND - _ROUND` to x. The option
# must be written out, since a function without it inherits that of whichever caller compiles it first.
@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
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


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def exp32(x):  # type: ignore[no-untyped-def]
    """Return e**x for float32 x <= 0 within a relative 3e-7; exp32(0) is exactly 1, below -87 it stays at 1.6e-38."""
    bounded = max(x, _SMALLEST32)
    shifted = bounded * _LOG2_E32 + _ROUND32
    k = shifted - _ROUND32
    r = (bounded - k * _LN2_HIGH32) - k * _LN2_LOW32
    p = _C5 * r + _C4
    p = p * r + _C3
    p = p * r + _C2
    p = p * r + _ONE32
    p = p * r + _ONE32
    return _float32(_bits32(p) + np.int32(_bits32(shifted) << np.int32(23)))
