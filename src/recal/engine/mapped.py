"""Logits larger than memory: one array, mapped from a scratch file.

A pass over a mapped array makes all of it resident, and the system takes memory back only when it
runs short. `compiled.over_rows` therefore works piece by piece and releases each piece: a fit needs
a few megabytes. The files of a store are not mapped: a block is not a whole number of pages, so
rows of two blocks are not contiguous.
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

# How many values of a mapped array are read before their memory is released: 128 MB of float32.
PIECE_VALUES = 32_000_000


class MappedRows(np.ndarray):
    """Read-only rows in an unnamed scratch file, which disappears with its last user, even after a
    kill.
    """

    _map: mmap.mmap | None = None

    def __array_finalize__(self, other: Any) -> None:
        self._map = getattr(other, "_map", None)

    def __getitem__(self, rows: Any) -> Any:
        if (
            isinstance(rows, np.ndarray)
            and rows.dtype.kind in "iu"
            and (rows.ndim, self.ndim) == (1, 2)
        ):
            return self._pick(rows)
        picked = super().__getitem__(rows)
        if not isinstance(picked, MappedRows) or np.may_share_memory(picked, self):
            return picked
        self.release()  # the rows were copied
        return picked.view(np.ndarray)

    def _pick(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Copy rows, a few at a time: each loads its neighbours into memory, and many would load
        the whole file.
        """
        at_a_time = 200
        plain, picked = (
            self.view(np.ndarray),
            np.empty((len(rows), self.shape[1]), dtype=self.dtype),
        )
        for begin in range(0, len(rows), at_a_time):
            part = slice(begin, begin + at_a_time)
            picked[part] = plain[rows[part]]
            self.release()
        return picked

    def argmax(self, axis: Any = None, out: Any = None, **options: Any) -> Any:
        """Return the columns of the largest values of all rows, piece by piece; other axes as numpy
        does.
        """
        plain = self.view(np.ndarray)
        if (axis, out, self.ndim, options) != (1, None, 2, {}):
            return plain.argmax(axis, out, **options)
        columns = np.empty(len(self), dtype=np.intp)
        size = max(1, PIECE_VALUES // self.shape[1])
        for begin in range(0, len(self), size):
            columns[begin : begin + size] = plain[begin : begin + size].argmax(axis=1)
            self.release()
        return columns

    def release(self) -> None:
        """Release the memory; later reads come from the file or from the system's cache of it."""
        if self._map is not None and hasattr(self._map, "madvise"):  # not on Windows
            self._map.madvise(mmap.MADV_DONTNEED)


def map_rows(
    pieces: Iterable[NDArray[Any]], shape: tuple[int, int], dtype: Any, beside: Path
) -> MappedRows:
    """Return rows that come in pieces as one array, in a file beside a path or in the folder for
    temporary files.
    """
    folder = str(beside) if os.access(beside, os.W_OK) else None
    with tempfile.TemporaryFile(dir=folder, prefix=".recal-scratch-") as file:
        for piece in pieces:
            np.ascontiguousarray(piece, dtype=dtype).tofile(file)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(mapped, dtype=dtype).reshape(shape).view(MappedRows)
    array._map = mapped
    return array
