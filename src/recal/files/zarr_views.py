"""Views in a zarr folder: opened without reading logits, read row by row, written block by block.

The ledger of the folder (`ledger.py`) has a checksum for each block; a block is compared when it is first read.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from io import FileIO
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import check_classes, check_labels, check_matrix
from recal.engine.clusters import row_names
from recal.engine.compiled import PIECE_VALUES, map_rows
from recal.errors import FileError, InputError
from recal.files import ledger as ledgers
from recal.files.atomic import exchange, partial_name, sync_folder
from recal.files.ledger import FolderLock, Ledger, Snapshot, checksum, describe, is_store, read_ledger
from recal.files.limits import admit_chunk, admit_folder, array_bytes
from recal.files.urls import is_remote, remove_tree
from recal.files.views import check_layout, row_parts, specs, transformed_dtype
from recal.transforms import as_transform
from recal.transforms.preprocessing import Preprocessing
from recal.views import Views

VERSION = 1
_ROW_NAMES = ("clusters", "groups")
_FLOATS = ("float16", "float32", "float64")
# Larger arrays are mapped from a file instead of being read into memory.
_MAX_BYTES_IN_MEMORY = 250_000_000
# Plain bytes and compression. A codec that is not listed could run code: one of zarr's is pickle.
_CODECS = frozenset(["bytes", "zstd", "blosc", "gzip", "crc32c", "transpose", "sharding_indexed"])
_UNCOMPRESSED = ({"name": "bytes", "configuration": {"endian": "little"}},)

# --- writing


def write_folder(views: Views, target: Path) -> None:
    """Write a zarr folder under a temporary name and rename it. Only a folder of views without a writer is replaced."""
    if is_remote(target):
        _write_objects(views, target)
        return
    target = Path(os.path.realpath(target))
    partial = partial_name(target)
    lock = None
    try:
        _check_replaceable(target)
        lock = FolderLock(target) if target.is_dir() else None
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(views, partial)
        _move(partial, target)
    except OSError as error:
        raise FileError(f"Cannot write {target}: {error.strerror or error}. No files were written.") from error
    finally:
        if lock is not None:
            lock.close()
        shutil.rmtree(partial, ignore_errors=True)


def _write_objects(views: Views, target: Path) -> None:
    """Write to an object store, which cannot rename: the description comes last, and without it there are no views."""
    try:
        _check_replaceable(target)
        remove_tree(target / "zarr.json")
        remove_tree(target)
        _write(views, target)
    except OSError as error:
        raise FileError(f"Cannot write {target}: {error.strerror or error}. It may be incomplete.") from error


def _check_replaceable(path: Path) -> None:
    if path.exists() and not (path.is_dir() and is_store(path)):
        raise FileExistsError(17, "it contains files that recal did not write")


def _move(partial: Path, target: Path) -> None:
    """Replace the old folder by the new one, atomically if the system supports it."""
    if not target.exists():
        os.rename(partial, target)
    elif not exchange(partial, target):
        old = partial_name(target)
        os.rename(target, old)
        try:
            os.rename(partial, target)
        except OSError:
            os.rename(old, target)
            raise
        shutil.rmtree(old, ignore_errors=True)
    sync_folder(target.parent)


def _write(views: Views, path: Path) -> None:
    import zarr

    n, k = views.n_samples, views.n_classes
    slices = list(row_parts(n, k))
    rows = slices[0].stop
    root = zarr.open_group(str(path), mode="w", zarr_format=3)
    # A lost chunk reads as NaN, which is refused. Compression saves little on logits.
    options: Any = {"fill_value": float("nan"), "compressors": None}
    dtype = views[:1].logits.dtype
    arrays = [root.create_array("logits", shape=(n, k), chunks=(rows, k), dtype=dtype, **options)]
    if views.transforms:
        shape, chunks = (len(views.transforms), n, k), (1, rows, k)
        dtype = transformed_dtype(views)
        arrays.append(root.create_array("transformed", shape=shape, chunks=chunks, dtype=dtype, **options))
    ledger = Ledger(path, {"kind": ledgers.WRITTEN, "version": ledgers.VERSION, "batch_size": rows})
    for index, part in enumerate(slices):
        block = views[part]
        values = block.logits.astype(arrays[0].dtype, copy=False)
        arrays[0][part] = values
        sums = [checksum(values)]
        for layer, transform in enumerate(views.transforms):
            values = block.transformed(transform).astype(arrays[1].dtype, copy=False)
            arrays[1][layer, part] = values
            sums.append(checksum(values))
        ledger.blocks[index] = {"block": index, "rows": len(values), "sums": sums}
    preprocessing = None if views.preprocessing is None else views.preprocessing.as_json()
    rows_of = {"clusters": views.clusters, "groups": views.groups}
    ledger.end = describe_store(
        root, specs(views).tolist(), views.classes, views.labels, (n, k), preprocessing, rows_of
    )
    ledger.write()
    root.attrs["recal"] = description(specs(views).tolist(), ledger.generation(ledger.end), preprocessing)


def describe_store(
    root: Any,
    transforms: list[str],
    classes: NDArray[Any] | None,
    labels: NDArray[Any] | None,
    shape: tuple[int, int],
    preprocessing: dict[str, Any] | None,
    names_of_rows: Mapping[str, NDArray[Any] | None] = MappingProxyType({}),
) -> ledgers.Record:
    """Write labels, clusters, groups and names of classes into a store, and return the end of its ledger."""
    names = None if classes is None else classes.tolist()
    stored = None if labels is None else labels.astype(np.int64)
    if stored is not None:
        root.create_array("labels", data=stored, chunks=(shape[0],), fill_value=-1, overwrite=True)
    if names is not None:
        root.attrs["classes"] = names
    digest = describe(transforms, names, (len(transforms), *shape), preprocessing)
    end: ledgers.Record = {"description": digest, "labels": None if stored is None else checksum(stored)}
    for name, values in names_of_rows.items():
        if values is not None:
            text = np.frombuffer(json.dumps(values.tolist()).encode(), np.uint8)
            root.create_array(name, data=text, chunks=text.shape, fill_value=0, overwrite=True)
            end[name] = checksum(text)
    return end


def description(transforms: list[str], generation: str, preprocessing: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the attributes by which a zarr folder is known as views."""
    own = {"kind": "views", "version": VERSION, "transforms": transforms, "generation": generation}
    return own if preprocessing is None else {**own, "preprocessing": preprocessing}


