"""A normalisation as ONNX nodes, in the reference's order of operations: its float32 values are numpy's to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from recal.errors import InputError
from recal.export.graph import FLOAT, Nodes, model_of, onnx, tensor
from recal.export.pieces import Piece, as_piece
from recal.transforms.preprocessing import Normalize


def normalized(normalize: Normalize, batch: Any) -> Piece:
    """Return what `normalize` does to batches like this one; only its shape (without n) and dtype matter."""
    shape, g = tuple(int(size) for size in batch.shape), Nodes()
    given = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(str(batch.dtype).removeprefix("torch.")))
    values = g.op("Div", g.cast("raw", FLOAT), g.const(np.float32(normalize.divide)))
    if normalize.channels != "keep":
        order = normalize.order(shape)
        if len(shape) == 3:
            axis = 1 if normalize.channels == "first" else 3
            values, shape = g.op("Unsqueeze", values, g.const([axis])), (*shape[:axis], 1, *shape[axis:])
        elif order is not None:
            values, shape = g.op("Transpose", values, perm=order), tuple(shape[axis] for axis in order)
    axis = 1 if normalize.channels == "first" else len(shape) - 1
    values = g.op("Sub", values, _constants(g, normalize.mean, shape, axis))
    g.rename(g.op("Div", values, _constants(g, normalize.std, shape, axis)), "prepared")
    raw = tensor("raw", given, ["batch", *batch.shape[1:]])
    return as_piece(model_of(g, [raw], [tensor("prepared", FLOAT, ["batch", *shape[1:]])]))


def _constants(g: Nodes, number: float | Sequence[float], shape: tuple[int, ...], axis: int) -> str:
    constants = np.asarray(number, dtype=np.float32).reshape(-1)
    if len(constants) not in (1, shape[axis]):
        raise InputError(
            f"need one value, or one for each of {shape[axis]} channels",
            argument=("mean", "std"),
            came=f"got {len(constants)}",
        )
    wide = [1] * len(shape)
    wide[axis] = len(constants)
    return g.const(constants.reshape(wide))
