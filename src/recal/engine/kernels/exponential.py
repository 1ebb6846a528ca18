"""Polynomials for exp and log1p that a compiler can turn into vector instructions; numba's own are calls per value.

Written as instructions rather than as compiled functions: each kernel takes them in, and none waits for a function of
its own to be compiled first. Called from compiled code only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# Contraction (fused multiply-add) and nothing more: reassociation would fold `x + ROUND - ROUND` to x. Instructions
# that carry a flag of their own do not take the kernel's.
_FLAGS = ("contract",)
_LOG2_E = 1.4426950408889634
_SMALLEST, _SMALLEST32 = -708.0, -87.0
# ln 2 in two parts, the first with trailing zeros, so that k times it is exact.
_LN2 = (6.93147180369123816490e-01, 1.90821492927058770002e-10)
_LN2_32 = (0.693359375, -2.12194440e-4)
# Adding 1.5 * 2**52 leaves the rounded integer in the low bits of a float64: rounding without a conversion
# instruction, which AVX2 lacks for 64-bit integers. The same for float32.
_ROUND, _ROUND32 = 6755399441055744.0, 12582912.0
_TAYLOR = [1.0 / math.factorial(power) for power in range(12, -1, -1)]
# x / (2 + x) is at most 1/3, and (1/3)**32 less than the last digit.
_LAST_ODD = 31
# Coefficients of r**5..r**2 that make the largest relative error over |r| <= ln(2)/2 smallest: 1.05e-7.
_BEST32 = [0.008312458, 0.04189014, 0.16667116, 0.49999231, 1.0, 1.0]


@intrinsic
def exp(typing_context: Any, x: Any) -> Any:
    """Return e**x for x <= 0 to one unit in the last place of float64; exp(0) is exactly 1, below -708 it is 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        real, (value,) = ir.DoubleType(), arguments
        near = builder.fcmp_ordered(">=", value, real(_SMALLEST), flags=_FLAGS)
        bounded = builder.select(near, value, real(_SMALLEST))
        power = _power(builder, bounded, real, ir.IntType(64), _ROUND, _LN2, _TAYLOR, 52)
        return builder.select(near, power, real(0.0))

    return types.float64(types.float64), generate


@intrinsic
def exp32(typing_context: Any, x: Any) -> Any:
    """Return e**x for float32 x <= 0 within a relative 3e-7; exp32(0) is exactly 1, below -87 it stays at 1.6e-38."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        real, (value,) = ir.FloatType(), arguments
        near = builder.fcmp_ordered(">=", value, real(_SMALLEST32), flags=_FLAGS)
        bounded = builder.select(near, value, real(_SMALLEST32))
        return _power(builder, bounded, real, ir.IntType(32), _ROUND32, _LN2_32, _BEST32, 23)

    return types.float32(types.float32), generate


@intrinsic
def log1p(typing_context: Any, x: Any) -> Any:
    """Return log(1 + x) for x in [0, 1] to two units in the last place, as 2 artanh(x / (2 + x))."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        real, (value,) = ir.DoubleType(), arguments
        w = builder.fdiv(value, builder.fadd(value, real(2.0), flags=_FLAGS), flags=_FLAGS)
        square = builder.fmul(w, w, flags=_FLAGS)
        series = real(1.0 / _LAST_ODD)
        for odd in range(_LAST_ODD - 2, 0, -2):
            series = builder.fadd(builder.fmul(series, square, flags=_FLAGS), real(1.0 / odd), flags=_FLAGS)
        return builder.fmul(builder.fadd(w, w, flags=_FLAGS), series, flags=_FLAGS)

    return types.float64(types.float64), generate


def _power(
    builder: Any, x: Any, real: Any, integer: Any, to_integer: float, ln2: tuple[float, float], poly: list[float],
    mantissa: int,
) -> Any:  # fmt: skip
    """Write e**x = 2**k e**r with k the integer nearest to x / ln 2, and e**r a polynomial."""

    def constant(value: float) -> Any:
        return real(float(np.float32(value)) if real == ir.FloatType() else value)

    def times_plus(a: Any, b: Any, c: Any) -> Any:
        return builder.fadd(builder.fmul(a, b, flags=_FLAGS), c, flags=_FLAGS)

    shifted = times_plus(x, constant(_LOG2_E), constant(to_integer))
    k = builder.fsub(shifted, constant(to_integer), flags=_FLAGS)
    r = x
    for part in ln2:
        r = builder.fsub(r, builder.fmul(k, constant(part), flags=_FLAGS), flags=_FLAGS)
    p = constant(poly[0])
    for coefficient in poly[1:]:
        p = times_plus(p, r, constant(coefficient))
    exponent = builder.shl(builder.bitcast(shifted, integer), integer(mantissa))
    return builder.bitcast(builder.add(builder.bitcast(p, integer), exponent), real)
