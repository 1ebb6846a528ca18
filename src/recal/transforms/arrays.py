"""Numpy arrays and torch tensors: a transformation is written once, with the operations that both
libraries have.

This module never imports torch: a caller with a tensor has already imported it. Numpy computes CPU
tensors in their own memory, so both libraries give the same bits. Tensors on other devices stay
there; they, traced tensors and tensors that need a gradient go through torch's own operations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from recal.errors import InputError

# An array of any library: numpy, torch, or in maps another one that follows the array API.
Array = Any
_INTEGERS = ("uint8", "uint16", "int8", "int16", "int32")
# Sums are rounded to multiples of 1 / STEPS before they are rounded to whole numbers. Otherwise the
# order of summation, which changes the last bits, would decide how a half is rounded. Multiplying
# by a power of two is exact.
STEPS = 2.0**20


class Traced:
    """Base class of arrays that record a graph instead of computing; they have torch's methods and
    a namespace.
    """

    __array_ufunc__ = None  # numpy leaves arithmetic with its own numbers to the traced array
    namespace: Any


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor or a traced array, without importing torch."""
    # Another thread may be loading torch just now.
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return isinstance(value, Traced) or (tensor is not None and isinstance(value, tensor))


def numpy_or_torch(array: Array) -> Any:
    """Return the module, numpy or torch, whose functions take `array`."""
    if isinstance(array, Traced):
        return array.namespace
    return sys.modules["torch"] if is_tensor(array) else np


def compute(function: Callable[[Array], Array], inputs: Any, *, traceable: bool) -> Array:
    """Call `function` on `inputs`: arrays directly, tensors on their device or through numpy.

    `traceable` says that torch has all operations of `function`; other functions run on the CPU,
    and the result is sent back to the inputs' device.
    """
    if not is_tensor(inputs):
        return function(np.asarray(inputs))
    if traceable and not is_plain(inputs):
        return function(inputs)
    torch = sys.modules["torch"]
    host = inputs.detach().cpu()
    if host.dtype == torch.bfloat16:
        return torch.from_numpy(function(host.float().numpy())).to(inputs.device, inputs.dtype)
    return torch.from_numpy(np.ascontiguousarray(function(host.numpy()))).to(inputs.device)


def is_plain(tensor: Any) -> bool:
    """Whether numpy can compute in the tensor's own memory: on the CPU, not traced, without a
    gradient.
    """
    if isinstance(tensor, Traced):
        return False
    torch = sys.modules["torch"]
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
        return False
    if torch.jit.is_tracing() or torch.compiler.is_compiling():
        return False
    return not (tensor.requires_grad and torch.is_grad_enabled())


def dtype_name(array: Array) -> str:
    return str(array.dtype).removeprefix("torch.")


def check_numeric(array: Array, what: str, integers: tuple[str, ...] = _INTEGERS) -> None:
    """Refuse dtypes that a result cannot be converted back to, such as booleans."""
    name = dtype_name(array)
    if name not in (*integers, "float16", "bfloat16", "float32", "float64"):
        raise InputError(
            f"{what} must be floats or one of {', '.join(integers)}, got dtype {name}. "
            f"Convert them first, for instance with .astype('{integers[0]}') or .astype('float32')."
        )


def check_full_scale(x: Array, full: float, spec: str, remedy: str) -> None:
    """Refuse floats beyond full scale, which is never guessed from a batch.

    Traced arrays have no values to check.
    """
    if (is_tensor(x) and not is_plain(x)) or 0 in x.shape:
        return
    largest = max(float(x.max()), -float(x.min()))
    if largest > full * 1.001:
        rule = f"{spec} takes floats up to {full:g}, got {largest:.6g}"
        raise InputError(rule, remedy=remedy)


def to_working(array: Array) -> Array:
    """Return floats wide enough that rounding back to the dtype gives the value nearest to the
    exact result.
    """
    name = dtype_name(array)
    if name in ("float32", "float64"):
        return array
    # Half floats lose nothing in float32. Whole numbers are rounded afterwards and need the wider
    # type.
    lacks_float64 = is_tensor(array) and array.device.type == "mps"
    return cast(array, "float32" if name in ("float16", "bfloat16") or lacks_float64 else "float64")


def cast(array: Array, dtype: str) -> Array:
    """Convert `array` to the dtype of this name."""
    if is_tensor(array):
        return array.to(getattr(numpy_or_torch(array), dtype))
    return array.astype(dtype, copy=False)


def from_working(result: Array, dtype: str) -> Array:
    """Convert back to `dtype`; whole numbers are rounded to nearest, halves to even, and clipped.

    A weighted sum of pixels is often exactly a half, and each runtime sums in its own order.
    Rounding to a grid of 2**-20 first makes all runtimes round it the same way.
    """
    if dtype in _INTEGERS:
        limits = np.iinfo(dtype)
        on_grid = (result * STEPS).round() / STEPS
        result = on_grid.round().clip(limits.min, limits.max)
    return cast(result, dtype)


def constant(values: Any, like: Array) -> Array:
    """Return a fixed numpy array as an array of the kind, dtype and device of `like`."""
    if not is_tensor(like):
        return np.asarray(values, dtype=like.dtype)
    return numpy_or_torch(like).tensor(values, dtype=like.dtype, device=like.device)


def scalar_like(value: float, like: Array) -> Any:
    """Return a number for arithmetic with `like`.

    A trace may store a plain float as float32, which changes halves.
    """
    return constant(value, like) if is_tensor(like) else value


def contiguous(array: Array) -> Array:
    return array.contiguous() if is_tensor(array) else np.ascontiguousarray(array)


def copy(array: Array) -> Array:
    return array.clone() if is_tensor(array) else array.copy()


def roll(array: Array, axis: int, by: int) -> Array:
    """Move an array by `by` places along an axis that is counted from the end; what leaves on one
    side comes back on the other.
    """
    size = int(array.shape[axis])  # a constant when traced
    start = -by % size
    if start == 0:
        return copy(array)
    rest = (slice(None),) * (-axis - 1)
    parts = [array[(..., part, *rest)] for part in (slice(start, size), slice(0, start))]
    return numpy_or_torch(array).concatenate(parts, axis)
