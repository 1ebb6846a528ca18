"""Rows of a zarr folder: only the requested rows are read, and each block is compared with its
checksum once.
"""

from __future__ import annotations

import math
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import check_matrix
from recal.engine.mapped import PIECE_VALUES, map_rows
from recal.errors import FileError, InputError
from recal.files.ledger import Ledger, attributes, checksum
from recal.files.paths import is_remote, version_stamp

# Larger arrays are mapped from a file instead of being read into memory.
_MAX_BYTES_IN_MEMORY = 250_000_000
_UNCOMPRESSED = ({"name": "bytes", "configuration": {"endian": "little"}},)


class Snapshot:
    """The state of a store when it was opened: notices if the store is written again, and checks
    each block once.
    """

    def __init__(self, folder: Path, generation: str, ledger: Ledger | None) -> None:
        self.folder, self.generation = folder, generation
        self.rows = 0 if ledger is None else ledger.header["batch_size"]
        self.sums = None if ledger is None else ledger.sums
        self._stamp = version_stamp(folder / "zarr.json")
        self._checked: set[tuple[int, int]] = set()

    def check_unchanged(self) -> None:
        """Refuse to continue if the folder is not the one that was opened."""
        stamp = version_stamp(self.folder / "zarr.json")
        if stamp == self._stamp and stamp is not None:
            return
        if stamp is None or attributes(self.folder).get("generation") != self.generation:
            raise FileError(
                f"{self.folder} was written again, or removed, since it was opened, so these views no longer belong to "
                "it. Open it again with read_views."
            )
        self._stamp = stamp

    def unchecked(self, layer: int, first: int, last: int) -> list[int]:
        """Return the blocks from first to last that are not compared yet; layer 0 is the logits, 1
        the first view.
        """
        if self.sums is None:
            return []
        return [block for block in range(first, last + 1) if (layer, block) not in self._checked]

    def compare(self, layer: int, block: int, values: NDArray[Any]) -> None:
        """Compare the rows of one block with its checksum."""
        assert self.sums is not None
        sums = self.sums[layer] if layer < len(self.sums) else []
        if block >= len(sums) or checksum(values) != sums[block]:
            part = f"view {layer - 1}" if layer else "the logits"
            raise FileError(
                f"{self.folder} is damaged: rows {block * self.rows} and on of {part} are not what was written. "
                "Collect again to repair it, or open it with verify=False."
            )
        self._checked.add((layer, block))


