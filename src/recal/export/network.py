"""The parts of an exported file that exist as graphs: the user's network, and code that torch traced.

A part is an ONNX graph with one input and one output. Exporters often fix the batch size of a
network. This module makes it variable ("opens" it), and runs the changed network to check that its
answers stay the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.models.onnx import (
    FLOATS,
    Output,
    check_external_data,
    choose_output,
    open_session,
    reason_of,
)
from recal.errors import FileError, InputError
from recal.export.tracer import IR_VERSION, OPEN, OPSET, Symbol, dtype_of, onnx, tensor

# How an exported file is opened to check or to time it: the number of threads, and the providers.
ON_ONE_THREAD = ("1", ("CPUExecutionProvider",))


@dataclass(frozen=True)
class NetworkPart:
    """A graph with one input and one output; called with an array, it is copied into its graph."""

    model: onnx.ModelProto
    input: onnx.ValueInfoProto
    output: onnx.ValueInfoProto
    name: str  # the beginning of its constants' names in a file

    def __call__(self, rows: Symbol) -> Symbol:
        graph, feeds = rows.device, {self.input.name: rows.to(dtype_of(self.input)).name}
        name = graph.nodes.splice(self.model.graph, f"{self.name}_", feeds, self.output.name)
        return graph.input(
            name, dtype_of(self.output), [size or OPEN for size in sizes(self.output)]
        )

    @property
    def ends_in_softmax(self) -> bool:
        """Whether the output comes from a softmax node."""
        same = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout")
        makers = {name: node for node in self.model.graph.node for name in node.output}
        node = makers.get(self.output.name)
        while node is not None and node.op_type in same:  # it does not change values
            node = makers.get(node.input[0])
        return node is not None and node.op_type == "Softmax"


def sizes(value: onnx.ValueInfoProto) -> list[int]:
    """Return the value's shape; 0 marks a variable size, which some exporters write as -1."""
    return [max(0, int(axis.dim_value)) for axis in value.type.tensor_type.shape.dim]


def rows_of(part: NetworkPart) -> int:
    """Return how many rows the part takes at once; 0 means any number."""
    return (sizes(part.input) or [0])[0]


