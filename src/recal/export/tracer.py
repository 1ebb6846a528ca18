"""Symbolic arrays: calling a function of arrays with one of them turns it into nodes of an ONNX
graph.

Maps (`recal.maps`) use the Python array API, and transformations (`recal.transforms`) the
operations that numpy and torch share. Both take a `Symbol` in place of an array, so neither needs a
second version for graphs. Constants stay numpy arrays: numpy computes what depends only on them,
and they enter the graph when they are combined with a symbol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from recal.errors import needs_extra
from recal.transforms.arrays import Traced

with needs_extra("onnx", "Writing ONNX files"):
    import onnx as onnx
    import onnx.inliner
    import onnx.version_converter
    from onnx import helper, numpy_helper

# The oldest versions with every node used here; ONNX Runtime 1.15 and later read them.
OPSET, IR_VERSION = 18, 8
# A size that is not fixed, such as the number of rows.
OPEN = -1
Shape = tuple[int, ...]


def _rename(graph: onnx.GraphProto, new: Callable[[str], str]) -> None:
    """Rename all values in a graph and in the bodies of its loops and branches."""
    del graph.value_info[:]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = new(value.name)
    for node in graph.node:
        del node.metadata_props[:]
        node.input[:], node.output[:] = map(new, node.input), map(new, node.output)
        node.name = f"{next(filter(None, node.output))}_{node.op_type}"
        for body in _bodies(node):
            _rename(body, new)


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs inside a loop or branch."""
    kinds = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    return [
        body for value in node.attribute if value.type in kinds for body in (value.g, *value.graphs)
    ]


def _sources(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> set[str]:
    """Return the names of all values that these outputs depend on."""
    names = set(outputs)
    for node in reversed(nodes):
        if names.intersection(node.output):
            names |= _reads(node)
    return names


def _reads(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node and the graphs inside it read."""
    names = set(node.input)
    for body in _bodies(node):
        names.update(name for each in body.node for name in _reads(each))
        names.update(value.name for value in body.output)
    return names


def pruned(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, onnx.TensorProto],
) -> onnx.GraphProto:
    """Return a graph with only the nodes and constants that the outputs need."""
    sources = _sources(nodes, [value.name for value in outputs])
    needed = [node for node in nodes if sources.intersection(node.output)]
    held = [value for key, value in constants.items() if key in sources]
    return helper.make_graph(needed, name, list(inputs), list(outputs), initializer=held)


def value_info(name: str, kind: int, shape: Sequence[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def onnx_type(dtype: str) -> int:
    """Return ONNX's number for a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def dtype_of(value: onnx.ValueInfoProto) -> str:
    """Return the name of a value's dtype."""
    return str(np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)).name)


