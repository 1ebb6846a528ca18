"""The namespace of traced arrays: the array API functions that maps use, and the torch functions of
transformations.

At least one argument is a traced array; numpy computes what depends on constants alone.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import finfo as finfo
from numpy.typing import ArrayLike, NDArray

from recal.export.tracer import (
    OPEN,
    Symbol,
    broadcast,
    elementwise,
    onnx,
    onnx_type,
    promoted,
    pruned,
    resized,
    value_info,
)

uint8, uint16, int8, int16, int32, int64 = "uint8", "uint16", "int8", "int16", "int32", "int64"
float16, float32, float64, bool = "float16", "float32", "float64", "bool"


def _by_node(kind: str, dtype: str | None = None) -> Any:
    """Return an elementwise function that adds a node of this kind."""
    return lambda *operands: elementwise(kind, *operands, dtype=dtype)


exp, log, tanh, abs = (_by_node(kind) for kind in ("Exp", "Log", "Tanh", "Abs"))
isnan, maximum, minimum = _by_node("IsNaN", "bool"), _by_node("Max"), _by_node("Min")


def log1p(x: Symbol) -> Symbol:
    """Return log(1 + x) with the digits of x that 1 + x loses; ONNX has no node for it."""
    one = x + 1.0
    return log(one) + (x - (one - 1.0)) / maximum(one, 1e-300)


def clip(x: Symbol, min: Any = None, max: Any = None) -> Symbol:
    return minimum(maximum(x, min), max) if np.ndim(min) or np.ndim(max) else x.clip(min, max)


def where(condition: Any, chosen: Any, other: Any) -> Symbol:
    (chosen, other), dtype = promoted(chosen, other)
    operands = (condition, chosen, other)
    graph = next(each.device for each in operands if isinstance(each, Symbol))
    return graph.op("Where", *operands, shape=broadcast(*map(np.shape, operands)), dtype=dtype)


def astype(x: Symbol, dtype: Any, *, copy: Any = True, device: Any = None) -> Symbol:
    return x.to(np.dtype(dtype).name)


# Constants


def asarray(values: Any, *, dtype: str | None = None, device: Any = None, copy: Any = None) -> Any:
    if isinstance(values, Symbol):
        return values.to(dtype or values.dtype)
    return np.asarray(values, dtype=dtype)


def tensor(values: ArrayLike, dtype: str, device: Any) -> NDArray[Any]:
    return np.asarray(values, dtype)


def full_like(x: Symbol, value: Any, *, dtype: str | None = None, device: Any = None) -> Any:
    dtype = dtype or x.dtype
    if OPEN not in x.shape:
        return np.full(x.shape, value, dtype)
    one = onnx.numpy_helper.from_array(np.full(1, value, dtype))
    shape = x.op("Shape", shape=(x.ndim,), dtype="int64")
    return shape.op("ConstantOfShape", shape=x.shape, dtype=dtype, value=one)


def zeros_like(x: Symbol, *, dtype: str | None = None, device: Any = None) -> Any:
    return full_like(x, 0, dtype=dtype)


def ones_like(x: Symbol, *, dtype: str | None = None, device: Any = None) -> Any:
    return full_like(x, 1, dtype=dtype)


# Along an axis


def _reduction(kind: str, *, of_bools: builtins.bool = False) -> Any:
    def function(
        x: Symbol, axis: Any = None, *, keepdims: builtins.bool = False, dtype: Any = None
    ) -> Symbol:
        result = (x.to("int64") if x.dtype == "bool" else x).reduce(kind, axis, keepdims)
        return result.to("bool") if of_bools else result

    return function


sum = _reduction("ReduceSum")
max = _reduction("ReduceMax")
min = _reduction("ReduceMin")
any = _reduction("ReduceMax", of_bools=True)


def argmax(x: Symbol, *, axis: int, keepdims: builtins.bool = False) -> Symbol:
    shape = resized(x.shape, axis, *([1] if keepdims else []))
    return x.op("ArgMax", shape=shape, dtype="int64", axis=axis % x.ndim, keepdims=int(keepdims))


def softmax(x: Symbol, axis: int) -> Symbol:
    return x.op("Softmax", shape=x.shape, axis=axis)


def cumulative_sum(x: Symbol, *, axis: int, dtype: Any = None) -> Symbol:
    return x.op("CumSum", np.int64(axis % x.ndim), shape=x.shape)


def sort(x: Symbol, *, axis: int = -1) -> Symbol:
    return _ordered(x, axis)[0]


def argsort(x: Symbol, *, axis: int = -1, stable: builtins.bool = True) -> Symbol:
    return _ordered(x, axis)[1]


def _ordered(x: Symbol, axis: int) -> tuple[Symbol, Symbol]:
    at = axis % x.ndim
    values, places = x.device.add("TopK", x, [x.shape[at]], outputs=2, axis=at, largest=0, sorted=1)
    return Symbol(x.device, values, x.dtype, x.shape), Symbol(x.device, places, "int64", x.shape)


def take(x: Any, places: Any, *, axis: int = 0) -> Symbol:
    if isinstance(x, Symbol):
        return x.take(places, axis % x.ndim)
    shape = resized(x.shape, axis, *places.shape)
    return places.device.op(
        "Gather", x, places, shape=shape, dtype=x.dtype.name, axis=axis % x.ndim
    )


def take_along_axis(x: Symbol, places: Symbol, *, axis: int = -1) -> Symbol:
    return x.op("GatherElements", places, shape=places.shape, axis=axis % x.ndim)


def flip(x: Symbol, axes: Sequence[int]) -> Symbol:
    for axis in axes:
        x = x.part(slice(None, None, -1), axis % x.ndim)
    return x


# Products and layout


def matmul(x: Any, y: Any) -> Symbol:
    return x @ y


def reshape(x: Symbol, shape: Sequence[int]) -> Symbol:
    return x.reshape(shape)


def moveaxis(x: Symbol, source: int, target: int) -> Symbol:
    order = [axis for axis in range(x.ndim) if axis != source % x.ndim]
    order.insert(target % x.ndim, source % x.ndim)
    return x if order == list(range(x.ndim)) else x.permute(*order)


def expand_dims(x: Symbol, *, axis: int) -> Symbol:
    return x[(*(slice(None),) * (axis % (x.ndim + 1)), None)]


def concat(parts: Sequence[Any], axis: int = 0) -> Symbol:
    first = next(part for part in parts if isinstance(part, Symbol))
    at = axis % first.ndim
    sizes = [part.shape[at] for part in parts]
    size = OPEN if OPEN in sizes else int(np.sum(sizes))
    shape = resized(broadcast(*(part.shape for part in parts)), at, size)
    return first.device.op("Concat", *parts, shape=shape, dtype=first.dtype, axis=at)


concatenate = concat


def stack(parts: Sequence[Symbol], *, axis: int = 0) -> Symbol:
    return concat([expand_dims(part, axis=axis) for part in parts], axis=axis)


class fft:
    """Spectra of real series along axis 1: both halves, with a last axis for real and imaginary
    parts.

    They use float64: onnxruntime's float32 transform is off by 1e-4 if a length is not a power of
    two.
    """

    @staticmethod
    def rfft(x: Symbol, length: int, axis: int) -> _Spectrum:
        return _Spectrum(_transformed(x.to("float64")[..., None], axis, inverse=0), x.dtype)

    @staticmethod
    def irfft(spectrum: _Spectrum, length: int, axis: int) -> Symbol:
        return _transformed(spectrum.pairs, axis, inverse=1)[..., 0].to(spectrum.dtype)


def _transformed(pairs: Symbol, axis: int, inverse: int) -> Symbol:
    shape = (*pairs.shape[:-1], 2)
    if pairs.device.opset < 20:  # later ones read the axis as an input
        return pairs.op("DFT", shape=shape, axis=axis, inverse=inverse)
    return pairs.op("DFT", "", np.int64(axis), shape=shape, inverse=inverse)


class _Spectrum:
    def __init__(self, pairs: Symbol, dtype: str) -> None:
        self.pairs, self.dtype = pairs, dtype

    def __mul__(self, gain: NDArray[Any]) -> _Spectrum:
        """Multiply the lower half by fixed gains, and the upper half by the same gains in reverse
        order.
        """
        both = np.concatenate([gain, gain[:, -2:0:-1]], axis=1)
        return _Spectrum(self.pairs * both[..., None].astype(np.float64), self.dtype)


# Operations that only graphs have


def repeated(count: int, step: Callable[[Symbol, Symbol], Symbol], state: Symbol) -> Symbol:
    """Apply ``state = step(number, state)`` for each number, of shape (1,), as an ONNX loop."""
    graph = state.device
    number, going, now = graph.name(), graph.name(), graph.name()
    with graph.body() as nodes:
        position = Symbol(graph, number, "int64", ())[None]
        after = step(position, Symbol(graph, now, state.dtype, state.shape)).name
        (goes_on,) = graph.add("Identity", going)
    kind, shape = onnx_type(state.dtype), [None if size == OPEN else size for size in state.shape]
    truth = onnx.TensorProto.BOOL
    inputs = [
        value_info(number, onnx.TensorProto.INT64, []),
        value_info(going, truth, []),
        value_info(now, kind, shape),
    ]
    outputs = [value_info(goes_on, truth, []), value_info(after, kind, shape)]
    body = pruned("recal_loop", nodes, inputs, outputs, {})
    return graph.op(
        "Loop", np.int64(count), "", state, body=body, shape=state.shape, dtype=state.dtype
    )
