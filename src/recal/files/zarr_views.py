"""Views in a zarr folder: written block by block, and opened without reading logits.

Only the requested rows are read, and each block is compared with its checksum once.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_classes, check_labels, check_matrix
from recal.clusters import row_names
from recal.errors import FileError, InputError
from recal.files import ledger as ledgers
from recal.files.ledger import (
    FolderLock,
    Ledger,
    attributes,
    checksum,
    description_digest,
    is_store,
    read_ledger,
)
from recal.files.limits import admit_folder
from recal.files.paths import check_file, partial_name, replace_folder, version_stamp
from recal.files.views import check_layout, row_parts, specs, transformed_dtype
from recal.transforms import as_transform
from recal.transforms.preprocessing import Preprocessing
from recal.views import Views

_ROW_NAMES = ("clusters", "groups", "ids")
_REPAIR = "Collect again to repair it, or open it with verify=False."

# --- writing


def write_folder(views: Views, target: Path) -> None:
    """Write a zarr folder under a temporary name and rename it. Only a folder of views without a
    writer is replaced.
    """
    target = Path(os.path.realpath(target))
    partial = partial_name(target)
    lock = None
    try:
        if target.exists() and not (target.is_dir() and is_store(target)):
            raise FileExistsError(17, "it contains files that recal did not write")
        lock = FolderLock(target) if target.is_dir() else None
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(views, partial)
        replace_folder(partial, target)
    except OSError as error:
        raise FileError(
            f"Cannot write {target}: {error.strerror or error}. No files were written."
        ) from error
    finally:
        if lock is not None:
            lock.close()
        shutil.rmtree(partial, ignore_errors=True)


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
        arrays.append(
            root.create_array("transformed", shape=shape, chunks=chunks, dtype=dtype, **options)
        )
    ledger = Ledger(
        path, {"kind": ledgers.WRITTEN, "version": ledgers.LEDGER_VERSION, "batch_size": rows}
    )
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
    rows_of = {"clusters": views.clusters, "groups": views.groups, "ids": views.known_ids}
    ledger.end = describe_store(
        root, specs(views).tolist(), views.classes, views.labels, (n, k), preprocessing, rows_of
    )
    ledger.write()
    generation = ledger.generation(ledger.end)
    root.attrs["recal"] = description(specs(views).tolist(), generation, preprocessing)


def describe_store(
    root: Any,
    transforms: list[str],
    classes: NDArray[Any] | None,
    labels: NDArray[Any] | None,
    shape: tuple[int, int],
    preprocessing: dict[str, Any] | None,
    names_of_rows: Mapping[str, NDArray[Any] | None] = MappingProxyType({}),
) -> ledgers.Entry:
    """Write labels, clusters, groups and names of classes into a store, and return the end of its
    ledger.
    """
    names = None if classes is None else classes.tolist()
    stored = None if labels is None else labels.astype(np.int64)
    options: Any = {"compressors": None, "overwrite": True}
    if stored is not None:
        root.create_array("labels", data=stored, chunks=(shape[0],), fill_value=-1, **options)
    if names is not None:
        root.attrs["classes"] = names
    digest = description_digest(transforms, names, (len(transforms), *shape), preprocessing)
    end: ledgers.Entry = {
        "description": digest,
        "labels": None if stored is None else checksum(stored),
    }
    for name, values in names_of_rows.items():
        if values is not None:
            text = np.frombuffer(json.dumps(values.tolist()).encode(), np.uint8)
            root.create_array(name, data=text, chunks=text.shape, fill_value=0, **options)
            end[name] = checksum(text)
    return end


def description(
    transforms: list[str], generation: str, preprocessing: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the attributes that mark a zarr folder as views."""
    own = {"kind": "views", "version": 1, "transforms": transforms, "generation": generation}
    return own if preprocessing is None else {**own, "preprocessing": preprocessing}


# --- opening