def as_part(model: onnx.ModelProto, name: str = "model") -> NetworkPart:
    """Return a model with one input as a part; if it has several outputs, take the one with the
    class scores.
    """
    constants = {constant.name for constant in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1:
        raise InputError(f"The ONNX model must have one input, the batch; it has {len(inputs)}.")
    listed = [Output(value.name, *_described(value)) for value in model.graph.output]
    chosen = choose_output("The ONNX model", listed, inputs=inputs[0].name)
    output = next(value for value in model.graph.output if value.name == chosen.name)
    return NetworkPart(
        model, inputs[0], _unzipped(model, output) if chosen.is_zipped else output, name
    )


def _described(value: onnx.ValueInfoProto) -> tuple[str, int | None]:
    """Return a value's type as onnxruntime writes it, and its number of axes."""
    if value.type.HasField("sequence_type"):
        return "seq(map())", None
    kinds = (
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
    )
    names: dict[int, str] = dict(zip(kinds, FLOATS))
    kind = names.get(value.type.tensor_type.elem_type, "tensor(other)")
    axes = len(value.type.tensor_type.shape.dim)
    return kind, axes or None


def _unzipped(model: onnx.ModelProto, output: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Return the array from which skl2onnx makes one dictionary per row."""
    node = next((node for node in model.graph.node if output.name in node.output), None)
    labels = [] if node is None else [list(a.strings) or list(a.ints) for a in node.attribute]
    if node is None or node.op_type != "ZipMap" or labels[0] != sorted(labels[0]):
        raise InputError(
            f"The ONNX model's output {output.name!r} is a list of dictionaries, which cannot be exported",
            remedy="Convert the model again with options={'zipmap': False}",
        )
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    kinds = {value.name: value.type.tensor_type.elem_type for value in inferred}
    kind = kinds.get(node.input[0]) or onnx.TensorProto.FLOAT
    return tensor(node.input[0], kind, ["batch", len(labels[0])])


def read_model(model: str | os.PathLike[str] | onnx.ModelProto) -> NetworkPart:
    """Return a user's model, at an opset that the nodes around it can use, too."""
    if not isinstance(model, onnx.ModelProto):
        model = _load(model)
    if model.graph.sparse_initializer:
        raise InputError(
            "The ONNX model holds sparse weights, which cannot be exported; write them as dense ones."
        )
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    version = max(
        (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")),
        default=OPSET,
    )
    if version < OPSET:
        try:
            model = onnx.version_converter.convert_version(model, OPSET)
        except Exception as error:
            raise InputError(
                f"The ONNX model's operations (version {version}) cannot be brought to version {OPSET}: "
                f"{reason_of(error)}. Export the model again at opset {OPSET} or later."
            ) from error
    return as_part(model)


def _load(path: str | os.PathLike[str]) -> onnx.ModelProto:
    check_external_data(Path(path))
    try:
        return onnx.load(os.fspath(path))
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:
        raise FileError(
            f"{path} is not an ONNX model: {reason_of(error)}. Copy or export it again."
        ) from error


def example_of(
    part: NetworkPart, dtype: Any = None, shape: Sequence[int] | None = None
) -> np.ndarray[Any, Any]:
    """Return a batch of one row of zeros; shape and dtype default to the model's own."""
    if shape is None:
        shape = sizes(part.input)[1:]
        if not shape or 0 in shape:
            raise InputError(
                f"The model's input {part.input.name!r} leaves its shape open: pass an example batch (--shape)."
            )
    return np.zeros((1, *shape), dtype_of(part.input) if dtype is None else dtype)


def opsets_of(parts: Sequence[NetworkPart]) -> dict[str, int]:
    """Return the newest version of each domain that the parts import; ai.onnx gets the empty name.

    A part may import this domain twice, under both names.
    """
    versions: dict[str, int] = {"": OPSET}
    for part in parts:
        for entry in part.model.opset_import:
            domain = "" if entry.domain == "ai.onnx" else entry.domain
            versions[domain] = max(versions.get(domain, 0), int(entry.version))
    return versions


def trace_module(module: Any, example: Any, name: str) -> NetworkPart:
    """Return a torch module as a part that takes any number of rows."""
    from recal.export.torch_module import as_onnx

    model = as_onnx(module, example, "recal_logits")
    model = onnx.inliner.inline_local_functions(model) if model.functions else model
    model.ir_version = IR_VERSION  # torch writes a newer version, but uses only its metadata fields
    return as_part(model, name)


def open_batch(part: NetworkPart, shape: tuple[int, ...]) -> NetworkPart:
    """Return a model with a fixed batch size as one that takes any number of rows and gives the
    same answers.

    `shape` is the shape of one input. The answers to a few random rows are compared; if they
    change, the model is refused.
    """
    fixed = rows_of(part)
    free = fix_reshapes(part, shape, fixed)
    rows = _random(fixed + 1, shape, part)
    try:
        first, last = (
            run_model(part.model, part.input.name, some)[part.output.name]
            for some in (rows[:-1], rows[1:])
        )
        together = run_model(free.model, free.input.name, rows)[free.output.name]
        apart = np.concatenate([first, last[-1:]])
        same = np.allclose(together, apart, rtol=1e-4, atol=1e-4)
    except InputError:
        same = False
    if not same:
        raise InputError(
            f"The model takes exactly {fixed} {'input' if fixed == 1 else 'inputs'} at a time, and opening its batch "
            "changes its answers or breaks it",
            remedy="Views need more rows: export the model again with an open batch size (a dynamic first axis)",
        )
    return free


def fix_reshapes(
    part: NetworkPart, shape: tuple[int, ...], fixed: int | None = None
) -> NetworkPart:
    """Return the model with an open batch, in which every Reshape gives all sizes except the first.

    Some exporters write Reshapes that copy the batch size and infer another size, which fails for
    an empty batch. Others write a `fixed` batch size. The other sizes are taken from a run of the
    model.
    """
    model = onnx.ModelProto()
    model.CopyFrom(part.model)
    counts = (fixed,) if fixed else (2, 3)
    inner = _sizes_of_reshapes(part, [_random(count, shape, part) for count in counts])
    for number, node in enumerate(model.graph.node):
        if node.output[0] in inner:
            name = f"recal_shape_{number}"
            values = np.array([-1, *inner[node.output[0]]], np.int64)
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
            node.input[1] = name
    del model.graph.value_info[:]
    first = next(value for value in model.graph.input if value.name == part.input.name)
    for value in (first, *model.graph.output):
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for axis, size in zip(first.type.tensor_type.shape.dim[1:], shape):
        axis.dim_value = size
    return as_part(model)


def _sizes_of_reshapes(
    part: NetworkPart, batches: list[NDArray[Any]]
) -> dict[str, tuple[int, ...]]:
    """Return the output shape of every Reshape, without the first size, if it is the same in all
    runs.
    """
    model = onnx.ModelProto()
    model.CopyFrom(part.model)
    names = [node.output[0] for node in model.graph.node if node.op_type == "Reshape"]
    listed = {value.name for value in model.graph.output}
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in names if name not in listed
    )
    try:
        answers = [run_model(model, part.input.name, rows) for rows in batches]
    except InputError:  # a model that does not run shows no sizes
        return {}
    shapes = {name: {each[name].shape[1:] for each in answers} for name in names}
    return {name: found.pop() for name, found in shapes.items() if len(found) == 1}


def run_model(
    model: onnx.ModelProto, name: str, batch: NDArray[Any] | None
) -> dict[str, NDArray[Any]]:
    """Return the model's outputs by name, or none without a batch; raise if onnxruntime refuses the
    model.
    """
    try:
        session = open_session(model.SerializeToString(), *ON_ONE_THREAD)
        names = [value.name for value in session.get_outputs()]
        return {} if batch is None else dict(zip(names, session.run(names, {name: batch})))
    except Exception as error:
        raise InputError(
            f"onnxruntime cannot run this model: {reason_of(error)}. No file was written."
        ) from error


def _random(count: int, shape: tuple[int, ...], part: NetworkPart) -> NDArray[Any]:
    rng, dtype = np.random.default_rng(0), np.dtype(dtype_of(part.input))
    if np.issubdtype(dtype, np.floating):
        return rng.random((count, *shape)).astype(dtype)
    return rng.integers(0, 2, (count, *shape)).astype(dtype)  # every vocabulary has two tokens
