"""Straight-line arithmetic written down as a compiler's instructions, by running it once on numbers that record it.

numba needs a millisecond or two for each operation that it compiles; a kernel with a hundred of them in its innermost
loop would keep a first fit waiting. What has no branch and no loop needs none of that: `Number` turns each operation
into one instruction at once. Instructions carry the flag `contract` (fused multiply-add) and nothing more; an
instruction that has a flag does not take its kernel's, so reordering stays out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

_FLAGS = ("contract",)
_LOG2_E = 1.4426950408889634
_DOUBLE, _FLOAT = ir.DoubleType(), ir.FloatType()
# Below these e**x is taken as 0, or stays where it is in float32.
_SMALLEST = {_DOUBLE: -708.0, _FLOAT: -87.0}
# ln 2 in two parts, the first with trailing zeros, so that k times it is exact.
_LN2 = {_DOUBLE: (6.93147180369123816490e-01, 1.90821492927058770002e-10), _FLOAT: (0.693359375, -2.12194440e-4)}
# Adding 1.5 * 2**52 leaves the rounded integer in the low bits of a float64: rounding without a conversion
# instruction, which AVX2 lacks for 64-bit integers. The same for float32.
_ROUND = {_DOUBLE: 6755399441055744.0, _FLOAT: 12582912.0}
_BITS = {_DOUBLE: (ir.IntType(64), 52), _FLOAT: (ir.IntType(32), 23)}
# For float32: coefficients of r**5..r**2 that make the largest relative error over |r| <= ln(2)/2 smallest, 1.05e-7.
_POWERS = {
    _DOUBLE: [1.0 / math.factorial(power) for power in range(12, -1, -1)],
    _FLOAT: [0.008312458, 0.04189014, 0.16667116, 0.49999231, 1.0, 1.0],
}
# x / (2 + x) is at most 1/3, and (1/3)**32 less than the last digit.
_LAST_ODD = 31


class Number:
    """A number that a kernel will compute: operators write the instruction."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _constant(self, other: Number | float) -> Any:
        if isinstance(other, Number):
            return other.value
        return self.value.type(float(np.float32(other)) if self.value.type == _FLOAT else float(other))

    def _write(self, operation: str, left: Any, right: Any) -> Number:
        return Number(self.builder, getattr(self.builder, operation)(left, right, flags=_FLAGS))

    def __add__(self, other: Number | float) -> Number:
        return self._write("fadd", self.value, self._constant(other))

    def __sub__(self, other: Number | float) -> Number:
        return self._write("fsub", self.value, self._constant(other))

    def __rsub__(self, other: float) -> Number:
        return self._write("fsub", self._constant(other), self.value)

    def __mul__(self, other: Number | float) -> Number:
        return self._write("fmul", self.value, self._constant(other))

    def __truediv__(self, other: Number | float) -> Number:
        return self._write("fdiv", self.value, self._constant(other))

    def __rtruediv__(self, other: float) -> Number:
        return self._write("fdiv", self._constant(other), self.value)

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Number | float) -> Any:
        return self.builder.fcmp_ordered("<", self.value, self._constant(other), flags=_FLAGS)

    def __le__(self, other: Number | float) -> Any:
        return self.builder.fcmp_ordered("<=", self.value, self._constant(other), flags=_FLAGS)

    def where(self, condition: Any, otherwise: Number | float) -> Number:
        """Return this number where the condition holds."""
        return Number(self.builder, self.builder.select(condition, self.value, self._constant(otherwise)))

    def call(self, name: str) -> Number:
        """Return what one of the compiler's own functions gives, such as floor or fabs."""
        function = self.builder.module.declare_intrinsic(f"llvm.{name}", [self.value.type])
        return Number(self.builder, self.builder.call(function, [self.value]))


class Lane:
    """One lane of a block of fields in a float64 array: `lane[field]` loads a number, an assignment stores one."""

    def __init__(self, context: Any, builder: Any, kind: Any, array: Any, lane: Any, width: int) -> None:
        data = context.make_array(kind)(context, builder, array).data
        self._builder, self._width = builder, width
        self._start = builder.gep(data, [lane], inbounds=True)

    def _place(self, field: int) -> Any:
        return self._builder.gep(self._start, [ir.IntType(64)(field * self._width)], inbounds=True)

    def __getitem__(self, field: int) -> Number:
        return Number(self._builder, self._builder.load(self._place(field)))

    def __setitem__(self, field: int, number: Number) -> None:
        self._builder.store(number.value, self._place(field))


def is_fields(*kinds: Any) -> bool:
    """Say whether these are numba's types of float64 arrays without gaps."""
    return all(isinstance(kind, types.Array) and (kind.dtype, kind.layout) == (types.float64, "C") for kind in kinds)


def maximum(a: Number, b: Number | float) -> Number:
    return Number(a.builder, a.builder.select(a < b, a._constant(b), a.value))


def minimum(a: Number, b: Number | float) -> Number:
    return a.where(a < b, b)


def exp(x: Number) -> Number:
    """Return e**x for x <= 0 as 2**k e**r, with k the integer nearest to x / ln 2 and e**r a polynomial."""
    kind = x.value.type
    near = x.builder.fcmp_ordered(">=", x.value, x._constant(_SMALLEST[kind]), flags=_FLAGS)
    bounded = x.where(near, _SMALLEST[kind])
    shifted = bounded * _LOG2_E + _ROUND[kind]
    k = shifted - _ROUND[kind]
    r = bounded
    for part in _LN2[kind]:
        r = r - k * part
    first, second, *others = _POWERS[kind]
    p = r * first + second
    for coefficient in others:
        p = p * r + coefficient
    integer, mantissa = _BITS[kind]
    exponent = x.builder.shl(x.builder.bitcast(shifted.value, integer), integer(mantissa))
    bits = x.builder.add(x.builder.bitcast(p.value, integer), exponent)
    power = Number(x.builder, x.builder.bitcast(bits, kind))
    return power.where(near, 0.0) if kind == _DOUBLE else power


def log1p(x: Number) -> Number:
    """Return log(1 + x) for x in [0, 1] as 2 artanh(x / (2 + x))."""
    w = x / (x + 2.0)
    square = w * w
    series = square * (1.0 / _LAST_ODD) + 1.0 / (_LAST_ODD - 2)
    for odd in range(_LAST_ODD - 4, 0, -2):
        series = series * square + 1.0 / odd
    return (w + w) * series
