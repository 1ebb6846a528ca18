"""ONNX files and sessions: inputs, outputs, weights."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest, digest_file
from recal.collecting.models.base import Model, in_pieces, to_dtype, to_numpy, with_channel
from recal.errors import FileError, InputError, needs_extra
from recal.files.paths import file_errors

with needs_extra("onnx", "Running an ONNX model"):
    import onnx
    import onnxruntime

FLOATS = ("tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)")


def choose_output(model: str, outputs: Sequence[Any], name: str | None = None) -> str:
    """Return the output of this name, the only one, the one called logits, or the only one that can
    be scores: floats with one or two axes.
    """
    names = [output.name for output in outputs]
    scores = [one.name for one in outputs if one.type in FLOATS and len(one.shape or ()) < 3]
    named = [one for one in names if one == (name or "logits")]
    logits = [one for one in scores if "logits" in one.lower()]
    for candidates in (named,) if name is not None else (names, named, scores, logits):
        if len(candidates) == 1:
            return str(candidates[0])
    raise InputError(
        f"{model} has the outputs {', '.join(names)}, and "
        + ("none is called logits" if name is None else f"no output {name!r}"),
        remedy="Say which: recal.collecting.OnnxModel(path, output=...), or write a file with one "
        "output: onnx.utils.extract_model, or options={'zipmap': False} of skl2onnx",
    )


def check_external_data(path: Path) -> None:
    """Refuse a model whose weights lie outside its own folder: a file must not make recal read
    other files.
    """
    with file_errors(path, "read"):
        content = path.read_bytes()
    try:
        model = onnx.ModelProto.FromString(content)
        if not content:  # protobuf reads an empty file as a model without fields
            raise ValueError
    except Exception as error:  # protobuf's own errors do not say what to do
        raise FileError(
            f"{path} cannot be read as an ONNX model: it is empty, cut short, damaged or of "
            "another kind. Copy or export it again."
        ) from error
    home = Path(os.path.realpath(path)).parent
    for location in set(_locations(model)):
        named = home / location.replace("\0", "/")  # a name with a null byte cannot be a file
        is_inside = Path(os.path.realpath(named)).is_relative_to(home)
        if not location or not is_inside or not named.is_file():
            raise FileError(
                f"{path} is not opened: it keeps weights in {location!r}, which is no file in its "
                "own folder. Put them beside the model, or inside it."
            )


def _locations(message: Any) -> Iterator[str]:
    """Yield the location of each external tensor in a message, including branches, functions and
    attributes.
    """
    if isinstance(message, onnx.TensorProto):
        # A name that is not UTF-8 comes as bytes.
        for entry in message.external_data:
            if entry.key == "location":
                yield os.fsdecode(entry.value)
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from _locations(inner)


def reason_of(error: Exception) -> str:
    """Return the first line of an error of onnxruntime or onnx, without its codes and without the
    path.
    """
    code = r"\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from \S+ failed:)?"
    lines = re.sub(code, "", str(error)).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")


_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


def open_session(model: str | bytes, threads: str, providers: Sequence[str]) -> Any:
    """Return a session from a path or a file's content; it uses all cores unless `threads` is a
    number above 0.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, and reported once
    options.intra_op_num_threads = int(threads) if threads.isdigit() else 0
    return onnxruntime.InferenceSession(model, options, providers=providers)


class OnnxModel(Model):
    """An ONNX file or an open session with one input, the batch.

    Parameters
    ----------
    model : path or InferenceSession
    output : str, optional
        Which output holds the logits, if the model has several and none is called ``logits``.
    """

    def __init__(self, model: Any, *, output: str | None = None) -> None:
        self.path = Path(model) if isinstance(model, str | Path) else None
        self.requested = output
        self._use(model)

    def _use(self, model: Any) -> None:
        self.name = "the ONNX session" if self.path is None else self.path.name
        if self.path is not None:
            check_external_data(self.path)
            try:
                threads = os.environ.get("OMP_NUM_THREADS", "")
                providers = onnxruntime.get_available_providers()
                model = open_session(str(self.path), threads, providers)
            except Exception as error:
                raise FileError(
                    f"{self.path} cannot be read as an ONNX model: {reason_of(error)}. If it "
                    "needs a library of operations, open a session with it and pass the session."
                ) from error
        self.session = model
        inputs = model.get_inputs()
        if len(inputs) != 1:
            rule = f"{self.name} takes {len(inputs)} inputs; recal passes one, the batch"
            raise InputError(rule, remedy="Wrap the model in a function")
        self.input = inputs[0].name
        self.dtype = _DTYPES.get(inputs[0].type)
        self.shape = tuple(inputs[0].shape or ())
        if len(self.shape) == 2 and isinstance(self.shape[1], int):
            self.n_features = self.shape[1]
        first = self.shape[0] if self.shape else None
        self.fixed = first if isinstance(first, int) and first > 0 else None
        self.output = choose_output(self.name, model.get_outputs(), self.requested)

    def __getstate__(self) -> dict[str, Any]:
        if self.path is None:
            raise InputError("An open ONNX session cannot leave this process; pass its path.")
        return {"path": self.path, "requested": self.requested}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._use(None)

    def fingerprint(self) -> str:
        if self.path is not None:
            return digest([digest_file(self.path), self.output])
        ends = (*self.session.get_inputs(), *self.session.get_outputs())
        described = [(one.name, one.type, one.shape) for one in ends]
        return digest([repr(described), self.output])

    def answer(self, batch: Any) -> NDArray[Any]:
        array = with_channel(to_numpy(batch), self.shape)
        if self.dtype is not None:
            array = to_dtype(array, self.dtype, self.name)
        return in_pieces(self._run, np.ascontiguousarray(array), self.fixed)

    def _run(self, array: NDArray[Any]) -> NDArray[Any]:
        try:
            answers = self.session.run([self.output], {self.input: array})[0]
        except Exception as error:
            raise InputError(
                f"{self.name} expects the shape {list(self.shape)} and refused a batch of "
                f"{array.shape}, dtype {array.dtype}: {reason_of(error)}",
                remedy="Bring inputs into that shape with preprocess=...; Normalize(channels="
                "'first') (--channels first) places the channels and divides pixels by 255",
            ) from error
        return np.asarray(answers)
