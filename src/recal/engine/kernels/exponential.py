"""Polynomials for exp and log1p that a compiler can turn into vector instructions; numba's own are calls per value.

Each kernel takes their instructions in, and none waits for a function of its own to be compiled first. For compiled
code only.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from recal.engine.kernels import instructions
from recal.engine.kernels.instructions import Number


@intrinsic
def exp(typing_context: Any, x: Any) -> Any:
    """Return e**x for x <= 0 to one unit in the last place of float64; exp(0) is exactly 1, below -708 it is 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return instructions.exp(Number(builder, arguments[0])).value

    return types.float64(types.float64), generate


@intrinsic
def exp32(typing_context: Any, x: Any) -> Any:
    """Return e**x for float32 x <= 0 within a relative 3e-7; exp32(0) is exactly 1, below -87 it stays at 1.6e-38."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return instructions.exp(Number(builder, arguments[0])).value

    return types.float32(types.float32), generate


@intrinsic
def log1p(typing_context: Any, x: Any) -> Any:
    """Return log(1 + x) for x in [0, 1] to two units in the last place."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return instructions.log1p(Number(builder, arguments[0])).value

    return types.float64(types.float64), generate
