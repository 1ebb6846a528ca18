"""An ONNX graph under construction: its nodes in order, its constants, and copies of other graphs
inside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

__all__ = ["IR_VERSION", "OPSET", "Nodes", "TensorProto", "dtype_of", "kind_of", "onnx", "tensor"]
# The oldest versions with every node used here; ONNX Runtime 1.15 and later read them.
OPSET, IR_VERSION = 18, 8


class Nodes:
    """A graph, or the body of a loop or branch inside `parent`; a body can read names of the graphs
    around it.
    """

    def __init__(self, parent: Nodes | None = None) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.root: Nodes = self if parent is None else parent.root
        if parent is None:
            self.constants: dict[str, onnx.TensorProto] = {}
            self.count = 0
            self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def name(self) -> str:
        self.root.count += 1
        return f"recal_{self.root.count}"

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        return self.ops(kind, *inputs, outputs=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node and return the names of its outputs."""
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(
            helper.make_node(kind, list(inputs), names, name=f"{names[0]}_{kind}", **attributes)
        )
        return names

    def const(self, values: ArrayLike) -> str:
        """Return the name of a constant; equal constants are stored once, in the outermost graph."""
        array = np.asarray(values)
        key, names = (array.dtype.str, array.shape, array.tobytes()), self.root._names
        if key not in names:
            names[key] = self.name()
            self.root.constants[names[key]] = numpy_helper.from_array(array, names[key])
        return names[key]

    def as_graph(
        self,
        name: str,
        inputs: Sequence[onnx.ValueInfoProto] = (),
        outputs: Sequence[onnx.ValueInfoProto] = (),
    ) -> onnx.GraphProto:
        """Return the graph with only the nodes and constants that the outputs need."""
        sources = _sources(self.nodes, [value.name for value in outputs])
        nodes = [node for node in self.nodes if sources.intersection(node.output)]
        constants = (
            [value for key, value in self.constants.items() if key in sources]
            if self.root is self
            else []
        )
        return helper.make_graph(nodes, name, list(inputs), list(outputs), initializer=constants)

    def splice(
        self, graph: onnx.GraphProto, prefix: str, feeds: dict[str, str], output: str
    ) -> str:
        """Copy the nodes that `output` needs from `graph`, with inputs from `feeds`; return the
        output's new name.

        Constants are stored once, under `prefix`, however often the graph is copied.
        """
        sources = _sources(graph.node, [output])
        names = dict(feeds)
        for constant in graph.initializer:
            if constant.name not in sources:
                continue
            names[constant.name] = prefix + constant.name
            if names[constant.name] not in self.root.constants:
                kept = onnx.TensorProto()
                kept.CopyFrom(constant)
                kept.name = names[constant.name]
                self.root.constants[kept.name] = kept
        self.nodes += [
            self._renamed(node, names) for node in graph.node if sources.intersection(node.output)
        ]
        return names[output]

    def _renamed(self, node: onnx.NodeProto, names: dict[str, str]) -> onnx.NodeProto:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.metadata_props[:]
        copy.input[:] = [names.get(name, name) for name in node.input]
        for inner in _bodies(copy):
            self._rename_inside(inner, names)
        for name in node.output:
            if name:
                names[name] = self.name()
        copy.output[:] = [names[name] if name else "" for name in node.output]
        copy.name = f"{copy.output[0]}_{node.op_type}"
        return copy

    def _rename_inside(self, graph: onnx.GraphProto, names: dict[str, str]) -> None:
        """Rename in the body of a loop or branch, which can read names around it or shadow them
        with its own.
        """
        inner = dict(names)
        for value in (*graph.input, *graph.initializer):
            inner[value.name] = self.name()
            value.name = inner[value.name]
        nodes = [self._renamed(node, inner) for node in graph.node]
        del graph.node[:], graph.value_info[:]
        graph.node.extend(nodes)
        for value in graph.output:
            value.name = inner.get(value.name, value.name)


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


def tensor(name: str, kind: int, shape: Sequence[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def kind_of(dtype: str) -> int:
    """Return ONNX's number for a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def dtype_of(value: onnx.ValueInfoProto) -> str:
    """Return the name of a value's dtype."""
    return str(np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)).name)
