"""How many rows a user's model takes at once: a batch fixed at one opened, a batch of no rows made possible.

What exporters write into a graph about the size of a batch is changed here, and what comes of it is run before it is
believed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.models.onnx import reason_of
from recal.errors import InputError, MissingExtraError
from recal.export.graph import onnx
from recal.export.pieces import Piece, as_piece, element_type, rows_of

_CLOSE = 1e-4


def opened(piece: Piece, shape: tuple[int, ...]) -> Piece:
    """Return a model whose batch is fixed as one that takes any number of rows, and gives each the same answer.

    `shape` is that of one input. Answers to a few random rows are compared; a model whose answers change is refused.
    """
    fixed = rows_of(piece)
    free = settled(piece, shape, fixed)
    rows = _random(fixed + 1, shape, piece)
    try:
        apart = [run(piece.model, piece.input.name, part)[piece.output.name] for part in (rows[:-1], rows[1:])]
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


def settled(piece: Piece, shape: tuple[int, ...], fixed: int | None = None) -> Piece:
    """Return the model with an open batch in which every Reshape says all sizes but the first.

    Exporters write Reshapes that copy the batch's size and leave another to be found out, which nobody can for a batch
    of no rows, or that hold a `fixed` size. What the sizes are is seen by running the model.
    """
    model = onnx.ModelProto()
    model.CopyFrom(piece.model)
    found = _sizes_of_reshapes(piece, [_random(count, shape, piece) for count in ((fixed,) if fixed else (2, 3))])
    for number, node in enumerate(model.graph.node):
        if node.output[0] in found:
            name = f"recal_shape_{number}"
            values = np.array([-1, *found[node.output[0]]], np.int64)
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
            node.input[1] = name
    del model.graph.value_info[:]
    first = next(value for value in model.graph.input if value.name == piece.input.name)
    for value in (first, *model.graph.output):
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for axis, size in zip(first.type.tensor_type.shape.dim[1:], shape):
        axis.dim_value = size
    return as_piece(model)


def _sizes_of_reshapes(piece: Piece, batches: list[NDArray[Any]]) -> dict[str, tuple[int, ...]]:
    """Return what follows the first size in the shape of every Reshape's output, where that is the same in all runs."""
    model = onnx.ModelProto()
    model.CopyFrom(piece.model)
    names = [node.output[0] for node in model.graph.node if node.op_type == "Reshape"]
    listed = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in listed)
    try:
        answers = [run(model, piece.input.name, rows) for rows in batches]
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


def _random(count: int, shape: tuple[int, ...], piece: Piece) -> NDArray[Any]:
    rng, dtype = np.random.default_rng(0), onnx.helper.tensor_dtype_to_np_dtype(element_type(piece.input))
    if np.issubdtype(dtype, np.floating):
        return rng.random((count, *shape)).astype(dtype)
    return rng.integers(0, 2, (count, *shape)).astype(dtype)  # every vocabulary has two tokens
