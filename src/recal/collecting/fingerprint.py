"""Short digests of models and data, to notice a store of another model or other data before work is
lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.schema import Record, field_names

# From arrays above this size, evenly spaced rows are read. The digest only has to tell data sets
# apart: a store also keeps a digest of every batch, which finds a single changed byte.
_WHOLE_BYTES = 1 << 28


def digest_array(array: NDArray[Any], *, whole: bool = False) -> str:
    """Return a digest of an array's shape, dtype and values.

    A large array is sampled, unless `whole`.
    """
    state = _new()
    kind = "object" if array.dtype.kind == "O" else array.dtype.str
    state.update(f"{array.shape}{kind}".encode())
    if array.dtype.names is not None:
        for name in array.dtype.names:  # skip the padding bytes between fields
            state.update(digest_array(array[name], whole=whole).encode())
    elif array.dtype.kind == "O":
        for item in array.ravel():
            state.update(digest(item).encode())
    else:
        step = 1 if whole else 1 + array.nbytes // _WHOLE_BYTES
        state.update(_bytes(array[::step] if step > 1 else array))
    return state.hexdigest()


def digest_file(path: Path) -> str:
    """Return a digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, _new).hexdigest()


def digest_texts(texts: Iterable[str]) -> str:
    """Return a digest of a sequence of strings."""
    state = _new()
    for text in texts:
        # Names of files need not be UTF-8.
        state.update(f"{len(text)}:{text}".encode("utf-8", "surrogateescape"))
    return state.hexdigest()


def digest(value: Any) -> str:
    """Return a digest of a value's contents: the same in another process, and for an equal value.

    Functions count by name only: a changed function shows in its results, and a script may be run
    or imported.
    """
    return digest_texts([_describe(value, 0, {})])


def _new() -> Any:
    return hashlib.blake2b(digest_size=16)


def _bytes(array: NDArray[Any]) -> Any:
    """Return the array's values as a buffer, without a copy if possible."""
    whole = np.ascontiguousarray(array)
    if whole.size and whole.dtype.kind in "biufc":
        return whole.reshape(-1).view(np.uint8).data
    return whole.tobytes()


def _describe(value: Any, depth: int, digests: dict[int, tuple[Any, str]]) -> str:
    """Return a text that differs for different values.

    `digests` holds the objects seen so far, by id.
    """
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        return repr(value)
    if isinstance(value, np.ndarray):
        return digest_array(value)
    if hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    if depth > 12:
        return "deeper"
    if id(value) not in digests:
        # For a value that contains itself; the reference keeps its id in use.
        digests[id(value)] = (value, "again")
        parts = [_describe(part, depth + 1, digests) for part in _contents(value)]
        digests[id(value)] = value, digest_texts([type(value).__qualname__, *parts])
    return digests[id(value)][1]


def _contents(value: Any) -> Iterable[Any]:
    if isinstance(value, Record):
        # Only its fields: a map stores more attributes when it is first used.
        value = {name: getattr(value, name) for name in field_names(type(value))}
    if isinstance(value, np.random.BitGenerator):
        # It also holds the entropy of its start, which differs in every process.
        value = value.state
    if isinstance(value, Mapping):
        # scikit-learn's vectorizers store an address there, which differs in every process.
        keys = sorted((key for key in value if key != "_stop_words_id"), key=repr)
        return [part for key in keys for part in (repr(key), value[key])]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, list | tuple):
        return value
    try:  # what the object says it is made of; nothing is serialised
        reduced = value.__reduce_ex__(2)
    except Exception:  # locks and sessions count by their type only
        return ()
    return () if isinstance(reduced, str) else [part for part in reduced[1:3] if part is not None]