def open_folder(
    path: Path,
    *,
    verify: bool,
    labels: ArrayLike | None,
    classes: Sequence[Any] | NDArray[Any] | None,
) -> Views:
    """Open views without reading their logits; `labels` and `classes` replace those of the folder."""
    import zarr

    ledger, problem = None, ""
    try:
        ledger = read_ledger(path)
    except (OSError, ValueError) as error:
        problem = str(error)
    if ledger is not None and ledger.end is None:
        raise FileError(
            f"{path} is unfinished: collect was interrupted",
            remedy="Run the same collect again to resume where it stopped",
        )
    _check_files(path)
    try:
        root: Any = zarr.open_group(str(path), mode="r", zarr_format=3)
        header, names = root.attrs.get("recal"), root.attrs.get("classes")
        known = ("logits", "labels", "transformed", *_ROW_NAMES)
        arrays = {name: root[name] for name in known if name in root}
    except Exception as error:  # zarr has no common error for broken folders
        raise FileError(f"{path} is not a zarr folder of views: {error}.") from error
    transforms = _check_header(path, header)
    _check_arrays(path, arrays)
    logits = _check_array(path, arrays, "logits", 2)
    stack = _check_array(path, arrays, "transformed", 3) if "transformed" in arrays else None
    shape = (0, *logits.shape) if stack is None else stack.shape
    check_layout(path, logits.shape, transforms, shape)
    generation, stored = header.get("generation"), header.get("preprocessing")
    try:
        columns = None if names is None else check_classes(names, logits.shape[1])
        preprocessing = None if stored is None else Preprocessing.from_json(stored)
        if isinstance(generation, str) and verify:
            digest = description_digest(
                transforms.tolist(), names, (len(transforms), *logits.shape), stored
            )
            if ledger is None or ledger.end is None:
                raise FileError(
                    f"{path} is damaged: its {ledgers.LEDGER_FILE} cannot be used ({problem}). {_REPAIR}"
                )
            described = ledger.end.get("description")
            if ledger.generation(ledger.end) != generation or described != digest:
                raise FileError(
                    f"{path} is damaged: what it says about its views is not what was written with them. {_REPAIR}"
                )
        else:  # a folder that recal did not write has no checksums
            ledger = None
        snapshot = Snapshot(path, generation, ledger)
        values = _read_column("labels", arrays, snapshot, ledger)
        truth = None if values is None else check_labels(values, *logits.shape)
        rows = []
        for name in _ROW_NAMES:
            text = _read_column(name, arrays, snapshot, ledger)
            rows.append(_row_names(path, name, text, logits.shape[0]))
        layers = {
            as_transform(str(spec)): StoredRows(snapshot, stack, index)
            for index, spec in enumerate(transforms)
        }
    except InputError as error:
        raise error.at(path) from None
    if len(layers) != len(transforms):
        raise FileError(f"{path}: `transforms` names a transformation twice.")
    if classes is not None:
        columns = check_classes(classes, logits.shape[1])
    if labels is not None:
        truth = check_labels(labels, logits.shape[0], logits.shape[1], columns)
    originals = StoredRows(snapshot, logits)
    return Views.unchecked(originals, layers, truth, columns, preprocessing, *rows)


def _check_files(folder: Path) -> None:
    """Refuse pipes, devices and links out of the folder, before zarr opens them."""
    try:
        for above, folders, names in os.walk(folder):
            for name in (*folders, *names):
                check_file(Path(above, name), folder)
    except (OSError, ValueError) as error:
        raise FileError(f"{folder} is damaged: {error}.") from error


