"""Where an ONNX file keeps its weights: inside, or in files that it names, which must lie in its own folder.

The few fields that matter are read here from the protobuf itself: the `onnx` package is not needed to run a model, and
would read all weights once more.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path

from recal.errors import FileError

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
