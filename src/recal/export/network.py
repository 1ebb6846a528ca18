"""The user's network as part of an exported file: an ONNX graph with one input and one output.

Exporters often fix the batch size of a network. This module makes it variable ("opens" it), and
runs the changed network to check that its answers stay the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.models.onnx import OnnxModel, open_session, reason_of
from recal.errors import FileError, InputError
from recal.export.tracer import IR_VERSION, OPEN, OPSET, Shape, Symbol, dtype_of, onnx, value_info


@dataclass(frozen=True)
class NetworkPart:
    """A graph with one input and one output; called with an array, it is copied into its graph."""

    model: onnx.ModelProto
    input: onnx.ValueInfoProto
    output: onnx.ValueInfoProto

    def __call__(self, rows: Symbol) -> Symbol:
        graph, feeds = rows.device, {self.input.name: rows.to(dtype_of(self.input)).name}
        name = graph.splice(self.model.graph, feeds, self.output.name)
        return graph.input(
            name, dtype_of(self.output), [size or OPEN for size in sizes(self.output)]
        )


def sizes(value: onnx.ValueInfoProto) -> list[int]:
    """Return the value's shape; 0 marks a variable size, which some exporters write as -1."""
    return [max(0, int(axis.dim_value)) for axis in value.type.tensor_type.shape.dim]


def input_form(part: NetworkPart) -> tuple[Shape, str]:
    """Return the shape of the part's input, with an open number of rows, and its dtype."""
    return (OPEN, *(size or OPEN for size in sizes(part.input)[1:])), dtype_of(part.input)


def as_part(model: onnx.ModelProto, output: str) -> NetworkPart:
    """Return a model with one input, and one of its outputs, as a part."""
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    constants = {constant.name for constant in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1:
        raise InputError(f"The ONNX model must have one input, the batch; it has {len(inputs)}.")
    return NetworkPart(
        model, inputs[0], next(value for value in model.graph.output if value.name == output)
    )


def read_model(path: str | os.PathLike[str]) -> NetworkPart:
    """Return a user's model, at an opset that the nodes around it can use, too."""
    source = OnnxModel(Path(path))
    try:
        model = onnx.load(os.fspath(path))
        versions = [one.version for one in model.opset_import if one.domain in ("", "ai.onnx")]
        if max(versions, default=OPSET) < OPSET:
            model = onnx.version_converter.convert_version(model, OPSET)
    except Exception as error:
        raise FileError(
            f"{path} cannot be brought to opset {OPSET}: {reason_of(error)}. Export the model "
            f"again at opset {OPSET} or later."
        ) from error
    return as_part(model, source.output)


def versions_of(part: NetworkPart) -> tuple[dict[str, int], int]:
    """Return the opset of each domain for a file that holds the part, and the IR version.

    The domain ai.onnx has the empty name; a part may import it twice, under both names.
    """
    opsets: dict[str, int] = {"": OPSET}
    for entry in part.model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        opsets[domain] = max(opsets.get(domain, 0), int(entry.version))
    return opsets, max(IR_VERSION, part.model.ir_version)


def open_batch(part: NetworkPart, shape: Shape) -> NetworkPart:
    """Return the model for any number of rows of this shape.

    If its batch size is fixed, the answers to a few random rows are compared; if they change, the
    model is refused.
    """
    fixed = (sizes(part.input) or [0])[0]
    free = _copied(fix_reshapes(part, fixed) if fixed else part)
    axes = ["batch", *(None if size == OPEN else size for size in shape)]
    free.input.CopyFrom(value_info(part.input.name, part.input.type.tensor_type.elem_type, axes))
    del free.model.graph.value_info[:]
    for value in free.model.graph.output:
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
    if not fixed:
        return free
    rows = random_rows(fixed + 1, shape, dtype_of(part.input))
    try:
        source = OnnxModel(_session(part.model), output=part.output.name)
        together = run_model(free.model, free.input.name, rows)[free.output.name]
        same = np.allclose(together, source.answer(rows), rtol=1e-4, atol=1e-4)
    except InputError:
        same = False
    if not same:
        raise InputError(
            f"The model takes exactly {fixed} {'input' if fixed == 1 else 'inputs'} at a time, "
            "and opening its batch changes its answers or breaks it",
            remedy="Export the model again with an open batch size (a dynamic first axis)",
        )
    return free


def _copied(part: NetworkPart) -> NetworkPart:
    return as_part(deepcopy(part.model), part.output.name)


def fix_reshapes(part: NetworkPart, fixed: int = 0) -> NetworkPart:
    """Return the model with Reshapes that give all sizes except the first.

    Some exporters write Reshapes that copy the batch size and infer another size, which fails for
    an empty batch. Others write a `fixed` batch size. The other sizes are taken from a run of the
    model.
    """
    copy, shape = _copied(part), sizes(part.input)[1:]
    counts = (fixed,) if fixed else (2, 3)
    batches = [random_rows(count, shape, dtype_of(part.input)) for count in counts]
    inner = _sizes_of_reshapes(part, batches)
    for number, node in enumerate(copy.model.graph.node):
        if node.output[0] in inner:
            name = f"recal_shape_{number}"
            values = np.array([-1, *inner[node.output[0]]], np.int64)
            copy.model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
            node.input[1] = name
    return copy


def _sizes_of_reshapes(
    part: NetworkPart, batches: list[NDArray[Any]]
) -> dict[str, tuple[int, ...]]:
    """Return the output shape of each Reshape, less its first size, if all runs agree."""
    model = deepcopy(part.model)
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
        session = _session(model)
        names = [value.name for value in session.get_outputs()]
        return {} if batch is None else dict(zip(names, session.run(names, {name: batch})))
    except Exception as error:
        raise InputError(
            f"onnxruntime cannot run this model: {reason_of(error)}. No file was written."
        ) from error


def _session(model: onnx.ModelProto) -> Any:
    return open_session(model.SerializeToString(), "1", ["CPUExecutionProvider"])


def random_rows(count: int, shape: Sequence[int], dtype: str) -> NDArray[Any]:
    rng = np.random.default_rng(0)
    if np.issubdtype(dtype, np.floating):
        return rng.random((count, *shape)).astype(dtype)
    return rng.integers(0, 2, (count, *shape)).astype(dtype)  # every vocabulary has two tokens
