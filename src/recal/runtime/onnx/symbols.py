"""Arrays that are written down, not computed: what a transformation does to one becomes nodes of an ONNX graph.

Transformations are written once, against what numpy and torch have in common (`recal.transforms.arrays`); a `Symbol`
stands in for a batch there, so a file's views need neither torch nor a second version of every kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.runtime.onnx.nodes import OPSET, Nodes, model_of, onnx, tensor
from recal.runtime.onnx.pieces import Piece, as_piece
from recal.transforms import Transform
from recal.transforms.arrays import Traced

_OPEN = -1
# The opset from which on a Fourier transform reads its axis.
_AXIS_AS_INPUT = 20


def written_views(transforms: Sequence[Transform], batch: Any, opset: int = OPSET) -> Piece:
    """Return what makes the rows of all views, one transformation after the other, of batches like this one."""
    g, dtype = Nodes(), str(batch.dtype).removeprefix("torch.")
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = Symbol(Graph(g, opset), "inputs", dtype, (_OPEN, *(int(size) for size in batch.shape[1:])))
    views = [transform(inputs).name for transform in transforms]
    joined = g.op("Concat", *views, axis=0) if len(views) > 1 else g.op("Identity", views[0])
    g.rename(joined, "views")
    shape = ["batch", *inputs.shape[1:]]
    outputs = [tensor("views", kind, ["rows", *shape[1:]])]
    return as_piece(model_of(g, [tensor("inputs", kind, shape)], outputs, {"": opset}))


class Graph:
    """Where symbols live, as tensors live on a device."""

    type = "onnx"

    def __init__(self, nodes: Nodes, opset: int) -> None:
        self.nodes, self.opset = nodes, opset

    def symbol(self, values: ArrayLike, dtype: str) -> Symbol:
        """Return fixed values as a symbol; what is calculated of such alone is calculated here."""
        array = np.asarray(values, dtype=dtype)
        return Symbol(self, self.nodes.const(array), dtype, array.shape, array)


class Symbol(Traced):
    """An array of a graph: its name, dtype and shape, of which the first size may be open (-1)."""

    def __init__(
        self, graph: Graph, name: str, dtype: str, shape: tuple[int, ...], values: NDArray[Any] | None = None
    ) -> None:
        self.device, self.name, self.dtype, self.shape, self.values = graph, name, dtype, shape, values
        self.ndim = len(shape)

    @property
    def namespace(self) -> type[Functions]:
        return Functions

    def op(
        self, kind: str, *inputs: Any, shape: tuple[int, ...], dtype: str | None = None, **attributes: Any
    ) -> Symbol:
        """Add a node that reads this symbol and `inputs`; whole numbers among those are shapes, axes and indices."""
        g = self.device.nodes
        names = [value.name if isinstance(value, Symbol) else g.const(np.asarray(value)) for value in inputs]
        return Symbol(self.device, g.op(kind, self.name, *names, **attributes), dtype or self.dtype, shape)

    def _with(self, kind: str, other: Any, numpy: Any, *, swapped: bool = False, dtype: str | None = None) -> Symbol:
        beside = other if isinstance(other, Symbol) else self.device.symbol(other, self.dtype)
        first, second = (beside, self) if swapped else (self, beside)
        if first.values is not None and second.values is not None:
            return self.device.symbol(numpy(first.values, second.values), dtype or self.dtype)
        return first.op(kind, second, shape=_broadcast(first.shape, second.shape), dtype=dtype)

    def __add__(self, other: Any) -> Symbol:
        return self._with("Add", other, np.add)

    def __sub__(self, other: Any) -> Symbol:
        return self._with("Sub", other, np.subtract)

    def __rsub__(self, other: Any) -> Symbol:
        return self._with("Sub", other, np.subtract, swapped=True)

    def __mul__(self, other: Any) -> Symbol:
        return self._with("Mul", other, np.multiply)

    def __truediv__(self, other: Any) -> Symbol:
        return self._with("Div", other, np.divide)

    def __gt__(self, other: Any) -> Symbol:
        return self._with("Greater", other, np.greater, dtype="bool")

    def __matmul__(self, other: Symbol) -> Symbol:
        """A product with a fixed matrix, as one of flat rows: onnxruntime takes a batch of no rows only so."""
        if self.values is not None:
            turned = self.device.symbol(self.values.T, self.dtype)
            return (other.swapaxes(-1, -2) @ turned).swapaxes(-1, -2)
        width, out = other.shape
        flat = self.reshape((_OPEN, width)).op("MatMul", other, shape=(_OPEN, out))
        return flat.reshape((*self.shape[:-1], out))

    __radd__, __rmul__ = __add__, __mul__

    def to(self, dtype: str) -> Symbol:
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self if dtype == self.dtype else self.op("Cast", shape=self.shape, dtype=dtype, to=kind)

    def long(self) -> Symbol:
        return self.to("int64")

    def clone(self) -> Symbol:
        return self

    contiguous = clone

    def round(self) -> Symbol:
        return self.op("Round", shape=self.shape)  # halves to even, as numpy's

    def clip(self, low: float | None, high: float | None) -> Symbol:
        least, most = ("" if end is None else self.device.symbol(end, self.dtype).name for end in (low, high))
        g = self.device.nodes
        return Symbol(self.device, g.op("Clip", self.name, least, most), self.dtype, self.shape)

    def mean(self, axis: int) -> Symbol:
        return self.op("ReduceMean", [axis], shape=_without(self.shape, axis), keepdims=0)

    def reshape(self, shape: Sequence[int]) -> Symbol:
        """One size may be left to be found out beside the open one, which always is."""
        given = list(shape)
        if given.count(_OPEN) > 1:
            known = math.prod(size for size in given[1:] if size != _OPEN)
            given[given.index(_OPEN, 1)] = math.prod(self.shape[1:]) // known
        return self.op("Reshape", given, shape=tuple(given))

    def swapaxes(self, first: int, second: int) -> Symbol:
        order = list(range(self.ndim))
        order[first], order[second] = order[second], order[first]
        return self._ordered(order)

    def _ordered(self, order: list[int]) -> Symbol:
        return self.op("Transpose", shape=tuple(self.shape[axis] for axis in order), perm=order)

    def __getitem__(self, key: Any) -> Symbol:
        """Parts of axes, new axes, and places along one axis, as numpy takes them."""
        if isinstance(key, Symbol):  # places in a table
            return self.op("Gather", key, shape=(*key.shape, *self.shape[1:]), axis=0)
        keys = list(key) if isinstance(key, tuple) else [key]
        if Ellipsis in [each for each in keys if not isinstance(each, np.ndarray)]:
            at = keys.index(Ellipsis)
            missing = self.ndim - sum(each is not None for each in keys) + 1
            keys[at : at + 1] = [slice(None)] * missing
        found, axis = self, 0
        for each in keys:
            if each is None:
                shape = (*found.shape[:axis], 1, *found.shape[axis:])
                found = found.op("Unsqueeze", [axis], shape=shape)
            elif isinstance(each, slice):
                found = found._part(each, axis)
            elif isinstance(each, np.ndarray):
                shape = (*found.shape[:axis], len(each), *found.shape[axis + 1 :])
                found = found.op("Gather", each.astype(np.int64), shape=shape, axis=axis)
            else:
                found = found.op("Gather", np.int64(each), shape=_without(found.shape, axis), axis=axis)
                continue
            axis += 1
        return found

    def _part(self, wanted: slice, axis: int) -> Symbol:
        if wanted == slice(None):
            return self
        start, stop, step = wanted.indices(self.shape[axis])
        size = len(range(start, stop, step))
        shape = (*self.shape[:axis], size, *self.shape[axis + 1 :])
        stop = stop if stop >= 0 else -self.shape[axis] - 1  # backwards down to the first
        return self.op("Slice", [start], [stop], [axis], [step], shape=shape)


class _Fourier:
    """Spectra of real series along axis 1, both halves of them, with a last axis for real and imaginary parts.

    In float64: onnxruntime's transform of float32 is off by 1e-4 where a length is no power of two.
    """

    @staticmethod
    def rfft(x: Symbol, length: int, axis: int) -> _Spectrum:
        pairs = x.to("float64")[(*(slice(None),) * x.ndim, None)]
        return _Spectrum(_transformed(pairs, axis, inverse=0), x.dtype)

    @staticmethod
    def irfft(spectrum: _Spectrum, length: int, axis: int) -> Symbol:
        back = _transformed(spectrum.pairs, axis, inverse=1)
        return back[(*(slice(None),) * (back.ndim - 1), 0)].to(spectrum.dtype)


def _transformed(pairs: Symbol, axis: int, inverse: int) -> Symbol:
    shape, g = (*pairs.shape[:-1], 2), pairs.device.nodes
    if pairs.device.opset < _AXIS_AS_INPUT:
        return pairs.op("DFT", shape=shape, axis=axis, inverse=inverse)
    name = g.op("DFT", pairs.name, "", g.const(np.int64(axis)), inverse=inverse)
    return Symbol(pairs.device, name, pairs.dtype, shape)


class _Spectrum:
    def __init__(self, pairs: Symbol, dtype: str) -> None:
        self.pairs, self.dtype = pairs, dtype

    def __mul__(self, gain: Symbol) -> _Spectrum:
        """Multiply by fixed gains of the lower half, and those of the upper half by the same."""
        assert gain.values is not None
        both = np.concatenate([gain.values, gain.values[:, -2:0:-1]], axis=1)
        return _Spectrum(self.pairs * gain.device.symbol(both[..., None], "float64"), self.dtype)


class Functions:
    """What transformations call by the name of numpy's or torch's function."""

    fft = _Fourier
    uint8, uint16, int8, int16, int32 = "uint8", "uint16", "int8", "int16", "int32"
    float16, float32, float64 = "float16", "float32", "float64"

    @staticmethod
    def tensor(values: ArrayLike, dtype: str, device: Graph) -> Symbol:
        return device.symbol(values, dtype)

    @staticmethod
    def flip(x: Symbol, axes: Sequence[int]) -> Symbol:
        for axis in axes:
            x = x._part(slice(None, None, -1), axis % x.ndim)
        return x

    @staticmethod
    def concatenate(parts: Sequence[Symbol], axis: int) -> Symbol:
        first, at = parts[0], axis % parts[0].ndim
        shape = (*first.shape[:at], sum(part.shape[at] for part in parts), *first.shape[at + 1 :])
        return first.op("Concat", *parts[1:], shape=shape, axis=at)

    @staticmethod
    def zeros_like(x: Symbol) -> Symbol:
        return _filled(x, 0)

    @staticmethod
    def ones_like(x: Symbol) -> Symbol:
        return _filled(x, 1)

    @staticmethod
    def moveaxis(x: Symbol, source: int, target: int) -> Symbol:
        order = [axis for axis in range(x.ndim) if axis != source % x.ndim]
        order.insert(target % x.ndim, source % x.ndim)
        return x if order == list(range(x.ndim)) else x._ordered(order)

    @staticmethod
    def amin(x: Symbol, axis: int) -> Symbol:
        return x.op("ReduceMin", [axis], shape=_without(x.shape, axis), keepdims=0)

    @staticmethod
    def amax(x: Symbol, axis: int) -> Symbol:
        return x.op("ReduceMax", [axis], shape=_without(x.shape, axis), keepdims=0)

    @staticmethod
    def where(condition: Symbol, chosen: Symbol, other: Symbol) -> Symbol:
        return condition.op("Where", chosen, other, shape=chosen.shape, dtype=chosen.dtype)

    @staticmethod
    def minimum(x: Symbol, y: Symbol) -> Symbol:
        return x.op("Min", y, shape=_broadcast(x.shape, y.shape))


def _filled(x: Symbol, value: int) -> Symbol:
    one = onnx.numpy_helper.from_array(np.full(1, value, x.dtype))
    return x.op("Shape", shape=(x.ndim,), dtype="int64").op("ConstantOfShape", shape=x.shape, dtype=x.dtype, value=one)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    at = axis % len(shape)
    return (*shape[:at], *shape[at + 1 :])


def _broadcast(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of two arrays together, in which an open size stays open."""
    ndim = max(len(first), len(second))
    pairs = zip((1,) * (ndim - len(first)) + first, (1,) * (ndim - len(second)) + second)
    return tuple(_OPEN if _OPEN in pair else max(pair) for pair in pairs)
