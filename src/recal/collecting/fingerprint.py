"""Short digests of models and data, so that a store made with others is noticed before work is lost."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.maps.plan import Plan

# All bytes up to this size are read; of larger arrays, as many bytes spread evenly. A store also keeps the digest of
# every batch of inputs, so this one needs to tell data sets apart, not to find one changed byte in a hundred gigabytes.
_WHOLE_BYTES = 1 << 28
_BLOCKS = 256
_DEPTH = 12
# What scikit-learn's vectorizers note when they are used: an address, which is another one in every process.
_ADDRESSES = frozenset(["_stop_words_id"])


def digest_array(array: NDArray[Any], *, whole: bool = False) -> str:
    """Return a digest of an array's shape, dtype and values; of all of them where `whole`, or where they are few."""
    state = _new()
    state.update(f"{array.shape}{array.dtype.str if array.dtype.kind != 'O' else 'object'}".encode())
    if array.dtype.names is not None:
        for name in array.dtype.names:  # between the fields of a record may lie bytes that mean nothing
            state.update(digest_array(array[name], whole=whole).encode())
    elif array.dtype.kind == "O":
        for item in array.ravel():
            state.update(digest(item).encode())
    elif whole or is_read_whole(array):
        state.update(_bytes(array))
    else:
        rows = max(1, int(_WHOLE_BYTES / _BLOCKS / (array.nbytes / array.shape[0])))
        for start in np.linspace(0, array.shape[0] - rows, _BLOCKS).astype(int).tolist():
            state.update(_bytes(array[start : start + rows]))
    return state.hexdigest()


def is_read_whole(array: NDArray[Any]) -> bool:
    """Whether the digest of an array is one of all its bytes."""
    return array.dtype.kind == "O" or array.nbytes <= _WHOLE_BYTES or array.shape[0] < _BLOCKS


def digest_file(path: Path) -> str:
    """Return a digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, _new).hexdigest()


def digest_texts(texts: Iterable[str]) -> str:
    """Return a digest of a sequence of strings."""
    state = _new()
    for text in texts:
        state.update(f"{len(text)}:{text}".encode("utf-8", "surrogateescape"))  # names of files need not be UTF-8
    return state.hexdigest()


def digest(value: Any) -> str:
    """Return a digest of a value's contents: the same in another process, and for an equal value.

    Functions count by name only: what they do is seen in what they return, and a script may be run or imported.
    """
    state = _new()
    for part in _parts(value, 0, {}):
        state.update(part)
        state.update(b"\0")
    return state.hexdigest()


def _new() -> Any:
    return hashlib.blake2b(digest_size=16)


def _bytes(array: NDArray[Any]) -> Any:
    """The array's values as a buffer, without a copy where possible."""
    whole = np.ascontiguousarray(array)
    return whole.reshape(-1).view(np.uint8).data if whole.size and whole.dtype.kind in "biufc" else whole.tobytes()


def _parts(value: Any, depth: int, seen: dict[int, Any]) -> Iterable[bytes]:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        yield repr(value).encode()
    elif isinstance(value, np.ndarray):
        yield digest_array(value).encode()
    elif hasattr(value, "__qualname__"):
        yield str(value.__qualname__).encode()
    elif id(value) in seen or depth > _DEPTH:
        yield b"again"
    else:
        seen[id(value)] = value  # held, so that no other value gets its id
        yield type(value).__qualname__.encode()
        yield from _contents(value, depth + 1, seen)


def _contents(value: Any, depth: int, seen: dict[int, Any]) -> Iterable[bytes]:
    if isinstance(value, Plan):  # by its fields: what it remembers beside them comes with use
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key in sorted((key for key in value if key not in _ADDRESSES), key=repr):
            yield repr(key).encode()
            yield from _parts(value[key], depth, seen)
    elif isinstance(value, set | frozenset):
        for item in sorted(value, key=repr):
            yield from _parts(item, depth, seen)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item, depth, seen)
    else:
        try:
            reduced = value.__reduce_ex__(2)  # what the object says it is made of; nothing is serialised
        except Exception:  # locks, sessions: known by their type only
            return
        if not isinstance(reduced, str):
            yield from _parts(tuple(part for part in reduced[1:3] if part is not None), depth, seen)
