"""ONNX files and sessions: inputs, outputs, weights."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest, digest_file
from recal.collecting.models.base import Model, Pixels, pixels_of, with_channel
from recal.errors import FileError, InputError, MissingExtraError, Remedy
from recal.transforms.preprocessing import Outputs

FLOATS = ("tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)")


@dataclass(frozen=True)
class Output:
    """An output's name, its type as onnxruntime writes it, and how many axes it has; None where nothing is said."""

    name: str
    type: str
    axes: int | None

    @property
    def is_zipped(self) -> bool:
        """Whether it is a list of one dictionary per row, from class to probability, as skl2onnx writes it."""
        return self.type.startswith("seq(map(")

    @property
    def holds_probs(self) -> bool:
        """Whether its name or type says that it holds probabilities, as those of skl2onnx and paddle2onnx do."""
        name = self.name.lower()
        return self.is_zipped or ("log" not in name and ("prob" in name or "softmax" in name))

    @property
    def may_be_scores(self) -> bool:
        return self.is_zipped or (self.type in FLOATS and self.axes in (None, 1, 2))


def choose_output(
    model: str, outputs: Sequence[Output], asked: str | None = None, *, file: str = "net.onnx", inputs: str = "x"
) -> Output:
    """Return the output asked for, the only one, the one called logits, or the only one that can be scores.

    `file` and `inputs`, the name of the model's input, are for what to type where none can be chosen.
    """
    names = [output.name for output in outputs]
    if asked is not None:
        if asked not in names:
            raise InputError(f"{model} has no output {asked!r}; it has: {', '.join(names)}.")
        return outputs[names.index(asked)]
    if len(outputs) == 1:
        return outputs[0]
    if "logits" in names:
        return outputs[names.index("logits")]
    scores = [output for output in outputs if output.may_be_scores]
    called = [output for output in scores if "logits" in output.name.lower()]
    for found in (scores, called):
        if len(found) == 1:
            return found[0]
    code = f"import onnx.utils; onnx.utils.extract_model({file!r}, 'one.onnx', [{inputs!r}], [{names[0]!r}])"
    raise InputError(
        f"{model} has several outputs ({', '.join(names)}) and none is called logits",
        remedy=Remedy(
            "Say which: from recal.collecting import OnnxModel; OnnxModel(path, output=...)",
            typed=f'Write a file with the one that holds logits, and use that: python -c "{code}"',
        ),
    )


_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
# Which fields of a message hold which messages, by the numbers in ONNX's own definition.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_MAX_DEPTH = 100


def check_external_data(path: Path) -> None:
    """Refuse a model whose weights lie outside its own folder: a file may not say what else is read."""
    home = Path(os.path.realpath(path)).parent
    for location in external_files(path):
        named = home / location.replace("\0", "/")  # where a name may not end, no file is meant
        if not location or not Path(os.path.realpath(named)).is_relative_to(home) or not named.is_file():
            raise FileError(
                f"{path} is not opened: it keeps weights in {location!r}, which is no file in its own folder. Put them "
                "beside the model, or inside it."
            )


def external_files(path: Path) -> set[str]:
    """Return the names of all files in which a model says that its weights are."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
            return set(_locations(held, 0, len(held), "model", 0))
    except (ValueError, IndexError) as error:  # also an empty file
        why = error if path.stat().st_size else "it is empty"
        raise FileError(f"{path} cannot be read as an ONNX model: {why}. Copy or export it again.") from error
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error


def _locations(held: mmap.mmap, start: int, stop: int, kind: str, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise ValueError("it is nested too deep")
    for field, begin, end in _parts(held, start, stop):
        inner = _FIELDS[kind].get(field)
        if inner == "entry":
            entry = {number: bytes(held[a:b]) for number, a, b in _parts(held, begin, end)}
            if entry.get(1) == b"location":
                yield os.fsdecode(entry.get(2, b""))
        elif inner is not None:
            yield from _locations(held, begin, end, inner, depth + 1)


def _parts(held: mmap.mmap, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number and the place of every field that holds bytes."""
    place = start
    while place < stop:
        tag, place = _varint(held, place)
        field, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            _, place = _varint(held, place)
        elif wire == _BYTES:
            length, begin = _varint(held, place)
            place = begin + length
            if place <= stop:
                yield field, begin, place
        elif wire in (_EIGHT_BYTES, _FOUR_BYTES):
            place += 8 if wire == _EIGHT_BYTES else 4
        else:
            raise ValueError("it is no protobuf file")
    if place != stop:
        raise ValueError("it is cut short")


def _varint(held: mmap.mmap, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = held[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value & (2**64 - 1), place
    raise ValueError("it is no protobuf file")


def reason_of(error: Exception) -> str:
    """Return the first line of what onnxruntime or onnx says, without its codes and without the path."""
    code = r"\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from \S+ failed:)?"
    lines = re.sub(code, "", str(error)).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")


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
