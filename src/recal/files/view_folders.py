"""Views in a zarr folder: opened without reading logits, read row by row, written part by part."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import check_classes, check_labels, check_matrix
from recal.engine.kernels.mapped import PIECE_VALUES, map_rows
from recal.errors import FileError, InputError
from recal.files.atomic import exchange, partial_name, sync_folder
from recal.files.gate import admit_folder, declared
from recal.files.ledger import NAME as LEDGER
from recal.files.ledger import VERSION as LEDGER_VERSION
from recal.files.ledger import WRITTEN, FolderLock, Ledger, Snapshot, checksum, describe, is_store, read_ledger
from recal.files.places import is_remote, remove_tree
from recal.files.plain_chunks import check_regular, plain_chunks
from recal.files.views import check_layout, row_parts, specs, transformed_dtype
from recal.transforms import as_transform
from recal.transforms.preprocessing import Preprocessing
from recal.views import Views

VERSION = 1
_FLOATS = ("float16", "float32", "float64")
# Larger arrays are not read into memory whole but mapped.
_MOST_BYTES = 250_000_000
# Plain bytes and ways to pack them. A codec that is not listed might run something; pickle is one.
_CODECS = frozenset(["bytes", "zstd", "blosc", "gzip", "crc32c", "transpose", "sharding_indexed"])


def write_folder(views: Views, target: Path) -> None:
    """Write a zarr folder beside `target` and move it there; only a zarr folder that nobody writes is replaced."""
    if is_remote(target):
        _write_objects(views, target)
        return
    target = Path(os.path.realpath(target))
    partial = partial_name(target)
    lock = None
    try:
        if target.exists() and not _may_be_replaced(target):
            raise FileExistsError(17, "it contains files that recal did not write")
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
    """Write to an object store, where nothing can be moved: the description, which makes views of the rest, last."""
    try:
        if target.exists() and not _may_be_replaced(target):
            raise FileExistsError(17, "it contains files that recal did not write")
        remove_tree(target / "zarr.json")
        remove_tree(target)
        _write(views, target)
    except OSError as error:
        raise FileError(f"Cannot write {target}: {error.strerror or error}. It may be incomplete.") from error


def _may_be_replaced(path: Path) -> bool:
    return path.is_dir() and is_store(path)


def _move(partial: Path, target: Path) -> None:
    """Put the new folder in the old one's place, in one step where the system can."""
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
    listed, classes = specs(views).tolist(), None if views.classes is None else views.classes.tolist()
    between = None if views.preprocessing is None else views.preprocessing.as_json()
    # A lost chunk reads as NaN, which is refused. Compression saves little on logits.
    options: Any = {"fill_value": float("nan"), "compressors": None}
    arrays = [root.create_array("logits", shape=(n, k), chunks=(rows, k), dtype=views[:1].logits.dtype, **options)]
    if views.transforms:
        shape, chunks = (len(views.transforms), n, k), (1, rows, k)
        dtype = transformed_dtype(views)
        arrays.append(root.create_array("transformed", shape=shape, chunks=chunks, dtype=dtype, **options))
    ledger = Ledger(path, {"kind": WRITTEN, "version": LEDGER_VERSION, "batch_size": rows})
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
    labels = None if views.labels is None else views.labels.astype(np.int64)
    if labels is not None:
        root.create_array("labels", data=labels, chunks=(n,), fill_value=-1)
    if classes is not None:
        root.attrs["classes"] = classes
    ledger.end = {
        "description": describe(listed, classes, (len(listed), n, k), between),
        "labels": None if labels is None else checksum(labels),
    }
    ledger.write()
    root.attrs["recal"] = header(listed, ledger.generation(ledger.end), between)