class Graph:
    """The graph that symbols belong to, as tensors belong to a device.

    Nodes are added to `nodes`, which is another list while the body of a loop is written. A body
    can read names of the graph around it, and all constants are in the outermost graph.
    """

    type = "onnx"

    def __init__(self, opset: int = OPSET) -> None:
        self.opset, self.nodes = opset, list[onnx.NodeProto]()
        self.constants: dict[str, onnx.TensorProto] = {}
        self._count = 0
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def input(self, name: str, dtype: str, shape: Sequence[int]) -> Symbol:
        """Return the symbol of an input, or of another value with this name in the graph."""
        return Symbol(self, name, dtype, shape)

    def name(self) -> str:
        """Return an unused name."""
        self._count += 1
        return f"recal_{self._count}"

    def add(self, kind: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node that reads symbols, constants and names; return the names of its outputs.

        An empty string marks an omitted input.
        """
        read = [value.name if isinstance(value, Symbol) else value for value in inputs]
        read = [value if isinstance(value, str) else self.const(value) for value in read]
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, read, names, f"{names[0]}_{kind}", **attributes))
        return names

    def op(self, kind: str, *inputs: Any, shape: Shape, dtype: str, **attributes: Any) -> Symbol:
        """Add a node with one output, and return its symbol."""
        return Symbol(self, self.add(kind, *inputs, **attributes)[0], dtype, shape)

    def const(self, values: ArrayLike) -> str:
        """Return the name of a constant; equal constants are stored once."""
        array = np.asarray(values)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._names:
            self._names[key] = name = self.name()
            self.constants[name] = numpy_helper.from_array(array, name)
        return self._names[key]

    def splice(self, graph: onnx.GraphProto, feeds: dict[str, str], output: str) -> str:
        """Copy the nodes of `graph`, with inputs from `feeds`; return the new name of `output`.

        Constants are stored once, however often the graph is copied.
        """
        names = {"": "", **feeds}
        for constant in graph.initializer:
            names[constant.name] = f"model_{constant.name}"
            kept = onnx.TensorProto()
            kept.CopyFrom(constant)
            kept.name = names[constant.name]
            self.constants.setdefault(kept.name, kept)
        copy, prefix = onnx.GraphProto(), self.name()
        copy.node.extend(graph.node)
        _rename(copy, lambda name: names.get(name, f"{prefix}_{name}"))
        self.nodes += copy.node
        return names.get(output, f"{prefix}_{output}")

    @contextmanager
    def body(self) -> Iterator[list[onnx.NodeProto]]:
        """Add nodes to the body of a loop, which is yielded."""
        outer, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = outer

    def model(
        self,
        inputs: Sequence[Symbol],
        outputs: dict[str, Symbol],
        opsets: dict[str, int] | None = None,
        ir_version: int = IR_VERSION,
    ) -> onnx.ModelProto:
        """Return the finished model, with its outputs under these names."""
        for name, value in outputs.items():
            self.nodes.append(
                helper.make_node("Identity", [value.name], [name], name=f"{name}_Identity")
            )
        given = [value.described(value.name) for value in inputs]
        results = [value.described(name) for name, value in outputs.items()]
        graph = pruned("recal", self.nodes, given, results, self.constants)
        versions = (opsets or {"": self.opset}).items()
        imports = [helper.make_opsetid(domain, version) for domain, version in versions]
        return helper.make_model(
            graph, opset_imports=imports, ir_version=ir_version, producer_name="recal"
        )


def elementwise(kind: str, *operands: Any, dtype: str | None = None) -> Symbol:
    """Add a node whose operands are converted to one dtype, as numpy promotes them, and broadcast
    to one shape.
    """
    graph = next(each.device for each in operands if isinstance(each, Symbol))
    inputs, common = promoted(*operands)
    return graph.op(kind, *inputs, shape=broadcast(*map(np.shape, inputs)), dtype=dtype or common)


def promoted(*operands: Any) -> tuple[list[Any], str]:
    """Return the operands converted to one dtype, as numpy promotes them, and that dtype."""
    kinds = [np.dtype(each.dtype) if hasattr(each, "dtype") else each for each in operands]
    dtype = np.result_type(*kinds).name
    return [
        each.to(dtype) if isinstance(each, Symbol) else np.asarray(each, dtype) for each in operands
    ], dtype


def _binary(kind: str, dtype: str | None = None, *, swapped: bool = False) -> Callable[..., Symbol]:
    def method(self: Symbol, other: Any) -> Symbol:
        return elementwise(kind, *((other, self) if swapped else (self, other)), dtype=dtype)

    return method


class Symbol(Traced):
    """An array of a graph: its name, dtype and shape, in which a size may be open (-1)."""

    def __init__(self, graph: Graph, name: str, dtype: str, shape: Sequence[int]) -> None:
        self.device, self.name, self.dtype, self.shape = graph, name, dtype, tuple(shape)
        self.ndim = len(self.shape)

    @property
    def namespace(self) -> Any:
        from recal.export import traced_functions  # imported late, because it imports this module

        return traced_functions

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return self.namespace

    def __bool__(self) -> bool:
        raise TypeError(
            "A traced array has no values: write where(condition, a, b) in place of `if condition`."
        )

    def __len__(self) -> int:
        raise TypeError("The number of rows of a traced array is open.")

    __hash__ = object.__hash__

    def described(self, name: str) -> onnx.ValueInfoProto:
        """Return its type and shape; the first open size is that of the batch."""
        sizes: list[Any] = [None if size == OPEN else size for size in self.shape]
        if None in sizes:
            sizes[sizes.index(None)] = "batch"
        return value_info(name, onnx_type(self.dtype), sizes)

    def op(
        self, kind: str, *inputs: Any, shape: Shape, dtype: str | None = None, **attributes: Any
    ) -> Symbol:
        """Add a node that reads this symbol and `inputs`; the result has the same dtype unless
        `dtype` is given.
        """
        return self.device.op(
            kind, self, *inputs, shape=shape, dtype=dtype or self.dtype, **attributes
        )

    __add__ = __radd__ = _binary("Add")
    __mul__ = __rmul__ = _binary("Mul")
    __sub__, __rsub__ = _binary("Sub"), _binary("Sub", swapped=True)
    __truediv__, __rtruediv__ = _binary("Div"), _binary("Div", swapped=True)
    __gt__, __ge__ = _binary("Greater", "bool"), _binary("GreaterOrEqual", "bool")
    __lt__, __le__ = _binary("Less", "bool"), _binary("LessOrEqual", "bool")
    __eq__ = _binary("Equal", "bool")  # type: ignore[assignment]
    __and__ = __rand__ = _binary("And")
    __or__ = __ror__ = _binary("Or")

    def __ne__(self, other: Any) -> Symbol:  # type: ignore[override]
        return ~(self == other)

    def __pow__(self, other: Any) -> Symbol:
        return elementwise("Pow", self, other)

    def __neg__(self) -> Symbol:
        return elementwise("Neg", self)

    def __abs__(self) -> Symbol:
        return elementwise("Abs", self)

    def __invert__(self) -> Symbol:
        return elementwise("Not", self)

    def __matmul__(self, other: Any) -> Symbol:
        """Multiply by a fixed matrix, with the rows flattened: otherwise onnxruntime refuses an
        empty batch.
        """
        matrix = np.asarray(other, self.dtype)
        if self.ndim == 2:
            return self.op("MatMul", matrix, shape=(self.shape[0], matrix.shape[1]))
        flat = self.reshape((OPEN, len(matrix))) @ matrix
        return flat.reshape((*self.shape[:-1], matrix.shape[1]))

    def __rmatmul__(self, other: Any) -> Symbol:
        return (self.swapaxes(-1, -2) @ np.asarray(other).T).swapaxes(-1, -2)

    def to(self, dtype: str) -> Symbol:
        if dtype == self.dtype:
            return self
        return self.op("Cast", shape=self.shape, dtype=dtype, to=onnx_type(dtype))

    # Methods of torch tensors

    def long(self) -> Symbol:
        return self.to("int64")

    def float(self) -> Symbol:
        return self.to("float32")

    def clone(self) -> Symbol:
        return self

    contiguous = detach = clone

    def round(self) -> Symbol:
        return elementwise("Round", self)  # halves to even, as numpy's

    def clip(self, low: Any = None, high: Any = None) -> Symbol:
        ends = ("" if end is None else np.asarray(end, self.dtype) for end in (low, high))
        return self.op("Clip", *ends, shape=self.shape)

    def mean(self, axis: int) -> Symbol:
        return self.reduce("ReduceMean", axis)

    def permute(self, *order: int) -> Symbol:
        return self.op(
            "Transpose", shape=tuple(self.shape[axis] for axis in order), perm=list(order)
        )

    def swapaxes(self, first: int, second: int) -> Symbol:
        order = list(range(self.ndim))
        order[first], order[second] = order[second], order[first]
        return self.permute(*order)

    def reshape(self, shape: Sequence[int]) -> Symbol:
        """Return the array in another shape; one size besides the open one may be inferred."""
        sizes = list(shape)
        if sizes.count(OPEN) > 1:
            fixed = math.prod(size for size in sizes[1:] if size != OPEN)
            sizes[sizes.index(OPEN, 1)] = math.prod(self.shape[1:]) // fixed
        elif OPEN in sizes and OPEN not in self.shape:
            sizes[sizes.index(OPEN)] = math.prod(self.shape) // -math.prod(sizes)
        return self if tuple(sizes) == self.shape else self.op("Reshape", sizes, shape=tuple(sizes))

    def __getitem__(self, key: Any) -> Symbol:
        """Return parts of axes, new axes, and positions along one axis, indexed as in numpy."""
        keys = list(key) if isinstance(key, tuple) else [key]
        dots = [at for at, each in enumerate(keys) if each is Ellipsis]
        if dots:
            missing = self.ndim - sum(each is not None for each in keys) + 1
            keys[dots[0] : dots[0] + 1] = [slice(None)] * missing
        part, axis = self, 0
        for each in keys:
            if each is None:
                part = part.op(
                    "Unsqueeze", [axis], shape=(*part.shape[:axis], 1, *part.shape[axis:])
                )
            elif isinstance(each, slice):
                part = part.part(each, axis)
            else:
                part = part.take(each, axis)
                axis -= isinstance(each, int | np.integer)
            axis += 1
        return part

    def take(self, places: Any, axis: int) -> Symbol:
        places = places if isinstance(places, Symbol) else np.asarray(places, np.int64)
        return self.op("Gather", places, shape=resized(self.shape, axis, *places.shape), axis=axis)

    def reduce(self, kind: str, axis: int | Sequence[int] | None, keepdims: bool = False) -> Symbol:
        axes = range(self.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
        places = sorted(each % self.ndim for each in axes)
        kept = [1 if at in places else size for at, size in enumerate(self.shape)]
        shape = [size for at, size in enumerate(kept) if keepdims or at not in places]
        return self.op(kind, places, shape=tuple(shape), keepdims=int(keepdims))

    def part(self, rows: slice, axis: int) -> Symbol:
        if rows == slice(None):
            return self
        start, stop, step = rows.indices(self.shape[axis])
        size = len(range(start, stop, step))
        if (size, step) == (self.shape[axis], 1):
            return self
        stop = stop if stop >= 0 else -self.shape[axis] - 1  # backwards, including the first
        return self.op(
            "Slice", [start], [stop], [axis], [step], shape=resized(self.shape, axis, size)
        )


def resized(shape: Shape, axis: int, *sizes: int) -> Shape:
    """Return a shape in which `sizes` replace the size of one axis."""
    at = axis % len(shape)
    return (*shape[:at], *sizes, *shape[at + 1 :])


def broadcast(*shapes: Shape) -> Shape:
    """Return the broadcast shape of several arrays; an open size stays open."""
    ndim = max(map(len, shapes))
    columns = zip(*((1,) * (ndim - len(shape)) + tuple(shape) for shape in shapes))
    return tuple(OPEN if OPEN in sizes else max(sizes) for sizes in columns)
