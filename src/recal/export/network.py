"""The parts of an exported file before its calibration: the user's network, its preprocessing, the views.

A part is an ONNX graph with one input and one output. What exporters write into a network about the size of a batch is
changed here, and what comes of it is run before it is believed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.models.onnx import FLOATS, Output, check_external_data, choose_output, reason_of
from recal.errors import FileError, InputError, MissingExtraError
from recal.export.graph import FLOAT, IR_VERSION, OPSET, Nodes, TensorProto, model_of, onnx, tensor
from recal.export.tracer import OPEN, Graph
from recal.transforms import Transform
from recal.transforms.preprocessing import Normalize

# Nodes that hand values on: a softmax before them is still a softmax.
_HAND_ON = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout")
_LOGITS = "recal_logits"
_KINDS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_TYPES: dict[int, str] = dict(zip(_KINDS, FLOATS))


@dataclass(frozen=True)
class Part:
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


def rows_of(part: Part) -> int:
    """Return how many rows the part takes at once; 0 stands for any number."""
    return (sizes(part.input) or [0])[0]


def as_part(model: onnx.ModelProto) -> Part:
    """Return a model of one input as a part; of several outputs the one that holds the classes' scores."""
    constants = {constant.name for constant in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1:
        raise InputError(f"The ONNX model must have one input, the batch; it has {len(inputs)}.")
    listed = [Output(value.name, *_described(value)) for value in model.graph.output]
    chosen = choose_output("The ONNX model", listed, inputs=inputs[0].name)
    output = next(value for value in model.graph.output if value.name == chosen.name)
    return Part(model, inputs[0], _unzipped(model, output) if chosen.is_zipped else output)


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


def read_model(model: str | os.PathLike[str] | onnx.ModelProto) -> Part:
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
    return as_part(model)


def _load(path: str | os.PathLike[str]) -> onnx.ModelProto:
    check_external_data(Path(path))
    try:
        return onnx.load(os.fspath(path))
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:
        raise FileError(f"{path} is not an ONNX model: {reason_of(error)}. Copy or export it again.") from error


def example_of(part: Part, dtype: Any = None, shape: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
    """Return a batch of one, all zeros; shape and dtype are the model's own where not given."""
    own = onnx.helper.tensor_dtype_to_np_dtype(element_type(part.input))
    if shape is None:
        known = sizes(part.input)
        if len(known) < 2 or 0 in known[1:]:
            raise InputError(
                f"The model's input {part.input.name!r} leaves its shape open: pass an example batch (--shape)."
            )
        shape = known[1:]
    return np.zeros((1, *shape), own if dtype is None else dtype)


def channel_part(part: Part) -> Part:
    """Return what gives grey images, (n, height, width), the axis of length 1 that a model has for channels."""
    axis = 1 if sizes(part.input)[1] == 1 else 3
    kind, g = element_type(part.input), Nodes()
    inputs = tensor("grey", kind, ["batch", None, None])
    g.rename(g.op("Unsqueeze", "grey", g.const([axis])), "with_channel")
    return as_part(model_of(g, [inputs], [tensor("with_channel", kind, ["batch", None, None, None])]))


def two_column_part(part: Part, outputs: str) -> Part | None:
    """Return what makes two columns of a binary model's one output, as `checks.two_columns` does; None for others."""
    shape = sizes(part.output)
    if not (len(shape) == 1 or shape[1:] == [1]):
        return None
    kind, g = element_type(part.output), Nodes()
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    second = g.op("Reshape", "one", g.const([-1, 1]))
    first = g.op("Sub", g.const(np.array(1, dtype)), second) if outputs != "logits" else g.op("Sub", second, second)
    g.rename(g.op("Concat", first, second, axis=1), "two")
    rows = rows_of(part) or "batch"  # a batch that could not be opened stays fixed
    inputs = tensor("one", kind, [rows, *shape[1:]])
    return as_part(model_of(g, [inputs], [tensor("two", kind, [rows, 2])]))


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


def trace_module(module: Any, example: Any) -> Part:
    """Return a torch module as a part that takes any number of rows."""
    from recal.export.torch_onnx import as_onnx

    model = as_onnx(module, example, _LOGITS)
    model = onnx.inliner.inline_local_functions(model) if model.functions else model
    model.ir_version = IR_VERSION  # torch writes a newer one, of which it uses nothing but notes
    return as_part(model)


def view_part(transforms: Sequence[Transform], batch: Any, opset: int = OPSET) -> Part:
    """Return the part that makes the rows of all views, one transformation after the other, of batches like this."""
    g, dtype = Nodes(), str(batch.dtype).removeprefix("torch.")
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = Graph(g, opset).input("inputs", dtype, (OPEN, *(int(size) for size in batch.shape[1:])))
    views = [transform(inputs).name for transform in transforms]
    g.rename(g.op("Concat", *views, axis=0) if len(views) > 1 else views[0], "views")
    shape = ["batch", *inputs.shape[1:]]
    outputs = [tensor("views", kind, ["rows", *shape[1:]])]
    return as_part(model_of(g, [tensor("inputs", kind, shape)], outputs, {"": opset}))


_CLOSE = 1e-4


def open_batch(part: Part, shape: tuple[int, ...]) -> Part:
    """Return a model whose batch is fixed as one that takes any number of rows, and gives each the same answer.

    `shape` is that of one input. Answers to a few random rows are compared; a model whose answers change is refused.
    """
    fixed = rows_of(part)
    free = fix_reshapes(part, shape, fixed)
    rows = _random(fixed + 1, shape, part)
    try:
        apart = [run(part.model, part.input.name, some)[part.output.name] for some in (rows[:-1], rows[1:])]
        together = run(free.model, free.input.name, rows)[free.output.name]
        same = np.allclose(together, np.concatenate([apart[0], apart[1][-1:]]), rtol=_CLOSE, atol=_CLOSE)
    except InputError:
        same = False
    if not same:
        raise InputError(
            f"The model takes exactly {fixed} {'input' if fixed == 1 else 'inputs'} at a time, and opening its batch "
            "changes its answers or breaks it",
            remedy="Views need more rows: export the model again with an open batch size (a dynamic first axis)",
        )
    return free


def fix_reshapes(part: Part, shape: tuple[int, ...], fixed: int | None = None) -> Part:
    """Return the model with an open batch in which every Reshape says all sizes but the first.

    Exporters write Reshapes that copy the batch's size and leave another to be found out, which nobody can for a batch
    of no rows, or that hold a `fixed` size. What the sizes are is seen by running the model.
    """
    model = onnx.ModelProto()
    model.CopyFrom(part.model)
    found = _sizes_of_reshapes(part, [_random(count, shape, part) for count in ((fixed,) if fixed else (2, 3))])
    for number, node in enumerate(model.graph.node):
        if node.output[0] in found:
            name = f"recal_shape_{number}"
            values = np.array([-1, *found[node.output[0]]], np.int64)
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


def _sizes_of_reshapes(part: Part, batches: list[NDArray[Any]]) -> dict[str, tuple[int, ...]]:
    """Return what follows the first size in the shape of every Reshape's output, where that is the same in all runs."""
    model = onnx.ModelProto()
    model.CopyFrom(part.model)
    names = [node.output[0] for node in model.graph.node if node.op_type == "Reshape"]
    listed = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in listed)
    try:
        answers = [run(model, part.input.name, rows) for rows in batches]
    except (InputError, MissingExtraError):  # nothing is known of a model that does not run
        return {}
    first, last = ({name: each[name].shape[1:] for name in names} for each in (answers[0], answers[-1]))
    return {name: first[name] for name in names if first[name] == last[name]}


def takes_no_rows(model: onnx.ModelProto, name: str, batch: NDArray[Any]) -> bool:
    """Whether the model answers a batch of which no row reaches its views."""
    try:
        run(model, name, batch)
    except (InputError, MissingExtraError):
        return False
    return True


def check_runs(model: onnx.ModelProto, batch: NDArray[Any] | None) -> None:
    """Refuse to write what onnxruntime cannot load, or cannot run on a batch like this one."""
    try:
        run(model, model.graph.input[0].name, batch)
    except MissingExtraError:  # it is written as it is
        return


def run(model: onnx.ModelProto, name: str, batch: NDArray[Any] | None) -> dict[str, NDArray[Any]]:
    """Return the model's outputs by name, none without a batch; where onnxruntime is missing or refuses it, raise."""
    try:
        session = open_session(model.SerializeToString())
        names = [value.name for value in session.get_outputs()]
        return {} if batch is None else dict(zip(names, session.run(names, {name: batch})))
    except MissingExtraError:
        raise
    except Exception as error:
        raise InputError(f"onnxruntime cannot run this model: {reason_of(error)}. No file was written.") from error


def open_session(model: str | bytes) -> Any:
    """Return a session on one thread, from a path or from a file's content."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "onnx", "Running an ONNX file") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what is wrong is raised
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _random(count: int, shape: tuple[int, ...], part: Part) -> NDArray[Any]:
    rng, dtype = np.random.default_rng(0), onnx.helper.tensor_dtype_to_np_dtype(element_type(part.input))
    if np.issubdtype(dtype, np.floating):
        return rng.random((count, *shape)).astype(dtype)
    return rng.integers(0, 2, (count, *shape)).astype(dtype)  # every vocabulary has two tokens


def normalize_part(normalize: Normalize, batch: Any) -> Part:
    """Return the part that normalises batches like this one; only their shape (without n) and dtype matter."""
    g, dtype = Nodes(), str(batch.dtype).removeprefix("torch.")
    raw = Graph(g, OPSET).input("raw", dtype, (OPEN, *(int(size) for size in batch.shape[1:])))
    prepared = normalize(raw)
    g.rename(prepared.name, "prepared")
    inputs = tensor("raw", onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ["batch", *raw.shape[1:]])
    return as_part(model_of(g, [inputs], [tensor("prepared", FLOAT, ["batch", *prepared.shape[1:]])]))
