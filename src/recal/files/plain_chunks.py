"""Rows of a zarr array that is stored as it is, read straight from its files.

A fit on disk asks again and again for a few rows in a hundred. zarr reads, and copies, every chunk that holds one of
them; where chunks are not packed, a row is a run of bytes in a file, and reading it alone is fifty times faster.
"""

from __future__ import annotations

import os
import stat
import sys
from io import FileIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.files.gate import admit_chunk, declared

_AS_IT_IS = ({"name": "bytes", "configuration": {"endian": "little"}},)


class PlainChunks:
    """Reads rows of a stored (n_samples, n_classes) array, or of one layer of a stack of them."""

    def __init__(self, stored: Any, layer: int | None) -> None:
        self._stored, self._layer = stored, layer
        self._folder = Path(stored.store.root) / stored.path
        self._step, self._width = stored.chunks[-2:]

    def read(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Return the rows, in the order asked for."""
        out = np.full((len(rows), self._width), self._stored.fill_value, dtype=self._stored.dtype)
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        for places in np.split(order, np.flatnonzero(np.diff(ordered // self._step)) + 1):
            self._read_chunk(int(rows[places[0]]) // self._step, rows, places, out)
        return out

    def _read_chunk(self, chunk: int, rows: NDArray[np.intp], places: NDArray[np.intp], out: NDArray[Any]) -> None:
        index = (chunk, 0) if self._layer is None else (self._layer, chunk, 0)
        try:
            file = open_regular(self._folder / self._stored.metadata.encode_chunk_key(index))
        except FileNotFoundError:  # to zarr, a chunk of nothing but the fill value
            return
        row_size = out.dtype.itemsize * self._width
        # Rows that follow each other, here and in the file, are read at once.
        breaks = (np.diff(places) != 1) | (np.diff(rows[places]) != 1)
        with file:
            for run in np.split(places, np.flatnonzero(breaks) + 1):
                file.seek((int(rows[run[0]]) - chunk * self._step) * row_size)
                target = out[run[0] : run[0] + len(run)].data.cast("B")
                if file.readinto(target) != len(target):
                    raise ValueError(f"{file.name} is cut short")


def open_regular(path: Path) -> FileIO:
    """Open a file for reading; refuse a pipe or a device, which might never answer."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path} is not a regular file")
    return FileIO(handle)


def check_regular(stored: Any, layer: int | None, rows: range) -> None:
    """Refuse where zarr would open a pipe or a device in place of a chunk, or unpack more than a chunk holds."""
    root = getattr(stored.store, "root", None)
    if not isinstance(root, Path) or not rows:
        return
    sizes = stored.shards or stored.chunks
    step = sizes[0] if layer is None else sizes[1]
    places = [range(-(-full // size)) for full, size in zip(stored.shape[-1:], sizes[-1:])] if len(sizes) > 1 else []
    codecs = [codec["name"] for codec in stored.metadata.to_dict().get("codecs", ())]
    expected = declared([(sizes, np.dtype(stored.dtype).itemsize)])
    for block, *rest in product(range(rows[0] // step, rows[-1] // step + 1), *places):
        index = (block, *rest) if layer is None else (layer // sizes[0], block, *rest)
        path = root / stored.path / stored.metadata.encode_chunk_key(index)
        if not path.exists():
            continue
        if not path.is_file():
            raise ValueError(f"{path} is not a regular file")
        admit_chunk(path, codecs, expected)


def plain_chunks(stored: Any, layer: int | None = None) -> PlainChunks | None:
    """Return a reader of the array's files, or None where they are packed, lie elsewhere or hold parts of rows."""
    root = getattr(stored.store, "root", None)
    chunks, metadata = stored.chunks, stored.metadata.to_dict()
    whole_rows = chunks[-1] == stored.shape[-1] and all(size == 1 for size in chunks[:-2])
    as_it_is = tuple(metadata.get("codecs", ())) == _AS_IT_IS and sys.byteorder == "little"
    return PlainChunks(stored, layer) if isinstance(root, Path) and whole_rows and as_it_is else None
