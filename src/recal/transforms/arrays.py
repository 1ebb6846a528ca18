"""One way into numpy and torch: a transformation is written once, against what the two have in common.

Torch is never imported here: a caller with a tensor has imported it. Tensors on the CPU are computed by numpy on the
same memory, so the two give the same bits; a tensor elsewhere stays on its device, and one that is being traced, or
whose gradient is wanted, goes through torch's own operations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from recal.errors import InputError

Array = Any  # numpy.ndarray or torch.Tensor
_INTEGERS = ("uint8", "uint16", "int8", "int16", "int32")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
# What lies closer than half of 1 / STEPS to a half is a half: float64 cannot tell them apart when sums are ordered
# otherwise, and a power of two multiplies without rounding.
STEPS = 2.0**20


class Traced:
    """The base of arrays that are written down as a graph, not computed; they have torch's methods, and a namespace."""

    __array_ufunc__ = None  # numpy leaves arithmetic with its numbers to them
    namespace: Any


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor or its like, without importing torch."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # another thread may be loading torch just now
    return isinstance(value, Traced) or (tensor is not None and isinstance(value, tensor))


def namespace(array: Array) -> Any:
    """Return the module, numpy or torch, whose functions take `array`."""
    if isinstance(array, Traced):
        return array.namespace
    return sys.modules["torch"] if is_tensor(array) else np


def apply(function: Callable[[Array], Array], inputs: Any, *, traceable: bool) -> Array:
    """Call `function` on `inputs`: directly for numpy, and for torch on its device or through numpy.

    `traceable` says that `function` consists of operations that torch has too; others run on the CPU and their
    results are sent back to the inputs' device.
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
    """Whether numpy may compute on the tensor's own memory with nothing lost."""
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
    """Refuse the dtypes for which 'the same dtype back' would have no clear meaning."""
    name = dtype_name(array)
    if name not in integers + _FLOATS:
        raise InputError(
            f"{what} must be floats or one of {', '.join(integers)}, got dtype {name}. "
            f"Convert them first, for instance with .astype('{integers[0]}') or .astype('float32')."
        )


def check_full_scale(x: Array, full: float, spec: str, remedy: str) -> None:
    """Refuse floats beyond full scale: the scale is stated, never guessed from a batch. A trace holds no values."""
    if (is_tensor(x) and not is_plain(x)) or 0 in x.shape:
        return
    largest = max(float(x.max()), -float(x.min()))
    if largest > full * 1.001:
        raise InputError(f"{spec} takes floats up to {full:g}, got {largest:.6g}. {remedy}")


def to_working(array: Array) -> Array:
    """Return floats wide enough that rounding back to the dtype gives the exact result's nearest value."""
    name = dtype_name(array)
    if name in ("float32", "float64"):
        return array
    # Half floats lose nothing in float32; whole numbers are rounded afterwards, so they want the wider type.
    wide = "float32" if name in ("float16", "bfloat16") or _lacks_float64(array) else "float64"
    return cast(array, wide)


def _lacks_float64(array: Array) -> bool:
    return is_tensor(array) and array.device.type == "mps"


def cast(array: Array, dtype: str) -> Array:
    """Return `array` in the dtype of that name."""
    return array.to(getattr(namespace(array), dtype)) if is_tensor(array) else array.astype(dtype, copy=False)


def from_working(result: Array, dtype: str) -> Array:
    """Return to `dtype`; whole numbers are rounded to nearest, halves to even, and clipped.

    A weighted sum of pixels is often a half exactly, and the last bit of a float sum depends on its order, which every
    runtime chooses for itself. So sums are brought to a grid of 2**-20 first: all runtimes round them the same way.
    """
    if dtype in _INTEGERS:
        limits = np.iinfo(dtype)
        on_grid = (result * STEPS).round() / STEPS
        result = on_grid.round().clip(limits.min, limits.max)
    return cast(result, dtype)


def white_of(dtype: str, white: float) -> float:
    """Return the value of full brightness: the dtype's largest for whole numbers, `white` for floats."""
    return float(np.iinfo(dtype).max) if dtype in _INTEGERS else white


def constant(values: Any, like: Array) -> Array:
    """Return a fixed numpy array as an array of the kind, dtype and device of `like`."""
    if not is_tensor(like):
        return np.asarray(values, dtype=like.dtype)
    return namespace(like).tensor(values, dtype=like.dtype, device=like.device)


def number(value: float, like: Array) -> Any:
    """Return a number to calculate with beside `like`.

    In a trace a bare float may be written as a float32, which moves a half; a tensor is kept as it is.
    """
    return constant(value, like) if is_tensor(like) else value


def contiguous(array: Array) -> Array:
    return array.contiguous() if is_tensor(array) else np.ascontiguousarray(array)


def copy(array: Array) -> Array:
    return array.clone() if is_tensor(array) else array.copy()