def header(listed: list[str], generation: str, preprocessing: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what a folder of views says of itself."""
    own = {"kind": "views", "version": VERSION, "transforms": listed, "generation": generation}
    return own if preprocessing is None else {**own, "preprocessing": preprocessing}


def open_folder(path: Path, *, verify: bool = True) -> Views:
    """Open views without reading their logits; blocks are compared with their checksums when they are first read."""
    import zarr

    ledger, problem = _read_ledger(path)
    if ledger is not None and ledger.end is None:
        raise FileError(
            f"{path} is unfinished: collect was interrupted. Run the same collect again with resume=True "
            "(the default), to resume where it stopped."
        )

    try:
        root: Any = zarr.open_group(str(path), mode="r", zarr_format=3)
        described, names = root.attrs.get("recal"), root.attrs.get("classes")
        arrays = {name: root[name] for name in ("logits", "labels", "transformed") if name in root}
        codecs = {name for array in arrays.values() for name in _codecs(array.metadata.to_dict())}
    except Exception as error:  # a folder can be broken in more ways than zarr has errors for
        raise FileError(f"{path} is not a zarr folder of views: {error}.") from error
    listed = _check_header(path, described)
    _admit(path, arrays)
    if codecs - _CODECS:
        raise FileError(f"{path} is packed with {sorted(codecs - _CODECS)[0]!r}, which is not opened.")
    logits = _check_array(path, arrays, "logits", 2)
    stack = _check_array(path, arrays, "transformed", 3) if "transformed" in arrays else None
    check_layout(path, logits.shape, listed, stack.shape if stack is not None else (0, *logits.shape))
    try:
        classes = None if names is None else check_classes(names, logits.shape[1])
        shape = (len(listed), *logits.shape)
        held = described.get("preprocessing")
        between = None if held is None else Preprocessing.from_json(held)
        digest = describe(listed.tolist(), names, shape, held)
        snapshot = _snapshot(path, described.get("generation"), digest, ledger, problem, verify)
        labels = _read_labels(path, arrays, logits.shape, snapshot)
        layers = {as_transform(spec): _Rows(snapshot, stack, index) for index, spec in enumerate(listed.tolist())}
    except InputError as error:
        raise error.at(path) from None
    if len(layers) != len(listed):
        raise FileError(f"{path}: `transforms` names a transformation twice.")
    return Views.unchecked(_Rows(snapshot, logits), layers, labels, classes, between)


def _admit(path: Path, arrays: dict[str, Any]) -> None:
    """Refuse arrays, or single chunks of them, that declare far more than the folder's files hold."""
    sizes = [(array.shape, np.dtype(array.dtype).itemsize) for array in arrays.values()]
    chunks = [(array.shards or array.chunks, np.dtype(array.dtype).itemsize) for array in arrays.values()]
    if any(0 in chunk for chunk, _ in chunks):
        raise FileError(f"{path} is damaged: it declares chunks that hold nothing.")
    files = [math.prod(-(-n // size) for n, size in zip(whole, chunk)) for (whole, _), (chunk, _) in zip(sizes, chunks)]
    admit_folder(path, max([declared(sizes), *(declared([chunk]) for chunk in chunks)]), sum(files))


def _read_ledger(path: Path) -> tuple[Ledger | None, str]:
    """Return the ledger, or None and the reason why there is none."""
    try:
        return read_ledger(path), ""
    except (OSError, ValueError) as error:
        return None, str(error)


def _snapshot(
    path: Path, generation: Any, description: str, ledger: Ledger | None, problem: str, verify: bool
) -> Snapshot:
    """Return the folder as it is now. A zarr folder that was not written by recal has no checksums."""
    if not isinstance(generation, str) or not verify:
        return Snapshot(path, str(generation), None)
    if ledger is None or ledger.end is None:
        raise FileError(
            f"{path} is damaged: its {LEDGER} cannot be used ({problem}). Collect again to repair it, or open it with "
            "verify=False."
        )
    if ledger.generation(ledger.end) != generation or ledger.end.get("description") != description:
        raise FileError(
            f"{path} is damaged: what it says about its views is not what was written with them. Collect again to "
            "repair it, or open it with verify=False."
        )
    return Snapshot(path, generation, ledger)


def _codecs(metadata: Any, inside: str = "") -> Iterator[str]:
    """Name every codec that an array's description mentions, those inside other codecs too.

    What is packed inside a shard has a name of its own: how much it unpacks to is seen only when it is too late.
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
    version, listed = header.get("version"), header.get("transforms", [])
    if type(version) is not int or version > VERSION:
        raise FileError(f"{path} has the format {version!r} and this recal reads up to {VERSION}; update recal.")
    if not isinstance(listed, list) or not all(isinstance(spec, str) for spec in listed):
        raise FileError(f"{path}: `transforms` must be a list of specs, got {listed!r}.")
    return np.array(listed, dtype=np.str_)


def _check_array(path: Path, arrays: dict[str, Any], name: str, ndim: int) -> Any:
    array = arrays.get(name)
    if array is None or array.ndim != ndim or np.dtype(array.dtype).name not in _FLOATS:
        found = "nothing" if array is None else f"{array.dtype}, shape {array.shape}"
        raise FileError(f"{path}: `{name}` must be an array of floats with {ndim} dimensions, got {found}.")
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


class _Rows:
    """A stored array, or one layer of a stored stack, that reads the rows asked for and no others."""

    def __init__(self, snapshot: Snapshot, stored: Any, layer: int | None = None, *, compared: bool = True) -> None:
        self._snapshot, self._stored, self._layer = snapshot, stored, layer
        self._path = snapshot.folder
        # The rows of a block that has a checksum, and the place of its checksum.
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
            self._snapshot.check_unchanged()  # perhaps it was removed just now
            raise FileError(f"{self._path} is damaged: {error}.") from error

    @property
    def _is_large(self) -> bool:
        return self.shape[0] * self.shape[1] * self._stored.dtype.itemsize > _MOST_BYTES

    @property
    def _scratch_folder(self) -> Path:
        return Path(tempfile.gettempdir()) if is_remote(self._path) else self._path.parent

    def _mapped(self) -> NDArray[Any]:
        """Return all rows as an array that is mapped from a scratch file, so that they need not fit in memory."""
        if self._scratch is None:
            step = max(1, PIECE_VALUES // self.shape[1])
            step = max(step - step % self._step, self._step)  # whole blocks, which are compared as they are read
            parts = (range(first, min(first + step, self.shape[0])) for first in range(0, self.shape[0], step))
            pieces = (self._compared(slice(part.start, part.stop), part) for part in parts)
            dtype = np.float32 if self._stored.dtype == np.float16 else self._stored.dtype
            checked = (check_matrix(piece, "logits") for piece in pieces)
            mapped = map_rows(checked, (self.shape[0], self.shape[1]), dtype, self._scratch_folder)
            if self._layer is not None:
                return mapped
            self._scratch = mapped  # the originals are asked for again and again
        return self._scratch

    def _compared(self, rows: slice, run: range) -> NDArray[Any]:
        """Read a run of rows; a block that lies in it whole is compared as it is read, and no block is read twice."""
        if not self._block_rows or run.step != 1 or not run:
            self._compare_blocks(np.arange(run.start, run.stop, run.step))
            return self._slice(rows)
        size, values = self._block_rows, self._slice(rows)
        for block in self._snapshot.unchecked(self._sum, run[0] // size, run[-1] // size):
            first, last = block * size, min((block + 1) * size, self.shape[0])
            whole = run[0] <= first and last - 1 <= run[-1]
            part = values[first - run[0] : last - run[0]] if whole else self._slice(slice(first, last))
            self._snapshot.compare(self._sum, block, part)
        return values

    def _compare_blocks(self, rows: NDArray[np.intp]) -> None:
        if not self._block_rows or not len(rows):
            return
        size = self._block_rows
        asked = np.unique(rows // size).tolist()
        for block in set(self._snapshot.unchecked(self._sum, asked[0], asked[-1])) & set(asked):
            values = self._slice(slice(block * size, min((block + 1) * size, self.shape[0])))
            self._snapshot.compare(self._sum, block, values)

    def _slice(self, rows: slice) -> NDArray[Any]:
        if self._plain:
            return self._plain.read(np.arange(*rows.indices(self.shape[0])))
        check_regular(self._stored, self._layer, range(*rows.indices(self.shape[0])))
        return np.asarray(self._stored[rows] if self._layer is None else self._stored[self._layer, rows])

    def _pick(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Read part by part, so that rows far apart do not pull in all that lies between."""
        if self._plain:
            return self._plain.read(rows)
        picked = np.empty((len(rows), *self.shape[1:]), dtype=self._stored.dtype)
        order = np.argsort(rows, kind="stable")
        parts = np.flatnonzero(np.diff(rows[order] // self._step)) + 1
        for places in np.split(order, parts):
            wanted = rows[places]
            picked[places] = self._slice(slice(int(wanted[0]), int(wanted[-1]) + 1))[wanted - wanted[0]]
        return picked