# --- opening


def open_folder(path: Path, *, verify: bool = True) -> Views:
    """Open views without reading their logits."""
    import zarr

    ledger, problem = _read_ledger(path)
    if ledger is not None and ledger.end is None:
        raise FileError(
            f"{path} is unfinished: collect was interrupted. Run the same collect again with resume=True "
            "(the default), to resume where it stopped."
        )
    try:
        root: Any = zarr.open_group(str(path), mode="r", zarr_format=3)
        header, names = root.attrs.get("recal"), root.attrs.get("classes")
        arrays = {name: root[name] for name in ("logits", "labels", "transformed", *_ROW_NAMES) if name in root}
        codecs = {name for array in arrays.values() for name in _codecs(array.metadata.to_dict())}
    except Exception as error:  # zarr has no common error for broken folders
        raise FileError(f"{path} is not a zarr folder of views: {error}.") from error
    transforms = _check_header(path, header)
    _check_sizes(path, arrays)
    if codecs - _CODECS:
        raise FileError(f"{path} is packed with {sorted(codecs - _CODECS)[0]!r}, which is not opened.")
    logits = _check_array(path, arrays, "logits", 2)
    stack = _check_array(path, arrays, "transformed", 3) if "transformed" in arrays else None
    check_layout(path, logits.shape, transforms, stack.shape if stack is not None else (0, *logits.shape))
    try:
        classes = None if names is None else check_classes(names, logits.shape[1])
        stored = header.get("preprocessing")
        preprocessing = None if stored is None else Preprocessing.from_json(stored)
        digest = describe(transforms.tolist(), names, (len(transforms), *logits.shape), stored)
        snapshot = _snapshot(path, header.get("generation"), digest, ledger, problem, verify)
        labels = _read_labels(path, arrays, logits.shape, snapshot)
        end = None if ledger is None or not verify else ledger.end
        rows = [_read_row_names(path, name, arrays.get(name), logits.shape[0], snapshot, end) for name in _ROW_NAMES]
        layers = {as_transform(spec): _Rows(snapshot, stack, index) for index, spec in enumerate(transforms.tolist())}
    except InputError as error:
        raise error.at(path) from None
    if len(layers) != len(transforms):
        raise FileError(f"{path}: `transforms` names a transformation twice.")
    return Views.unchecked(_Rows(snapshot, logits), layers, labels, classes, preprocessing, *rows)


def _read_ledger(path: Path) -> tuple[Ledger | None, str]:
    """Return the ledger, or None and the reason why it cannot be used."""
    try:
        return read_ledger(path), ""
    except (OSError, ValueError) as error:
        return None, str(error)


