"""The parts that an exported file is put together from: a user's ONNX model, and what torch writes as ONNX."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recal.collecting.models.onnx import FLOATS, Output, check_external_data, choose_output, reason_of
from recal.errors import FileError, InputError
from recal.export.graph import FLOAT, IR_VERSION, OPSET, Nodes, TensorProto, model_of, onnx, tensor
from recal.export.tracer import OPEN, Graph
from recal.transforms import Transform

# Nodes that hand values on: a softmax before them is still a softmax.
_HAND_ON = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout")
_LOGITS = "recal_logits"
_KINDS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_TYPES: dict[int, str] = dict(zip(_KINDS, FLOATS))


@dataclass(frozen=True)
class Piece:
    """A graph with one input and one output, to be put wherever it is wanted."""

    model: onnx.ModelProto
    input: onnx.ValueInfoProto
    output: onnx.ValueInfoProto

    def put(self, g: Nodes, rows: str, prefix: str) -> str:
        """Put a copy of it behind `rows` and return its output."""
        return g.splice(self.model.graph, prefix, {self.input.name: rows}, self.output.name)

    @property
    def ends_in_softmax(self) -> bool:
        """Whether its output is a softmax of something, so far as its nodes tell."""
        makers = {name: node for node in self.model.graph.node for name in node.output}
        node = makers.get(self.output.name)
        while node is not None and node.op_type in _HAND_ON:
            node = makers.get(node.input[0])
        return node is not None and node.op_type == "Softmax"


def element_type(value: onnx.ValueInfoProto) -> int:
    return int(value.type.tensor_type.elem_type)


def sizes(value: onnx.ValueInfoProto) -> list[int]:
    """Return the value's shape; 0 stands for what is open, which some write as -1."""
    return [max(0, int(axis.dim_value)) for axis in value.type.tensor_type.shape.dim]


def rows_of(piece: Piece) -> int:
    """Return how many rows the piece takes at once; 0 stands for any number."""
    return (sizes(piece.input) or [0])[0]


def as_piece(model: onnx.ModelProto) -> Piece:
    """Return a model of one input as a piece; of several outputs the one that holds the classes' scores."""
    constants = {constant.name for constant in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1:
        raise InputError(f"The ONNX model must have one input, the batch; it has {len(inputs)}.")
    listed = [Output(value.name, *_described(value)) for value in model.graph.output]
    chosen = choose_output("The ONNX model", listed, inputs=inputs[0].name)
    output = next(value for value in model.graph.output if value.name == chosen.name)
    return Piece(model, inputs[0], _unzipped(model, output) if chosen.is_zipped else output)


def _described(value: onnx.ValueInfoProto) -> tuple[str, int | None]:
    """Return a value's type in onnxruntime's words, and how many axes it has."""
    if value.type.HasField("sequence_type"):
        return "seq(map())", None
    kind = _TYPES.get(element_type(value), "tensor(other)")
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
    inferred = onnx.shape_inference.infer_shapes(model)
    known = {value.name: value for value in inferred.graph.value_info}
    kind = element_type(known[node.input[0]]) if node.input[0] in known else FLOAT
    return tensor(node.input[0], kind or FLOAT, ["batch", len(labels[0])])


def read_model(model: str | os.PathLike[str] | onnx.ModelProto) -> Piece:
    """Return a user's model at an opset that the nodes around it share."""
    if not isinstance(model, onnx.ModelProto):
        model = _load(model)
    if model.graph.sparse_initializer:
        raise InputError("The ONNX model holds sparse weights, which cannot be exported; write them as dense ones.")
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    version = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=OPSET)
    if version < OPSET:
        try:
            model = onnx.version_converter.convert_version(model, OPSET)
        except Exception as error:
            raise InputError(
                f"The ONNX model's operations (version {version}) cannot be brought to version {OPSET}: "
                f"{reason_of(error)}. Export the model again at opset {OPSET} or later."
            ) from error
    return as_piece(model)


def _load(path: str | os.PathLike[str]) -> onnx.ModelProto:
    check_external_data(Path(path))
    try:
        return onnx.load(os.fspath(path))
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:
        raise FileError(f"{path} is not an ONNX model: {reason_of(error)}. Copy or export it again.") from error


def example_of(piece: Piece, dtype: Any = None, shape: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
    """Return a batch of one, all zeros; shape and dtype are the model's own where not given."""
    own = onnx.helper.tensor_dtype_to_np_dtype(element_type(piece.input))
    if shape is None:
        known = sizes(piece.input)
        if len(known) < 2 or 0 in known[1:]:
            raise InputError(
                f"The model's input {piece.input.name!r} leaves its shape open: pass an example batch (--shape)."
            )
        shape = known[1:]
    return np.zeros((1, *shape), own if dtype is None else dtype)


def channel_axis(piece: Piece) -> Piece:
    """Return what gives grey images, (n, height, width), the axis of length 1 that a model has for channels."""
    axis = 1 if sizes(piece.input)[1] == 1 else 3
    kind, g = element_type(piece.input), Nodes()
    inputs = tensor("grey", kind, ["batch", None, None])
    g.rename(g.op("Unsqueeze", "grey", g.const([axis])), "with_channel")
    return as_piece(model_of(g, [inputs], [tensor("with_channel", kind, ["batch", None, None, None])]))


def opsets_of(*models: onnx.ModelProto) -> dict[str, int]:
    """Return the version of each domain that the models import, the newest of each; ai.onnx is the domain without name.

    A model may import a domain twice, under both names.
    """
    found: dict[str, int] = {"": OPSET}
    for model in models:
        for entry in model.opset_import:
            domain = "" if entry.domain == "ai.onnx" else entry.domain
            found[domain] = max(found.get(domain, 0), int(entry.version))
    return found


def traced(module: Any, example: Any) -> Piece:
    """Return a torch module as a piece that takes any number of rows."""
    from recal.export.torch_onnx import as_onnx

    model = as_onnx(module, example, _LOGITS)
    model = onnx.inliner.inline_local_functions(model) if model.functions else model
    model.ir_version = IR_VERSION  # torch writes a newer one, of which it uses nothing but notes
    return as_piece(model)


def written_views(transforms: Sequence[Transform], batch: Any, opset: int = OPSET) -> Piece:
    """Return the part that makes the rows of all views, one transformation after the other, of batches like this."""
    g, dtype = Nodes(), str(batch.dtype).removeprefix("torch.")
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = Graph(g, opset).input("inputs", dtype, (OPEN, *(int(size) for size in batch.shape[1:])))
    views = [transform(inputs).name for transform in transforms]
    g.rename(g.op("Concat", *views, axis=0) if len(views) > 1 else views[0], "views")
    shape = ["batch", *inputs.shape[1:]]
    outputs = [tensor("views", kind, ["rows", *shape[1:]])]
    return as_piece(model_of(g, [tensor("inputs", kind, shape)], outputs, {"": opset}))
