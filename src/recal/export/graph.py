"""An ONNX graph in the making: nodes in order, constants beside them, other graphs put in wherever they are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from recal.errors import MissingExtraError

try:
    import onnx
    import onnx.inliner
    import onnx.version_converter
    from onnx import TensorProto, helper, numpy_helper
except ImportError:
    raise MissingExtraError("onnx", "onnx", "Writing ONNX files") from None

__all__ = ["BOOL", "DOUBLE", "FLOAT", "INT64", "IR_VERSION", "OPSET", "Nodes", "TensorProto"]
__all__ += ["model_of", "onnx", "tensor"]
FLOAT, DOUBLE, INT64, BOOL = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL
# The oldest that hold every node used here; ONNX Runtime 1.15 and later read them.
OPSET, IR_VERSION = 18, 8


class Nodes:
    """A graph, or the body of a loop or branch inside `parent`, which reads the names of the graphs around it."""

    def __init__(self, parent: Nodes | None = None) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.shapes: list[onnx.ValueInfoProto] = []
        root = self if parent is None else parent.root
        self.root: Nodes = root
        if parent is None:
            self.constants: dict[str, onnx.TensorProto] = {}
            self.count = 0
            self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        # Nodes by what they do, here and in the graphs around: an equal one is not added again.
        self._done: dict[Any, list[str]] = {} if parent is None else dict(parent._done)

    def name(self) -> str:
        self.root.count += 1
        return f"recal_{self.root.count}"

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        return self.ops(kind, *inputs, outputs=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node and return the names of its outputs; those of an equal node if there is one."""
        key = (kind, inputs, outputs, tuple(sorted((name, str(value)) for name, value in attributes.items())))
        if key in self._done:
            return self._done[key]
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"{names[0]}_{kind}", **attributes))
        self._done[key] = names
        return names

    def const(self, values: ArrayLike) -> str:
        """Return the name of a constant; equal ones are kept once, in the outermost graph."""
        array = np.asarray(values)
        key = (array.dtype.str, array.shape, array.tobytes())
        known = self.root._known
        if key not in known:
            known[key] = self.name()
            self.root.constants[known[key]] = numpy_helper.from_array(array, known[key])
        return known[key]

    def rename(self, value: str, name: str) -> None:
        """Make a value an output of the whole graph, under this name."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name=f"{name}_Identity"))

    def shaped(self, value: str, element_type: int, shape: Sequence[Any]) -> str:
        """Say a value's shape. Where sizes have names, runtimes see that sums are of equal shapes, and fuse them."""
        self.shapes.append(tensor(value, element_type, shape))
        return value

    def cast(self, value: str, to: int) -> str:
        return self.op("Cast", value, to=to)

    def row(self, stacked: str, index: int) -> str:
        """Return one entry along the first axis, without that axis."""
        return self.op("Gather", stacked, self.const(np.int64(index)), axis=0)

    def part(self, value: str, begin: int, end: int, axis: int) -> str:
        return self.op("Slice", value, self.const([begin]), self.const([end]), self.const([axis]))

    def split(self, value: str, sizes: Sequence[int], axis: int) -> list[str]:
        if len(sizes) == 1:
            return [value]
        return self.ops("Split", value, self.const(np.array(sizes, np.int64)), outputs=len(sizes), axis=axis)

    def reduce(self, kind: str, value: str, axis: int, keepdims: int = 1) -> str:
        return self.op(kind, value, self.const([axis]), keepdims=keepdims)

    def as_graph(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto] = (), outputs: Sequence[onnx.ValueInfoProto] = ()
    ) -> onnx.GraphProto:
        """Return the graph of what the outputs need; other nodes and constants are left out."""
        needed, nodes = {value.name for value in outputs}, []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(_reads(node))
                nodes.append(node)
        constants = [value for key, value in self.constants.items() if key in needed] if self.root is self else []
        shapes = [value for value in self.shapes if value.name in needed]
        return helper.make_graph(
            nodes[::-1], name, list(inputs), list(outputs), initializer=constants, value_info=shapes
        )

    def choose(
        self, condition: str, then: Nodes, otherwise: Nodes, outputs: Sequence[tuple[str, str, int]]
    ) -> list[str]:
        """Add an If; `outputs` are pairs of names, one of either branch, with their element type."""
        branches = {
            "then_branch": then.as_graph("recal_then", outputs=[tensor(name, kind, None) for name, _, kind in outputs]),
            "else_branch": otherwise.as_graph(
                "recal_else", outputs=[tensor(name, kind, None) for _, name, kind in outputs]
            ),
        }
        return self.ops("If", condition, outputs=len(outputs), **branches)

    def splice(self, graph: onnx.GraphProto, prefix: str, feeds: dict[str, str], output: str) -> str:
        """Put a copy of what `output` needs of `graph` here, its inputs read from `feeds`; return its name now.

        Its constants are kept once under `prefix`, however often it is put in.
        """
        needed = _needed(graph, output)
        names = dict(feeds)
        for constant in graph.initializer:
            if constant.name not in needed:
                continue
            names[constant.name] = prefix + constant.name
            if names[constant.name] not in self.root.constants:
                kept = onnx.TensorProto()
                kept.CopyFrom(constant)
                kept.name = names[constant.name]
                self.root.constants[kept.name] = kept
        for node in graph.node:
            if needed.intersection(node.output):
                self.nodes.append(self._renamed(node, names))
        return names[output]

    def _renamed(self, node: onnx.NodeProto, names: dict[str, str]) -> onnx.NodeProto:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.metadata_props[:]
        copy.input[:] = [names.get(name, name) for name in node.input]
        for attribute in copy.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                self._rename_inside(inner, names)
        for name in node.output:
            if name:
                names[name] = self.name()
        copy.output[:] = [names[name] if name else "" for name in node.output]
        copy.name = f"{copy.output[0]}_{node.op_type}"
        return copy

    def _rename_inside(self, graph: onnx.GraphProto, names: dict[str, str]) -> None:
        """Rename in the body of a loop or branch, which reads the names around it and may hide them by its own."""
        inner = dict(names)
        for value in (*graph.input, *graph.initializer):
            inner[value.name] = self.name()
            value.name = inner[value.name]
        nodes = [self._renamed(node, inner) for node in graph.node]
        del graph.node[:], graph.value_info[:]
        graph.node.extend(nodes)
        for value in graph.output:
            value.name = inner.get(value.name, value.name)


def _needed(graph: onnx.GraphProto, output: str) -> set[str]:
    """Return the names of all values that an output is made from."""
    found = {output}
    for node in reversed(graph.node):
        if found.intersection(node.output):
            found.update(_reads(node))
    return found


def _reads(node: onnx.NodeProto) -> set[str]:
    """Return what a node reads, and what the graphs inside it read."""
    found = set(node.input)
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
            found.update(name for each in inner.node for name in _reads(each))
            found.update(value.name for value in inner.output)
    return found


def tensor(name: str, element_type: int, shape: Sequence[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type, shape)


def model_of(
    graph: Nodes,
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    opsets: dict[str, int] | None = None,
    ir_version: int = IR_VERSION,
) -> onnx.ModelProto:
    """Return the finished model; each domain is imported once."""
    imports = [helper.make_opsetid(domain, version) for domain, version in (opsets or {"": OPSET}).items()]
    built = graph.as_graph("recal", inputs, outputs)
    model = helper.make_model(built, opset_imports=imports, ir_version=ir_version)
    model.producer_name = "recal"
    return model