def _check_sizes(path: Path, arrays: dict[str, Any]) -> None:
    """Refuse arrays, or single chunks, that declare far more bytes than the folder has."""
    sizes = [(array.shape, np.dtype(array.dtype).itemsize) for array in arrays.values()]
    chunks = [(array.shards or array.chunks, np.dtype(array.dtype).itemsize) for array in arrays.values()]
    if any(0 in chunk for chunk, _ in chunks):
        raise FileError(f"{path} is damaged: it declares chunks that hold nothing.")
    files = [math.prod(-(-n // size) for n, size in zip(shape, chunk)) for (shape, _), (chunk, _) in zip(sizes, chunks)]
    admit_folder(path, max([array_bytes(sizes), *(array_bytes([chunk]) for chunk in chunks)]), sum(files))


def _snapshot(
    path: Path, generation: Any, description: str, ledger: Ledger | None, problem: str, verify: bool
) -> Snapshot:
    """Return the folder as it is now. A zarr folder that recal did not write has no checksums."""
    if not isinstance(generation, str) or not verify:
        return Snapshot(path, str(generation), None)
    remedy = "Collect again to repair it, or open it with verify=False."
    if ledger is None or ledger.end is None:
        raise FileError(f"{path} is damaged: its {ledgers.NAME} cannot be used ({problem}). {remedy}")
    if ledger.generation(ledger.end) != generation or ledger.end.get("description") != description:
        raise FileError(f"{path} is damaged: what it says about its views is not what was written with them. {remedy}")
    return Snapshot(path, generation, ledger)


def _codecs(metadata: Any, inside: str = "") -> Iterator[str]:
    """Yield the name of every codec in the description of an array, also of those inside other codecs.

    Compression inside a shard gets a name of its own, since its size cannot be checked before it is unpacked.
    """
    for key, value in metadata.items():
        if key in ("codecs", "index_codecs"):
            for codec in value:
                packed = inside and codec["name"] in ("zstd", "blosc", "gzip")
                yield f"{codec['name']} in shards" if packed else codec["name"]
                yield from _codecs(codec, codec["name"])
        elif key == "configuration":
            yield from _codecs(value, inside)


def _check_header(path: Path, header: Any) -> NDArray[Any]:
    if not isinstance(header, dict) or header.get("kind") != "views":
        raise FileError(f"{path} is a zarr folder, but not one of recal's views.")
    version, transforms = header.get("version"), header.get("transforms", [])
    if type(version) is not int or version > VERSION:
        raise FileError(f"{path} has the format {version!r} and this recal reads up to {VERSION}; update recal.")
    if not isinstance(transforms, list) or not all(isinstance(spec, str) for spec in transforms):
        raise FileError(f"{path}: `transforms` must be a list of specs, got {transforms!r}.")
    return np.array(transforms, dtype=np.str_)


def _check_array(path: Path, arrays: dict[str, Any], name: str, ndim: int) -> Any:
    array = arrays.get(name)
    if array is None or array.ndim != ndim or np.dtype(array.dtype).name not in _FLOATS:
        content = "nothing" if array is None else f"{array.dtype}, shape {array.shape}"
        raise FileError(f"{path}: `{name}` must be an array of floats with {ndim} dimensions, got {content}.")
    return array


def _read_labels(
    path: Path, arrays: dict[str, Any], shape: tuple[int, ...], snapshot: Snapshot
) -> NDArray[np.intp] | None:
    if "labels" not in arrays:
        if snapshot.labels is not None:
            raise FileError(f"{path} is damaged: its labels are missing.")
        return None
    stored = arrays["labels"]
    if stored.shape != shape[:1] or np.dtype(stored.dtype).kind not in "iu":
        raise FileError(f"{path}: `labels` must be {shape[0]} integers, got {stored.dtype}, shape {stored.shape}.")
    labels = _Rows(snapshot, stored, compared=False)[:]
    if snapshot.labels is not None and checksum(labels.astype(np.int64)) != snapshot.labels:
        raise FileError(f"{path} is damaged: its labels are not what was written. Collect again to repair it.")
    return check_labels(labels, shape[0], shape[1])


def _read_row_names(
    path: Path, name: str, stored: Any, n_samples: int, snapshot: Snapshot, end: ledgers.Record | None
) -> NDArray[np.str_] | None:
    """Return the clusters or groups of a folder, which are a JSON list of texts."""
    expected = None if end is None else end.get(name)
    if stored is None:
        if expected is not None:
            raise FileError(f"{path} is damaged: its {name} are missing.")
        return None
    if stored.ndim != 1 or np.dtype(stored.dtype) != np.uint8:
        raise FileError(f"{path}: `{name}` must be text, got {stored.dtype}, shape {stored.shape}.")
    text = _Rows(snapshot, stored, compared=False)[:]
    if end is not None and checksum(text) != expected:
        raise FileError(f"{path} is damaged: its {name} are not what was written. Collect again to repair it.")
    try:
        values = json.loads(text.tobytes())
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: `{name}` must be JSON: {error}.") from None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise FileError(f"{path}: `{name}` must be a list of texts.")
    return row_names(values, n_samples, name)


# --- reading rows


class _Rows:
    """A stored array, or one layer of a stack, that reads only the requested rows."""

    def __init__(self, snapshot: Snapshot, stored: Any, layer: int | None = None, *, compared: bool = True) -> None:
        self._snapshot, self._stored, self._layer = snapshot, stored, layer
        self._path = snapshot.folder
        # The number of rows that share a checksum, 0 without checksums, and the place of the checksum in a record.
        self._block_rows = snapshot.rows if compared and snapshot.sums is not None else 0
        self._sum = 0 if layer is None else layer + 1
        self.shape: tuple[int, ...] = stored.shape if layer is None else stored.shape[1:]
        self._step = stored.chunks[0 if layer is None else 1]
        self._plain = plain_chunks(stored, layer) if len(self.shape) == 2 else None
        self._scratch: NDArray[Any] | None = None

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> NDArray[Any]:
        self._snapshot.check_unchanged()
        try:
            if not isinstance(rows, slice):
                self._compare_blocks(rows)
                return self._pick(rows)
            run = range(*rows.indices(self.shape[0]))
            if len(self.shape) == 2 and len(run) == self.shape[0] and run.step == 1 and self._is_large:
                return self._mapped()
            if run.step > 0:
                return self._compared(rows, run)
            return self._compared(slice(run[-1], run[0] + 1, -run.step), run[::-1])[::-1]  # zarr reads forwards only
        except (FileError, InputError):
            raise
        except MemoryError as error:
            raise FileError(f"{self._path} does not fit in memory; select fewer rows at a time.") from error
        except Exception as error:
            self._snapshot.check_unchanged()  # it may have been removed just now
            raise FileError(f"{self._path} is damaged: {error}.") from error

    @property
    def _is_large(self) -> bool:
        return self.shape[0] * self.shape[1] * self._stored.dtype.itemsize > _MAX_BYTES_IN_MEMORY

    def _mapped(self) -> NDArray[Any]:
        """Return all rows as an array that is mapped from a scratch file, so they need not fit in memory."""
        if self._scratch is None:
            step = max(1, PIECE_VALUES // self.shape[1])
            step = max(step - step % self._step, self._step)  # whole blocks, which are compared as they are read
            parts = (range(first, min(first + step, self.shape[0])) for first in range(0, self.shape[0], step))
            pieces = (self._compared(slice(part.start, part.stop), part) for part in parts)
            dtype = np.float32 if self._stored.dtype == np.float16 else self._stored.dtype
            checked = (check_matrix(piece, "logits") for piece in pieces)
            folder = Path(tempfile.gettempdir()) if is_remote(self._path) else self._path.parent
            mapped = map_rows(checked, (self.shape[0], self.shape[1]), dtype, folder)
            if self._layer is not None:
                return mapped
            self._scratch = mapped  # the originals are needed repeatedly
        return self._scratch

    def _compared(self, rows: slice, run: range) -> NDArray[Any]:
        """Read a run of rows. Blocks inside it are compared as they are read, so no block is read twice."""
        if not self._block_rows or run.step != 1 or not run:
            self._compare_blocks(np.arange(run.start, run.stop, run.step))
            return self._slice(rows)
        size, values = self._block_rows, self._slice(rows)
        for block in self._snapshot.unchecked(self._sum, run[0] // size, run[-1] // size):
            first, last = block * size, min((block + 1) * size, self.shape[0])
            inside = run[0] <= first and last - 1 <= run[-1]
            part = values[first - run[0] : last - run[0]] if inside else self._slice(slice(first, last))
            self._snapshot.compare(self._sum, block, part)
        return values

    def _compare_blocks(self, rows: NDArray[np.intp]) -> None:
        if not self._block_rows or not len(rows):
            return
        size = self._block_rows
        blocks = np.unique(rows // size).tolist()
        for block in set(self._snapshot.unchecked(self._sum, blocks[0], blocks[-1])) & set(blocks):
            values = self._slice(slice(block * size, min((block + 1) * size, self.shape[0])))
            self._snapshot.compare(self._sum, block, values)

    def _slice(self, rows: slice) -> NDArray[Any]:
        if self._plain:
            return self._plain.read(np.arange(*rows.indices(self.shape[0])))
        check_regular(self._stored, self._layer, range(*rows.indices(self.shape[0])))
        return np.asarray(self._stored[rows] if self._layer is None else self._stored[self._layer, rows])

    def _pick(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Read rows chunk by chunk, so that rows far apart do not load everything in between."""
        if self._plain:
            return self._plain.read(rows)
        picked = np.empty((len(rows), *self.shape[1:]), dtype=self._stored.dtype)
        for part in _by_chunk(rows, self._step):
            first, last = int(rows[part[0]]), int(rows[part[-1]])
            picked[part] = self._slice(slice(first, last + 1))[rows[part] - first]
        return picked


def _by_chunk(rows: NDArray[np.intp], step: int) -> list[NDArray[np.intp]]:
    """Return the positions of rows in ascending order, split by the chunk that the row is in."""
    order = np.argsort(rows, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(rows[order] // step)) + 1)


class PlainChunks:
    """Reads rows of an uncompressed array, or of one layer of a stack, directly from its files.

    A fit on disk reads a few rows in a hundred repeatedly. zarr reads and copies whole chunks; reading the bytes of
    single rows is fifty times faster.
    """

    def __init__(self, stored: Any, layer: int | None) -> None:
        self._stored, self._layer = stored, layer
        self._folder = Path(stored.store.root) / stored.path
        self._step, self._width = stored.chunks[-2:]

    def read(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Return the rows in the given order."""
        out = np.full((len(rows), self._width), self._stored.fill_value, dtype=self._stored.dtype)
        for part in _by_chunk(rows, self._step) if len(rows) else ():
            self._read_chunk(int(rows[part[0]]) // self._step, rows, part, out)
        return out

    def _read_chunk(self, chunk: int, rows: NDArray[np.intp], part: NDArray[np.intp], out: NDArray[Any]) -> None:
        index = (chunk, 0) if self._layer is None else (self._layer, chunk, 0)
        try:
            file = _open_regular(self._folder / self._stored.metadata.encode_chunk_key(index))
        except FileNotFoundError:  # zarr reads a missing chunk as the fill value
            return
        row_size = out.dtype.itemsize * self._width
        # Rows that are adjacent here and in the file are read together.
        breaks = (np.diff(part) != 1) | (np.diff(rows[part]) != 1)
        with file:
            for run in np.split(part, np.flatnonzero(breaks) + 1):
                file.seek((int(rows[run[0]]) - chunk * self._step) * row_size)
                target = out[run[0] : run[0] + len(run)].data.cast("B")
                if file.readinto(target) != len(target):
                    raise ValueError(f"{file.name} is cut short")


def plain_chunks(stored: Any, layer: int | None = None) -> PlainChunks | None:
    """Return a reader of the array's files, or None if they are compressed, remote or contain parts of rows."""
    root = getattr(stored.store, "root", None)
    chunks, metadata = stored.chunks, stored.metadata.to_dict()
    full_rows = chunks[-1] == stored.shape[-1] and all(size == 1 for size in chunks[:-2])
    plain = tuple(metadata.get("codecs", ())) == _UNCOMPRESSED and sys.byteorder == "little"
    return PlainChunks(stored, layer) if isinstance(root, Path) and full_rows and plain else None


def _open_regular(path: Path) -> FileIO:
    """Open a file for reading; refuse a pipe or a device, which could block forever."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path} is not a regular file")
    return FileIO(handle)


def check_regular(stored: Any, layer: int | None, rows: range) -> None:
    """Refuse chunks that are a pipe or a device, or that would unpack to more than a chunk, before zarr opens them."""
    root = getattr(stored.store, "root", None)
    if not isinstance(root, Path) or not rows:
        return
    sizes = stored.shards or stored.chunks
    step = sizes[0] if layer is None else sizes[1]
    columns = [range(-(-full // size)) for full, size in zip(stored.shape[-1:], sizes[-1:])] if len(sizes) > 1 else []
    codecs = [codec["name"] for codec in stored.metadata.to_dict().get("codecs", ())]
    expected = array_bytes([(sizes, np.dtype(stored.dtype).itemsize)])
    for block, *rest in product(range(rows[0] // step, rows[-1] // step + 1), *columns):
        index = (block, *rest) if layer is None else (layer // sizes[0], block, *rest)
        path = root / stored.path / stored.metadata.encode_chunk_key(index)
        if not path.exists():
            continue
        if not path.is_file():
            raise ValueError(f"{path} is not a regular file")
        admit_chunk(path, codecs, expected)