def _check_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Refuse arrays that are packed, or that declare far more than the folder's files hold.

    Packed chunks could unpack to any size, and one of zarr's codecs is pickle.
    """
    total = count = 0
    for array in arrays.values():
        packed = set(_codecs(array.metadata.to_dict())) - {"bytes", "crc32c", "sharding_indexed"}
        if packed:
            raise FileError(
                f"{path} is packed with {min(packed)!r}, and only plain arrays are read. Write "
                "them with zarr's compressors=None, or with Views.write."
            )
        chunk, itemsize = array.shards or array.chunks, np.dtype(array.dtype).itemsize
        if 0 in chunk:
            raise FileError(f"{path} is damaged: it declares chunks that hold nothing.")
        total += itemsize * max(math.prod(array.shape), math.prod(chunk))
        count += math.prod(-(-n // size) for n, size in zip(array.shape, chunk))
    admit_folder(path, total, count)


def _codecs(metadata: dict[str, Any]) -> list[str]:
    """Return the names of all codecs, including those inside other codecs."""
    names = []
    for codec in (*metadata.get("codecs", ()), *metadata.get("index_codecs", ())):
        names += [codec["name"], *_codecs(codec.get("configuration", {}))]
    return names


def _check_header(path: Path, header: Any) -> NDArray[Any]:
    if not isinstance(header, dict) or header.get("kind") != "views":
        raise FileError(f"{path} is a zarr folder, but not one of recal's views.")
    version, transforms = header.get("version"), header.get("transforms", [])
    if type(version) is not int or version > 1:
        raise FileError(
            f"{path} has the format {version!r} and this recal reads up to 1; update recal."
        )
    if not isinstance(transforms, list) or not all(isinstance(spec, str) for spec in transforms):
        raise FileError(f"{path}: `transforms` must be a list of specs, got {transforms!r}.")
    return np.array(transforms, dtype=np.str_)


def _check_array(path: Path, arrays: dict[str, Any], name: str, ndim: int) -> Any:
    array = arrays.get(name)
    if array is None or array.ndim != ndim or np.dtype(array.dtype).kind != "f":
        content = "nothing" if array is None else f"{array.dtype}, shape {array.shape}"
        raise FileError(
            f"{path}: `{name}` must be an array of floats with {ndim} dimensions, got {content}."
        )
    return array


def _read_column(
    name: str, arrays: dict[str, Any], snapshot: Snapshot, ledger: Ledger | None
) -> NDArray[Any] | None:
    """Return the labels, or the text of the clusters or groups, after comparing them with their
    checksum.
    """
    path, stored = snapshot.folder, arrays.get(name)
    expected = None if ledger is None or ledger.end is None else ledger.end.get(name)
    if stored is None:
        if expected is not None:
            raise FileError(f"{path} is damaged: its {name} are missing. {_REPAIR}")
        return None
    if stored.ndim != 1 or np.dtype(stored.dtype).kind not in "iu":
        raise FileError(
            f"{path}: `{name}` must be one row of integers, got {stored.dtype}, shape {stored.shape}."
        )
    values = StoredRows(snapshot, stored, compared=False)[:]
    if ledger is not None and checksum(values) != expected:
        raise FileError(f"{path} is damaged: its {name} are not what was written. {_REPAIR}")
    return values


def _row_names(
    path: Path, name: str, text: NDArray[Any] | None, n_samples: int
) -> NDArray[np.str_] | None:
    """Return clusters or groups from the bytes of a JSON list."""
    if text is None:
        return None
    try:
        values = json.loads(text.tobytes())
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: `{name}` must be JSON: {error}.") from None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise FileError(f"{path}: `{name}` must be a list of texts.")
    return row_names(values, n_samples, name)


# --- reading rows


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
    """A stored array, or one layer of a stack, that reads only the requested rows.

    Parameters
    ----------
    snapshot : the store
    stored : zarr array
    layer : the number of the view, if the array is a stack
    compared : whether blocks of rows have checksums
    max_bytes : larger arrays are mapped from a file instead of being read into memory
    """

    def __init__(
        self,
        snapshot: Snapshot,
        stored: Any,
        layer: int | None = None,
        *,
        compared: bool = True,
        max_bytes: int = 250_000_000,
    ) -> None:
        self._snapshot, self._stored, self._max_bytes = snapshot, stored, max_bytes
        self._path = snapshot.folder
        self._place = () if layer is None else (layer,)
        # The number of rows per checksum (0 without checksums), and the position of the checksum
        # in a record.
        self._block_rows = snapshot.rows if compared and snapshot.sums is not None else 0
        self._sum = 0 if layer is None else layer + 1
        self.shape: tuple[int, ...] = stored.shape[len(self._place) :]
        self._step = stored.chunks[len(self._place)]
        codec = stored.metadata.to_dict()["codecs"][0].get("configuration", {})
        whole_rows = stored.chunks == (*(1 for _ in self._place), self._step, *self.shape[1:])
        self._is_plain = whole_rows and codec.get("endian") == sys.byteorder
        self._scratch: NDArray[Any] | None = None

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> NDArray[Any]:
        self._snapshot.check_unchanged()
        try:
            if isinstance(rows, slice):
                run = range(*rows.indices(self.shape[0]))
                if run.step == 1:
                    return self._mapped() if self._is_too_large(run) else self._run(run)
                rows = np.arange(run.start, run.stop, run.step)
            size = self._block_rows
            for block in np.unique(rows // size).tolist() if size else ():
                if self._snapshot.unchecked(self._sum, block, block):
                    self._run(range(block * size, min((block + 1) * size, self.shape[0])))
            return self._read(rows)
        except (FileError, InputError):
            raise
        except MemoryError as error:
            raise FileError(
                f"{self._path} does not fit in memory; select fewer rows at a time."
            ) from error
        except Exception as error:
            self._snapshot.check_unchanged()  # it may have been removed just now
            raise FileError(f"{self._path} is damaged: {error}.") from error

    def _is_too_large(self, run: range) -> bool:
        size = math.prod(self.shape) * self._stored.dtype.itemsize
        return len(self.shape) == 2 and len(run) == self.shape[0] and size > self._max_bytes

    def _mapped(self) -> NDArray[Any]:
        """Return all rows as an array that is mapped from a scratch file."""
        if self._scratch is not None:
            return self._scratch
        n_rows, width = self.shape
        step = max(1, 32_000_000 // width)
        # Whole blocks, which are compared as they are read.
        step = max(step - step % self._step, self._step)
        starts = range(0, n_rows, step)
        pieces = (self._run(range(start, min(start + step, n_rows))) for start in starts)
        dtype = np.float32 if self._stored.dtype == np.float16 else self._stored.dtype
        folder = self._path.parent if os.access(self._path.parent, os.W_OK) else None
        # The file has no name: it disappears with its last user, even after a kill.
        with tempfile.TemporaryFile(dir=folder, prefix=".recal-scratch-") as file:
            for piece in pieces:
                check_matrix(piece, "logits").astype(dtype, copy=False).tofile(file)
            file.flush()
            scratch = np.memmap(file, dtype, mode="r", shape=self.shape)
        mapped = scratch.view(np.ndarray)  # numba compiles for plain arrays
        if not self._place:
            self._scratch = mapped  # the originals are needed repeatedly
        return mapped

    def _run(self, run: range) -> NDArray[Any]:
        """Read adjacent rows. Blocks are compared as they are read, so no block is read twice."""
        start, stop, size = run.start, run.stop, self._block_rows
        blocks = []
        if size and len(run):
            blocks = self._snapshot.unchecked(self._sum, start // size, (stop - 1) // size)
        if not blocks:
            return self._read(np.arange(start, stop))
        first = min(start, blocks[0] * size)
        last = min(max(stop, (blocks[-1] + 1) * size), self.shape[0])
        values = self._read(np.arange(first, last))
        for block in blocks:
            at = block * size - first
            self._snapshot.compare(self._sum, block, values[at : at + size])
        return values[start - first : stop - first]

    def _read(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Return rows in any order, chunk by chunk."""
        read = np.empty((len(rows), *self.shape[1:]), dtype=self._stored.dtype)
        order = np.argsort(rows, kind="stable")
        breaks = np.flatnonzero(np.diff(rows[order] // self._step)) + 1
        for part in np.split(order, breaks) if len(rows) else ():
            first = int(rows[part[0]])
            values = self._chunk(first // self._step)
            if values is None:
                stop = int(rows[part[-1]]) + 1
                values = self._stored[(*self._place, slice(first, stop))]
                read[part] = values[rows[part] - first]
            else:
                read[part] = values[rows[part] % self._step]
        return read

    def _chunk(self, number: int) -> NDArray[Any] | None:
        """Return a local chunk mapped from its file, or None if only zarr can read it.

        A fit on disk reads a few rows in a hundred repeatedly. zarr reads and copies whole chunks;
        reading single rows is fifty times faster.
        """
        if not self._is_plain:
            return None
        index = (*self._place, number, *(0 for _ in self.shape[1:]))
        key = self._stored.metadata.encode_chunk_key(index)
        path = self._stored.store.root / self._stored.path / key
        if not path.exists():
            return None
        return np.memmap(path, self._stored.dtype, "r", shape=(self._step, *self.shape[1:]))
