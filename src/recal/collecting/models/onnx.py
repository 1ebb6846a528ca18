"""ONNX files and sessions, run by ONNX Runtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest, digest_file
from recal.collecting.inputs.pixels import Pixels
from recal.collecting.models.base import Model
from recal.collecting.models.onnx_outputs import Output, choose_output
from recal.collecting.models.onnx_weights import check_external_data, reason_of
from recal.collecting.models.shapes import pixels_of, with_channel
from recal.errors import FileError, InputError, MissingExtraError, Remedy
from recal.transforms.preprocessing import Outputs

try:
    import onnxruntime
except ImportError as error:
    raise MissingExtraError("onnxruntime", "onnx", "Running an ONNX model") from error

_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


def _open_session(path: Path) -> Any:
    options, asked = onnxruntime.SessionOptions(), os.environ.get("OMP_NUM_THREADS", "")
    options.log_severity_level = 4  # what fails is raised, and said once in recal's own message
    if asked.isdigit() and int(asked) > 0:  # onnxruntime itself takes all cores, also when several processes share them
        options.intra_op_num_threads = int(asked)
    return onnxruntime.InferenceSession(str(path), options, providers=onnxruntime.get_available_providers())


class OnnxModel(Model):
    """An ONNX file or an open session with one input, the batch; or with one input per column of a table.

    Outputs whose name says that they are probabilities are taken as such.

    Parameters
    ----------
    model : path or InferenceSession
    output : str, optional
        Which output holds the logits, where the model has several and none is called ``logits``.
    """

    def __init__(self, model: Any, *, output: str | None = None) -> None:
        self.path = Path(model) if isinstance(model, str | Path) else None
        self.asked = output
        self._use(model)

    def _use(self, model: Any) -> None:
        if self.path is not None:
            self.name = self.path.name
            check_external_data(self.path)
            try:
                model = _open_session(self.path)
            except Exception as error:
                why, again = reason_of(error), "Copy or export it again"
                if "is not a registered function/op" in why:
                    again = "Open a session that has this operation's library, and pass the session"
                raise FileError(f"{self.path} cannot be read as an ONNX model: {why}. {again}.") from error
        else:
            self.name = "the ONNX session"
        self.session = model
        inputs = model.get_inputs()
        self.columns = {} if len(inputs) == 1 else {one.name: _DTYPES.get(one.type) for one in inputs}
        self.input = inputs[0].name
        self.dtype = _DTYPES.get(inputs[0].type)
        shape = inputs[0].shape
        self.shape = tuple(shape or ())
        self.fixed = shape[0] if shape and isinstance(shape[0], int) and shape[0] > 0 else None
        outputs = [Output(o.name, o.type, len(o.shape) if o.shape else None) for o in model.get_outputs()]
        file = self.name if self.path is None else str(self.path)
        chosen = choose_output(self.name, outputs, self.asked, file=file, inputs=self.input)
        self.output, self.zipped = chosen.name, chosen.is_zipped
        self.named_probs = chosen.holds_probs

    @property
    def pixels(self) -> Pixels | None:
        """What images must be for this model, by its input's channels; None where its shape does not tell."""
        return pixels_of(self.shape)

    def returns(self, outputs: Outputs) -> Outputs:
        return "probabilities" if self.named_probs and outputs == "logits" else outputs

    def __getstate__(self) -> dict[str, Any]:
        if self.path is None:
            raise InputError("An open ONNX session cannot be sent to other processes; pass the path of its file.")
        return {"path": self.path, "asked": self.asked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._use(None)

    def fingerprint(self) -> str:
        if self.path is not None:
            return digest([digest_file(self.path), self.output])
        described = [(i.name, i.type, i.shape) for i in (*self.session.get_inputs(), *self.session.get_outputs())]
        return digest([repr(described), self.output])

    def answer(self, batch: Any) -> NDArray[Any]:
        if self.columns:
            return self._run_columns(batch)
        array = np.asarray(batch.detach().cpu() if hasattr(batch, "detach") else batch)
        array = with_channel(array, self.shape)
        array = np.ascontiguousarray(array if self.dtype is None else array.astype(self.dtype, copy=False))
        if self.fixed is None:
            return self._run(array)
        pieces = []
        for start in range(0, len(array), self.fixed):
            piece = array[start : start + self.fixed]
            full = np.concatenate([piece, np.repeat(piece[-1:], self.fixed - len(piece), axis=0)])
            pieces.append(self._run(full)[: len(piece)])
        return np.concatenate(pieces)

    def _run_columns(self, frame: Any) -> NDArray[Any]:
        """Give each input the column of its name: so skl2onnx exports a pipeline that was fitted on a frame."""
        names = [str(name) for name in getattr(frame, "columns", ())]
        absent = [name for name in self.columns if name not in names]
        if absent:
            held = f"the table has no column {', '.join(absent)}" if names else "the inputs are not a table"
            raise InputError(
                f"{self.name} takes {len(self.columns)} inputs ({', '.join(self.columns)}), one per column of a table; "
                f"{held}",
                remedy="Bring the columns under these names, or wrap the model in a Python function",
            )
        taken = {name: np.asarray(frame[name])[:, None] for name in self.columns}
        given = {name: values.astype(self.columns[name] or object) for name, values in taken.items()}
        try:
            return self._rows(self.session.run([self.output], given)[0])
        except Exception as error:
            types = ", ".join(f"{name} {values.dtype}" for name, values in given.items())
            raise InputError(f"{self.name} refused the columns {types}: {reason_of(error)}.") from error

    def _run(self, array: NDArray[Any]) -> NDArray[Any]:
        try:
            answers = self.session.run([self.output], {self.input: array})[0]
        except Exception as error:
            expected = self.session.get_inputs()[0].shape
            raise InputError(
                f"{self.name} expects the shape {expected} and refused a batch of {array.shape}, dtype {array.dtype}: "
                f"{reason_of(error)}",
                remedy=_remedy(expected, array.shape),
            ) from error
        return self._rows(answers)

    def _rows(self, answers: Any) -> NDArray[Any]:
        if self.zipped:  # one dictionary per row, from class to probability; all have the same order
            answers = [list(row.values()) for row in answers]
        return np.asarray(answers)


def _remedy(expected: Any, got: tuple[int, ...]) -> str | Remedy:
    """Name the option where channels only stand at the wrong end."""
    if len(expected) == len(got) == 4:
        for where, order in (("first", (0, 3, 1, 2)), ("last", (0, 2, 3, 1))):
            moved = [got[axis] for axis in order]
            fits = all(
                size == want or not isinstance(want, int) or want < 1 for size, want in zip(moved[1:], expected[1:])
            )
            if fits and moved != list(got):
                said = f"The model expects channels {where}: pass preprocess=Normalize(channels='{where}')"
                typed = f"The model expects channels {where}: add --channels {where}"
                divides = "which also divides pixels by 255; {} keeps them as they are"
                return Remedy(f"{said}, {divides.format('divide=1')}", typed=f"{typed}, {divides.format('--divide 1')}")
    return "Bring inputs into that shape in the preprocessing"
