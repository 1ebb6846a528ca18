"""Work that is done once: a stage knows what its result was made from, and is left alone while that
is the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal import __version__
from recal.files.paths import replacing


def fingerprint(value: Any) -> str:
    """Return a short digest of plain JSON values; equal values in another order of keys give the
    same.

    Examples
    --------
    >>> from paper.stages import fingerprint
    >>> fingerprint({"a": 1, "b": [2.0]}) == fingerprint({"b": [2.0], "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_arrays(*arrays: NDArray[Any]) -> str:
    """Return a short digest of the arrays' shapes, types and values."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape}{array.dtype.str}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


@dataclass
class Stages:
    """Runs stages under one folder, says what it does, and counts what was done and what was there
    already.
    """

    folder: Path
    say: Callable[[str], None]
    done: int = 0
    kept: int = 0

    def run(self, name: str, made_from: Mapping[str, Any], make: Callable[[Path], None]) -> str:
        """Make `folder / name` unless it is there and was made from the same; return the
        fingerprint.

        The note of what a result was made from is written last, so a stage that was killed is done
        again (or goes on, where `make` can).
        """
        target = self.folder / name
        note = target.with_name(f"{target.name}.made-from.json")
        identity = {"recal": __version__, **made_from}
        mark = fingerprint(identity)
        if target.exists() and _mark_of(note) == mark:
            self.kept += 1
            return mark
        note.unlink(missing_ok=True)
        make(target)
        write_json(note, {"fingerprint": mark, "made_from": identity})
        self.done += 1
        return mark


def _mark_of(note: Path) -> str | None:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found.get("fingerprint") if isinstance(found, dict) else None


def write_json(path: Path, value: Any) -> None:
    """Write JSON that people can read, whole or not at all."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))
