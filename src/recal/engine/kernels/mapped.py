"""Logits larger than memory as one array: mapped from a scratch file, with memory given back as passes go over them.

A pass over a mapped array makes all of it resident, and the system takes it back only when memory runs short. The
kernels' `over_rows` therefore goes over such arrays piece by piece and gives each back: a fit holds some megabytes.
The store's own files are not mapped: a block is no whole number of pages, so rows of two blocks do not join.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# How many values are gone over before their memory is given back: 128 MB of float32.
PIECE_VALUES = 32_000_000
_ROWS_AT_A_TIME = 200


class MappedRows(np.ndarray):
    """Read-only rows in a scratch file that has no name, and so ends with its last user, also after a kill."""

    _map: mmap.mmap | None = None

    def __array_finalize__(self, other: Any) -> None:
        self._map = getattr(other, "_map", None)

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, np.ndarray) and rows.dtype.kind in "iu" and (rows.ndim, self.ndim) == (1, 2):
            return self._pick(rows)
        picked = super().__getitem__(rows)
        if not isinstance(picked, MappedRows) or np.may_share_memory(picked, self):
            return picked
        self.release()  # it was copied out
        return picked.view(np.ndarray)

    def _pick(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Copy rows out, some at a time: each brings its neighbours into memory, and many would bring everything."""
        plain, picked = self.view(np.ndarray), np.empty((len(rows), self.shape[1]), dtype=self.dtype)
        for begin in range(0, len(rows), _ROWS_AT_A_TIME):
            part = slice(begin, begin + _ROWS_AT_A_TIME)
            picked[part] = plain[rows[part]]
            self.release()
        return picked

    def release(self) -> None:
        """Give the memory back; what is read again comes from the file, or from the system's cache of it."""
        if self._map is not None and hasattr(self._map, "madvise"):  # not on Windows
            self._map.madvise(mmap.MADV_DONTNEED)


def map_rows(pieces: Iterable[NDArray[Any]], shape: tuple[int, int], dtype: Any, beside: Path) -> MappedRows:
    """Return rows that come in pieces as one array, in a file beside a path, or where temporary files go."""
    folder = str(beside) if os.access(beside, os.W_OK) else None
    with tempfile.TemporaryFile(dir=folder, prefix=".recal-scratch-") as file:
        for piece in pieces:
            np.ascontiguousarray(piece, dtype=dtype).tofile(file)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(mapped, dtype=dtype).reshape(shape).view(MappedRows)
    array._map = mapped
    return array