class StoredRows:
    """A stored array, or one layer of a stack, that reads only the requested rows."""

    def __init__(
        self, snapshot: Snapshot, stored: Any, layer: int | None = None, *, compared: bool = True
    ) -> None:
        self._snapshot, self._stored, self._layer = snapshot, stored, layer
        self._path = snapshot.folder
        # The number of rows per checksum (0 without checksums), and the position of the checksum in
        # a record.
        self._block_rows = snapshot.rows if compared and snapshot.sums is not None else 0
        self._sum = 0 if layer is None else layer + 1
        self.shape: tuple[int, ...] = stored.shape if layer is None else stored.shape[1:]
        self._step = stored.chunks[0 if layer is None else 1]
        self._plain = plain_chunks(stored, layer) if len(self.shape) == 2 else None
        self._scratch: NDArray[Any] | None = None

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> NDArray[Any]:
        self._snapshot.check_unchanged()
        try:
            if isinstance(rows, slice):
                run = range(*rows.indices(self.shape[0]))
                if run.step == 1:
                    whole = len(self.shape) == 2 and len(run) == self.shape[0]
                    large = (
                        math.prod(self.shape) * self._stored.dtype.itemsize > _MAX_BYTES_IN_MEMORY
                    )
                    return self._mapped() if whole and large else self._run(run.start, run.stop)
                rows = np.arange(run.start, run.stop, run.step)
            self._compare_blocks(rows)
            return self._pick(rows)
        except (FileError, InputError):
            raise
        except MemoryError as error:
            raise FileError(
                f"{self._path} does not fit in memory; select fewer rows at a time."
            ) from error
        except Exception as error:
            self._snapshot.check_unchanged()  # it may have been removed just now
            raise FileError(f"{self._path} is damaged: {error}.") from error

    def _mapped(self) -> NDArray[Any]:
        """Return all rows as an array that is mapped from a scratch file, so they need not fit in
        memory.
        """
        if self._scratch is None:
            step = max(1, PIECE_VALUES // self.shape[1])
            step = max(
                step - step % self._step, self._step
            )  # whole blocks, which are compared as they are read
            starts = range(0, self.shape[0], step)
            pieces = (self._run(start, min(start + step, self.shape[0])) for start in starts)
            dtype = np.float32 if self._stored.dtype == np.float16 else self._stored.dtype
            checked = (check_matrix(piece, "logits") for piece in pieces)
            folder = Path(tempfile.gettempdir()) if is_remote(self._path) else self._path.parent
            mapped = map_rows(checked, (self.shape[0], self.shape[1]), dtype, folder)
            if self._layer is not None:
                return mapped
            self._scratch = mapped  # the originals are needed repeatedly
        return self._scratch

    def _run(self, start: int, stop: int) -> NDArray[Any]:
        """Read adjacent rows. Blocks are compared as they are read, so no block is read twice."""
        size = self._block_rows
        blocks = (
            self._snapshot.unchecked(self._sum, start // size, (stop - 1) // size) if size else []
        )
        if not blocks:
            return self._read(start, stop)
        first, last = (
            min(start, blocks[0] * size),
            min(max(stop, (blocks[-1] + 1) * size), self.shape[0]),
        )
        values = self._read(first, last)
        for block in blocks:
            self._snapshot.compare(
                self._sum, block, values[block * size - first : (block + 1) * size - first]
            )
        return values[start - first : stop - first]

    def _compare_blocks(self, rows: NDArray[np.intp]) -> None:
        size = self._block_rows
        for block in np.unique(rows // size).tolist() if size else ():
            if self._snapshot.unchecked(self._sum, block, block):
                self._run(block * size, min((block + 1) * size, self.shape[0]))

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        if self._plain:
            return self._plain.read(np.arange(start, stop))
        check_chunks(self._stored, self._layer, range(start, stop))
        rows = slice(start, stop)
        return np.asarray(
            self._stored[rows] if self._layer is None else self._stored[self._layer, rows]
        )

    def _pick(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Read rows chunk by chunk, so that rows far apart do not load everything in between."""
        if self._plain:
            return self._plain.read(rows)
        picked = np.empty((len(rows), *self.shape[1:]), dtype=self._stored.dtype)
        for part in _by_chunk(rows, self._step):
            first, last = int(rows[part[0]]), int(rows[part[-1]])
            picked[part] = self._read(first, last + 1)[rows[part] - first]
        return picked


def _by_chunk(rows: NDArray[np.intp], step: int) -> list[NDArray[np.intp]]:
    """Return the positions of rows in ascending order, split by the chunk that the row is in."""
    order = np.argsort(rows, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(rows[order] // step)) + 1)


class PlainChunks:
    """Reads rows of an uncompressed array, or of one layer of a stack, directly from its files.

    A fit on disk reads a few rows in a hundred repeatedly. zarr reads and copies whole chunks;
    reading the bytes of single rows is fifty times faster.
    """

    def __init__(self, stored: Any, layer: int | None) -> None:
        self._stored, self._layer = stored, layer
        self._root = Path(stored.store.root)
        self._folder = self._root / stored.path
        self._step, self._width = stored.chunks[-2:]

    def read(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Return the rows in the given order."""
        out = np.full((len(rows), self._width), self._stored.fill_value, dtype=self._stored.dtype)
        for part in _by_chunk(rows, self._step) if len(rows) else ():
            self._read_chunk(int(rows[part[0]]) // self._step, rows, part, out)
        return out

    def _read_chunk(
        self, chunk: int, rows: NDArray[np.intp], part: NDArray[np.intp], out: NDArray[Any]
    ) -> None:
        index = (chunk, 0) if self._layer is None else (self._layer, chunk, 0)
        path = self._folder / self._stored.metadata.encode_chunk_key(index)
        if not path.exists():  # zarr reads a missing chunk as the fill value
            return
        _check_place(path, self._root)
        row_size = out.dtype.itemsize * self._width
        # Rows that are adjacent here and in the file are read together.
        breaks = (np.diff(part) != 1) | (np.diff(rows[part]) != 1)
        with path.open("rb", buffering=0) as file:
            for run in np.split(part, np.flatnonzero(breaks) + 1):
                file.seek((int(rows[run[0]]) - chunk * self._step) * row_size)
                target = out[run[0] : run[0] + len(run)].data.cast("B")
                if file.readinto(target) != len(target):
                    raise ValueError(f"{path} is cut short")


def plain_chunks(stored: Any, layer: int | None = None) -> PlainChunks | None:
    """Return a reader of the array's files, or None if they are compressed, remote or contain parts
    of rows.
    """
    root = getattr(stored.store, "root", None)
    chunks, metadata = stored.chunks, stored.metadata.to_dict()
    full_rows = chunks[-1] == stored.shape[-1] and all(size == 1 for size in chunks[:-2])
    plain = tuple(metadata.get("codecs", ())) == _UNCOMPRESSED and sys.byteorder == "little"
    return PlainChunks(stored, layer) if isinstance(root, Path) and full_rows and plain else None


def check_chunks(stored: Any, layer: int | None, rows: range) -> None:
    """Refuse chunks that are a pipe, a device or a link out of the store, before zarr opens them."""
    root = getattr(stored.store, "root", None)
    if not isinstance(root, Path) or not rows:
        return
    sizes = stored.shards or stored.chunks
    step = sizes[0] if layer is None else sizes[1]
    columns = [range(-(-stored.shape[-1] // sizes[-1]))] if len(sizes) > 1 else []
    for block, *rest in product(range(rows[0] // step, rows[-1] // step + 1), *columns):
        index = (block, *rest) if layer is None else (layer // sizes[0], block, *rest)
        path = root / stored.path / stored.metadata.encode_chunk_key(index)
        if path.exists():
            _check_place(path, root)


def _check_place(path: Path, root: Path) -> None:
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    if not path.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{path} is a link to a file outside")
