"""Symbolic arrays: a function of arrays that is called with one becomes the nodes of an ONNX graph.

Maps (`recal.maps`) are written against the Python array API, and transformations (`recal.transforms`) against what
numpy and torch have in common. Both take a `Symbol` in place of an array. The graph then needs no second version of
either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.export.graph import BOOL, INT64, Nodes, onnx, tensor
from recal.transforms.arrays import Traced

OPEN = -1
# From this opset on, a Fourier transform reads its axis as an input.
_AXIS_AS_INPUT = 20
# Up to this size, comparing with every entry of a sorted table is faster than halving it.
_SHORT_TABLE = 32
Shape = tuple[int, ...]


class Graph:
    """Where symbols live, as tensors live on a device."""

    type = "onnx"

    def __init__(self, nodes: Nodes, opset: int) -> None:
        self.nodes, self.opset = nodes, opset

    def symbol(self, values: ArrayLike, dtype: str | None = None) -> Symbol:
        """Return a constant. What depends on constants alone is computed at once."""
        array = np.asarray(values, dtype=dtype)
        return Symbol(self, None, array.dtype.name, array.shape, array)

    def input(self, name: str, dtype: str, shape: Shape) -> Symbol:
        """Return the symbol of a value that the graph already has."""
        return Symbol(self, name, dtype, shape)


def _binary(kind: str, numpy: Any, dtype: str | None = None, *, swapped: bool = False) -> Callable[..., Symbol]:
    def method(self: Symbol, other: Any) -> Symbol:
        return self._with(kind, other, numpy, swapped=swapped, dtype=dtype)

    return method


def _unary(kind: str, numpy: Any, dtype: str | None = None) -> Any:
    return staticmethod(lambda x: x.elementwise(kind, numpy, dtype))


class Symbol(Traced):
    """An array of a graph: its dtype and its shape, in which a size may be open (-1)."""

    def __init__(
        self, graph: Graph, name: str | None, dtype: str, shape: Shape, values: NDArray[Any] | None = None
    ) -> None:
        self.device, self.dtype, self.shape, self.values = graph, dtype, tuple(shape), values
        self._name = name
        self.ndim = len(self.shape)
        # The node that makes it, for patterns that have a node of their own.
        self.maker: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None

    @property
    def name(self) -> str:
        """The name of the value in the graph; a constant becomes part of the graph here."""
        if self._name is None:
            assert self.values is not None
            self._name = self.device.nodes.const(self.values)
        return self._name

    @property
    def namespace(self) -> type[Functions]:
        return Functions

    def __array_namespace__(self, api_version: str | None = None) -> type[Functions]:
        return Functions

    def __bool__(self) -> bool:
        raise TypeError("A traced array has no values: write where(condition, a, b) in place of `if condition`.")

    def __len__(self) -> int:
        raise TypeError("The number of rows of a traced array is open.")

    __hash__ = object.__hash__

    def op(self, kind: str, *inputs: Any, shape: Shape, dtype: str | None = None, **attributes: Any) -> Symbol:
        """Add a node that reads this symbol and `inputs`; whole numbers among those are shapes, axes and indices."""
        g = self.device.nodes
        names = [value.name if isinstance(value, Symbol) else g.const(np.asarray(value)) for value in inputs]
        made = Symbol(self.device, g.op(kind, self.name, *names, **attributes), dtype or self.dtype, shape)
        made.maker = (kind, (self, *inputs), attributes)
        return made

    def elementwise(self, kind: str, numpy: Any, dtype: str | None = None) -> Symbol:
        if self.values is not None:
            return self.device.symbol(numpy(self.values), dtype or self.dtype)
        return self.op(kind, shape=self.shape, dtype=dtype)

    def beside(self, other: Any) -> tuple[Symbol, Symbol]:
        """Return this and another operand as symbols of one dtype."""
        if not isinstance(other, Symbol):
            plain = not isinstance(other, np.ndarray | np.generic)
            fits = plain and not (isinstance(other, float) and np.dtype(self.dtype).kind in "iub")
            other = self.device.symbol(other, self.dtype if fits else None)
        dtype = np.result_type(self.dtype, other.dtype).name
        return self.to(dtype), other.to(dtype)

    def _with(self, kind: str, other: Any, numpy: Any, *, swapped: bool = False, dtype: str | None = None) -> Symbol:
        first, second = self.beside(other)
        if swapped:
            first, second = second, first
        if first.values is not None and second.values is not None:
            return self.device.symbol(numpy(first.values, second.values), dtype or first.dtype)
        return first.op(kind, second, shape=_broadcast(first.shape, second.shape), dtype=dtype)

    __add__ = __radd__ = _binary("Add", np.add)
    __mul__ = __rmul__ = _binary("Mul", np.multiply)
    __sub__, __rsub__ = _binary("Sub", np.subtract), _binary("Sub", np.subtract, swapped=True)
    __rtruediv__ = _binary("Div", np.divide, swapped=True)
    __gt__, __ge__ = _binary("Greater", np.greater, "bool"), _binary("GreaterOrEqual", np.greater_equal, "bool")
    __lt__, __le__ = _binary("Less", np.less, "bool"), _binary("LessOrEqual", np.less_equal, "bool")
    __eq__ = _binary("Equal", np.equal, "bool")  # type: ignore[assignment]
    __and__ = __rand__ = _binary("And", np.logical_and)
    __or__ = __ror__ = _binary("Or", np.logical_or)
    __mod__ = _binary("Mod", np.mod)

    def __ne__(self, other: Any) -> Symbol:  # type: ignore[override]
        return ~(self == other)

    def __truediv__(self, other: Any) -> Symbol:
        axis = _softmax_axis(self, other)
        if axis is not None:
            assert self.maker is not None
            return _unshifted(self.maker[1][0], axis).op("Softmax", shape=self.shape, axis=axis)
        return self._with("Div", other, np.divide)

    def __pow__(self, other: Any) -> Symbol:
        return self * self if isinstance(other, int) and other == 2 else self._with("Pow", other, np.power)

    def __neg__(self) -> Symbol:
        return self.elementwise("Neg", np.negative)

    def __abs__(self) -> Symbol:
        return self.elementwise("Abs", np.abs)

    def __invert__(self) -> Symbol:
        return self.elementwise("Not", np.logical_not)

    def __matmul__(self, other: Any) -> Symbol:
        """A product with a fixed matrix, as one of flat rows: onnxruntime takes a batch of no rows only so."""
        other = other if isinstance(other, Symbol) else self.device.symbol(other, self.dtype)
        if self.values is not None and other.values is None:
            return (other.swapaxes(-1, -2) @ self.device.symbol(self.values.T, self.dtype)).swapaxes(-1, -2)
        width, out = other.shape
        if self.ndim == 2:
            return self.op("MatMul", other, shape=(self.shape[0], out))
        flat = self.reshape((OPEN, width)).op("MatMul", other, shape=(OPEN, out))
        return flat.reshape((*self.shape[:-1], out))

    def to(self, dtype: str) -> Symbol:
        if dtype == self.dtype:
            return self
        if self.values is not None:
            return self.device.symbol(self.values.astype(dtype))
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.op("Cast", shape=self.shape, dtype=dtype, to=kind)

    def long(self) -> Symbol:
        return self.to("int64")

    def float(self) -> Symbol:
        return self.to("float32")

    def new_tensor(self, values: ArrayLike) -> Symbol:
        return self.device.symbol(values, self.dtype)

    def clone(self) -> Symbol:
        return self

    contiguous = detach = clone

    def round(self) -> Symbol:
        return self.elementwise("Round", np.round)  # halves to even, as numpy's

    def clip(self, low: Any = None, high: Any = None) -> Symbol:
        return Functions.clip(self, low, high)

    def mean(self, axis: int) -> Symbol:
        return Functions.mean(self, axis=axis)

    def reduce(self, kind: str, axis: int | Sequence[int] | None, keepdims: bool, numpy: Any) -> Symbol:
        axes = range(self.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
        places = sorted(each % self.ndim for each in axes)
        if self.values is not None:
            return self.device.symbol(numpy(self.values, axis=tuple(places), keepdims=keepdims))
        kept = [1 if at in places else size for at, size in enumerate(self.shape)]
        shape = tuple(kept) if keepdims else tuple(size for at, size in enumerate(self.shape) if at not in places)
        return self.op(kind, places, shape=shape, keepdims=int(keepdims))

    def reshape(self, shape: Sequence[int]) -> Symbol:
        """One size besides the open one may be left to be inferred."""
        sizes = list(shape)
        if sizes.count(OPEN) > 1:
            fixed = math.prod(size for size in sizes[1:] if size != OPEN)
            sizes[sizes.index(OPEN, 1)] = math.prod(self.shape[1:]) // fixed
        elif OPEN in sizes and OPEN not in self.shape:
            sizes[sizes.index(OPEN)] = math.prod(self.shape) // -math.prod(sizes)
        if self.values is not None:
            return self.device.symbol(self.values.reshape(sizes))
        if tuple(sizes) == self.shape:
            return self
        table = _table_of_flat(self, tuple(sizes))
        return self.op("Reshape", sizes, shape=tuple(sizes)) if table is None else table

    def swapaxes(self, first: int, second: int) -> Symbol:
        order = list(range(self.ndim))
        order[first], order[second] = order[second], order[first]
        return self.ordered(order)

    def ordered(self, order: Sequence[int]) -> Symbol:
        if self.values is not None:
            return self.device.symbol(self.values.transpose(order))
        return self.op("Transpose", shape=tuple(self.shape[axis] for axis in order), perm=list(order))

    def permute(self, *order: int) -> Symbol:
        return self.ordered(order)

    @property
    def T(self) -> Symbol:
        return self.ordered(range(self.ndim)[::-1])

    @property
    def mT(self) -> Symbol:
        return self.swapaxes(-1, -2)

    def expanded(self, axis: int) -> Symbol:
        at = axis % (self.ndim + 1)
        if self.values is not None:
            return self.device.symbol(np.expand_dims(self.values, at))
        return self.op("Unsqueeze", [at], shape=(*self.shape[:at], 1, *self.shape[at:]))

    def __getitem__(self, key: Any) -> Symbol:
        """Parts of axes, new axes, and positions along one axis, as numpy takes them."""
        if self.values is not None and not isinstance(key, Symbol):
            return self.device.symbol(self.values[key])
        if isinstance(key, Symbol):
            return Functions.take(self, key, axis=0)
        keys = list(key) if isinstance(key, tuple) else [key]
        dots = [at for at, each in enumerate(keys) if each is Ellipsis]
        if dots:
            keys[dots[0] : dots[0] + 1] = [slice(None)] * (self.ndim - sum(each is not None for each in keys) + 1)
        part, axis = self, 0
        for each in keys:
            if isinstance(each, int | np.integer):
                part = part.op("Gather", np.int64(each), shape=_without(part.shape, axis), axis=axis)
                continue
            if each is None:
                part = part.expanded(axis)
            elif isinstance(each, slice):
                part = part.part(each, axis)
            else:
                part = Functions.take(part, each, axis=axis)
            axis += 1
        return part

    def part(self, rows: slice, axis: int) -> Symbol:
        if rows == slice(None):
            return self
        start, stop, step = rows.indices(self.shape[axis])
        size = len(range(start, stop, step))
        if (size, step) == (self.shape[axis], 1):
            return self
        shape = (*self.shape[:axis], size, *self.shape[axis + 1 :])
        stop = stop if stop >= 0 else -self.shape[axis] - 1  # backwards down to the first
        return self.op("Slice", [start], [stop], [axis], [step], shape=shape)


class _Fourier:
    """Spectra of real series along axis 1, both halves of them, with a last axis for real and imaginary parts.

    In float64: onnxruntime's transform of float32 is off by 1e-4 where a length is no power of two.
    """

    @staticmethod
    def rfft(x: Symbol, length: int, axis: int) -> _Spectrum:
        return _Spectrum(_transformed(x.to("float64").expanded(-1), axis, inverse=0), x.dtype)

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


_POWERS = (("Exp", np.exp), ("Log", np.log), ("Sqrt", np.sqrt), ("Tanh", np.tanh))
_PARTS = (("Abs", np.abs), ("Sign", np.sign), ("Floor", np.floor), ("Ceil", np.ceil), ("Round", np.round))


class Functions:
    """The functions of the array API that maps use, and those of numpy and torch that transformations use."""

    fft = _Fourier
    uint8, uint16, int8, int16, int32, int64 = "uint8", "uint16", "int8", "int16", "int32", "int64"
    float16, float32, float64 = "float16", "float32", "float64"
    inf, nan, pi, e, newaxis = math.inf, math.nan, math.pi, math.e, None
    finfo, iinfo = staticmethod(np.finfo), staticmethod(np.iinfo)

    # Constants

    @staticmethod
    def asarray(values: Any, *, dtype: str | None = None, device: Graph | None = None, copy: Any = None) -> Any:
        if isinstance(values, Symbol):
            return values if dtype is None else values.to(dtype)
        return np.asarray(values, dtype=dtype) if device is None else device.symbol(values, dtype)

    @staticmethod
    def tensor(values: ArrayLike, dtype: str, device: Graph) -> Symbol:
        return device.symbol(values, dtype)

    @staticmethod
    def arange(*ends: Any, dtype: str | None = None, device: Graph | None = None) -> Any:
        return Functions.asarray(np.arange(*ends, dtype=dtype), device=device)

    @staticmethod
    def full_like(x: Symbol, value: Any, *, dtype: str | None = None, device: Any = None) -> Symbol:
        dtype = dtype or x.dtype
        if OPEN not in x.shape:
            return x.device.symbol(np.full(x.shape, value, dtype))
        one = onnx.numpy_helper.from_array(np.full(1, value, dtype))
        shape = x.op("Shape", shape=(x.ndim,), dtype="int64")
        return shape.op("ConstantOfShape", shape=x.shape, dtype=dtype, value=one)

    @staticmethod
    def zeros_like(x: Symbol, *, dtype: str | None = None, device: Any = None) -> Symbol:
        return Functions.full_like(x, 0, dtype=dtype)

    @staticmethod
    def ones_like(x: Symbol, *, dtype: str | None = None, device: Any = None) -> Symbol:
        return Functions.full_like(x, 1, dtype=dtype)

    # Elementwise

    @staticmethod
    def astype(x: Symbol, dtype: Any, *, copy: Any = True, device: Any = None) -> Symbol:
        return x.to(np.dtype(dtype).name)

    exp, log, sqrt, tanh = (_unary(*each) for each in _POWERS)
    abs, sign, floor, ceil, round = (_unary(*each) for each in _PARTS)
    isnan = _unary("IsNaN", np.isnan, "bool")

    @staticmethod
    def log1p(x: Symbol) -> Symbol:
        """log(1 + x), with the digits of x that 1 + x loses: ONNX has no node for it."""
        one = x + 1.0
        return Functions.log(one) + (x - (one - 1.0)) / Functions.maximum(one, 1e-300)

    @staticmethod
    def expm1(x: Symbol) -> Symbol:
        """exp(x) - 1 by Kahan's quotient, which keeps the digits of a small x."""
        power = Functions.exp(x)
        below = power - 1.0
        logs = Functions.log(power)
        usual = Functions.where(below == -1.0, -1.0, below * x / Functions.where(logs == 0.0, 1.0, logs))
        return Functions.where(power == 1.0, x, usual)

    @staticmethod
    def logaddexp(x: Symbol, y: Any) -> Symbol:
        return Functions.maximum(x, y) + Functions.log1p(Functions.exp(-abs(x - y)))

    @staticmethod
    def isfinite(x: Symbol) -> Symbol:
        return abs(x) < math.inf

    @staticmethod
    def maximum(x: Any, y: Any) -> Symbol:
        x, y = (x, y) if isinstance(x, Symbol) else (y, x)
        return x._with("Max", y, np.maximum)

    @staticmethod
    def minimum(x: Any, y: Any) -> Symbol:
        x, y = (x, y) if isinstance(x, Symbol) else (y, x)
        return x._with("Min", y, np.minimum)

    @staticmethod
    def clip(x: Symbol, min: Any = None, max: Any = None) -> Symbol:
        if x.values is None and all(end is None or isinstance(end, float | int) for end in (min, max)):
            g = x.device.nodes
            least, most = ("" if end is None else g.const(np.asarray(end, x.dtype)) for end in (min, max))
            return Symbol(x.device, g.op("Clip", x.name, least, most), x.dtype, x.shape)
        x = x if min is None else Functions.maximum(x, min)
        return x if max is None else Functions.minimum(x, max)

    @staticmethod
    def where(condition: Any, chosen: Any, other: Any) -> Symbol:
        graph = next(each.device for each in (condition, chosen, other) if isinstance(each, Symbol))
        condition = condition if isinstance(condition, Symbol) else graph.symbol(condition)
        if isinstance(chosen, Symbol):
            chosen, other = chosen.beside(other)
        elif isinstance(other, Symbol):
            other, chosen = other.beside(chosen)
        else:
            chosen, other = graph.symbol(np.asarray(chosen)).beside(np.asarray(other))
        if all(each.values is not None for each in (condition, chosen, other)):
            return graph.symbol(np.where(condition.values, chosen.values, other.values))
        shape = _broadcast(condition.shape, _broadcast(chosen.shape, other.shape))
        return condition.op("Where", chosen, other, shape=shape, dtype=chosen.dtype)

    # Reductions

    @staticmethod
    def sum(x: Symbol, *, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Symbol:
        x = x.to("int64") if x.dtype == "bool" else x
        return x.reduce("ReduceSum", axis, keepdims, np.sum)

    @staticmethod
    def mean(x: Symbol, *, axis: Any = None, keepdims: bool = False) -> Symbol:
        return x.reduce("ReduceMean", axis, keepdims, np.mean)

    @staticmethod
    def max(x: Symbol, *, axis: Any = None, keepdims: bool = False) -> Symbol:
        return x.reduce("ReduceMax", axis, keepdims, np.max)

    @staticmethod
    def min(x: Symbol, *, axis: Any = None, keepdims: bool = False) -> Symbol:
        return x.reduce("ReduceMin", axis, keepdims, np.min)

    @staticmethod
    def amax(x: Symbol, axis: int) -> Symbol:
        return Functions.max(x, axis=axis)

    @staticmethod
    def amin(x: Symbol, axis: int) -> Symbol:
        return Functions.min(x, axis=axis)

    @staticmethod
    def any(x: Symbol, *, axis: Any = None, keepdims: bool = False) -> Symbol:
        return x.to("int64").reduce("ReduceMax", axis, keepdims, np.max).to("bool")

    @staticmethod
    def all(x: Symbol, *, axis: Any = None, keepdims: bool = False) -> Symbol:
        return x.to("int64").reduce("ReduceMin", axis, keepdims, np.min).to("bool")

    @staticmethod
    def argmax(x: Symbol, *, axis: int, keepdims: bool = False) -> Symbol:
        at = axis % x.ndim
        shape = (*x.shape[:at], 1, *x.shape[at + 1 :]) if keepdims else _without(x.shape, at)
        return x.op("ArgMax", shape=shape, dtype="int64", axis=at, keepdims=int(keepdims))

    @staticmethod
    def argmin(x: Symbol, *, axis: int, keepdims: bool = False) -> Symbol:
        return Functions.argmax(-x, axis=axis, keepdims=keepdims)

    @staticmethod
    def cumulative_sum(x: Symbol, *, axis: int, dtype: Any = None) -> Symbol:
        return x.op("CumSum", np.int64(axis % x.ndim), shape=x.shape)

    # Products and layout

    @staticmethod
    def matmul(x: Any, y: Any) -> Symbol:
        return x @ y if isinstance(x, Symbol) else y.device.symbol(x, y.dtype) @ y

    @staticmethod
    def reshape(x: Symbol, shape: Sequence[int]) -> Symbol:
        return x.reshape(shape)

    @staticmethod
    def permute_dims(x: Symbol, axes: Sequence[int]) -> Symbol:
        return x.ordered(list(axes))

    @staticmethod
    def matrix_transpose(x: Symbol) -> Symbol:
        return x.mT

    @staticmethod
    def moveaxis(x: Symbol, source: int, target: int) -> Symbol:
        order = [axis for axis in range(x.ndim) if axis != source % x.ndim]
        order.insert(target % x.ndim, source % x.ndim)
        return x if order == list(range(x.ndim)) else x.ordered(order)

    @staticmethod
    def expand_dims(x: Symbol, *, axis: int) -> Symbol:
        return x.expanded(axis)

    @staticmethod
    def squeeze(x: Symbol, axis: int) -> Symbol:
        return x.op("Squeeze", [axis % x.ndim], shape=_without(x.shape, axis))

    @staticmethod
    def flip(x: Symbol, axes: Any = None, *, axis: Any = None) -> Symbol:
        for each in np.atleast_1d(axes if axis is None else axis):
            x = x.part(slice(None, None, -1), int(each) % x.ndim)
        return x

    @staticmethod
    def concat(parts: Sequence[Any], *, axis: int = 0) -> Symbol:
        graph = next(part.device for part in parts if isinstance(part, Symbol))
        symbols = [part if isinstance(part, Symbol) else graph.symbol(part) for part in parts]
        first, at = symbols[0], axis % symbols[0].ndim
        sizes = [part.shape[at] for part in symbols]
        shape = list(_broadcast_all([part.shape for part in symbols]))
        shape[at] = OPEN if OPEN in sizes else int(np.sum(sizes))
        return first.op("Concat", *symbols[1:], shape=tuple(shape), axis=at)

    @staticmethod
    def concatenate(parts: Sequence[Symbol], axis: int) -> Symbol:
        return Functions.concat(parts, axis=axis)

    @staticmethod
    def stack(parts: Sequence[Symbol], *, axis: int = 0) -> Symbol:
        return Functions.concat([Functions.expand_dims(part, axis=axis) for part in parts], axis=axis)

    @staticmethod
    def unstack(x: Symbol, *, axis: int = 0) -> tuple[Symbol, ...]:
        key = (slice(None),) * (axis % x.ndim)
        return tuple(x[(*key, place)] for place in range(x.shape[axis]))

    @staticmethod
    def parts(x: Symbol, sizes: Sequence[int], *, axis: int) -> list[Symbol]:
        """Return parts of these sizes along an axis, by one node."""
        at, g = axis % x.ndim, x.device.nodes
        names = g.split(x.name, sizes, at)
        shapes = [(*x.shape[:at], size, *x.shape[at + 1 :]) for size in sizes]
        return [Symbol(x.device, name, x.dtype, shape) for name, shape in zip(names, shapes, strict=True)]

    @staticmethod
    def broadcast_to(x: Symbol, shape: Sequence[int]) -> Symbol:
        return x.op("Expand", list(shape), shape=tuple(shape))

    # Order and places

    @staticmethod
    def take(x: Any, places: Any, *, axis: int = 0) -> Symbol:
        graph = x.device if isinstance(x, Symbol) else places.device
        x = x if isinstance(x, Symbol) else graph.symbol(x)
        places = places if isinstance(places, Symbol) else graph.symbol(places, "int64")
        at = axis % x.ndim
        if x.values is not None and places.values is not None:
            return graph.symbol(np.take(x.values, places.values, axis=at))
        return x.op("Gather", places, shape=(*x.shape[:at], *places.shape, *x.shape[at + 1 :]), axis=at)

    @staticmethod
    def take_along_axis(x: Symbol, places: Symbol, *, axis: int = -1) -> Symbol:
        return x.op("GatherElements", places, shape=places.shape, axis=axis % x.ndim)

    @staticmethod
    def sort(x: Symbol, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Symbol:
        return _ordered(x, axis, descending)[0]

    @staticmethod
    def argsort(x: Symbol, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Symbol:
        return _ordered(x, axis, descending)[1]

    @staticmethod
    def searchsorted(table: Any, values: Symbol, *, side: str = "left", sorter: Any = None) -> Symbol:
        """How many entries of a fixed sorted table lie below each value, or at or below it with side="right"."""
        if isinstance(table, Symbol):
            assert table.values is not None, "the table of a traced search is fixed"
            table = table.values
        table = np.asarray(table, values.dtype)
        if len(table) <= _SHORT_TABLE:
            wide = values.expanded(-1)
            return Functions.sum(wide > table if side == "left" else wide >= table, axis=-1)
        # Halving takes five nodes for each doubling of the table, and no memory for its entries.
        padded = values.device.symbol(np.append(table, np.inf))
        place = Functions.zeros_like(values, dtype="int64")
        step = 1 << len(table).bit_length() - 1
        while step:
            further = place + step
            edge = Functions.take(padded, Functions.minimum(further, len(table) + 1) - 1)
            place = Functions.where(edge < values if side == "left" else edge <= values, further, place)
            step //= 2
        return place

    @staticmethod
    def repeated(count: int, step: Callable[[Symbol, Symbol], Symbol], state: Symbol) -> Symbol:
        """Apply ``state = step(number, state)`` for each number, an array of shape (1,), as an ONNX loop."""
        graph = state.device
        outer = graph.nodes
        body = Nodes(outer)
        number, going, now = body.name(), body.name(), body.name()
        graph.nodes = body
        try:
            position = Symbol(graph, number, "int64", ()).expanded(0)
            after = step(position, Symbol(graph, now, state.dtype, state.shape)).name
            goes_on = body.op("Identity", going)
        finally:
            graph.nodes = outer
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(state.dtype))
        shape = [None if size == OPEN else size for size in state.shape]
        inputs = [tensor(number, INT64, []), tensor(going, BOOL, []), tensor(now, kind, shape)]
        made = body.as_graph("recal_loop", inputs, [tensor(goes_on, BOOL, []), tensor(after, kind, shape)])
        name = outer.op("Loop", outer.const(np.int64(count)), "", state.name, body=made)
        return Symbol(graph, name, state.dtype, state.shape)


def _softmax_axis(weights: Symbol, total: Any) -> int | None:
    """Return the axis if weights / total is a softmax, exp(x) / sum(exp(x)): one node in place of five."""
    if not isinstance(total, Symbol) or total.maker is None or weights.maker is None:
        return None
    kind, inputs, attributes = total.maker
    if kind != "ReduceSum" or weights.maker[0] != "Exp" or not attributes["keepdims"] or len(inputs[1]) != 1:
        return None
    return int(inputs[1][0]) if inputs[0].name == weights.name else None


def _table_of_flat(values: Symbol, shape: Shape) -> Symbol | None:
    """Return table[places] where `values` is table[flat places]: a Gather node takes places of any shape."""
    if values.maker is None or values.maker[0] != "Gather" or values.ndim != 1:
        return None
    table, flat = values.maker[1]
    if not isinstance(flat, Symbol) or flat.maker is None or flat.maker[0] != "Reshape":
        return None
    places = flat.maker[1][0]
    return table.op("Gather", places, shape=shape, axis=0) if places.shape == shape and table.ndim == 1 else None


def _unshifted(x: Symbol, axis: int) -> Symbol:
    """Return y where x = y - max(y): a Softmax node subtracts the maximum itself."""
    if x.maker is None or x.maker[0] != "Sub":
        return x
    first, second = x.maker[1]
    is_max = isinstance(second, Symbol) and second.maker is not None and second.maker[0] == "ReduceMax"
    return first if is_max and second.maker[1][0].name == first.name and second.maker[1][1] == [axis] else x


# Under this name only from outside: inside the class it would hide the type.
Functions.bool = "bool"  # type: ignore[attr-defined]


def _ordered(x: Symbol, axis: int, descending: bool) -> tuple[Symbol, Symbol]:
    at, g = axis % x.ndim, x.device.nodes
    values, places = g.ops(
        "TopK", x.name, g.const([x.shape[at]]), outputs=2, axis=at, largest=int(descending), sorted=1
    )
    return Symbol(x.device, values, x.dtype, x.shape), Symbol(x.device, places, "int64", x.shape)


def _without(shape: Shape, axis: int) -> Shape:
    at = axis % len(shape)
    return (*shape[:at], *shape[at + 1 :])


def _broadcast(first: Shape, second: Shape) -> Shape:
    """Return the shape of two arrays together, in which an open size stays open."""
    ndim = max(len(first), len(second))
    pairs = zip((1,) * (ndim - len(first)) + first, (1,) * (ndim - len(second)) + second)
    return tuple(OPEN if OPEN in pair else max(pair) for pair in pairs)


def _broadcast_all(shapes: Sequence[Shape]) -> Shape:
    return shapes[0] if len(shapes) == 1 else _broadcast(shapes[0], _broadcast_all(shapes[1:]))
