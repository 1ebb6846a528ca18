"""Views in a zarr folder: written block by block, and opened without reading logits (`zarr_rows.py`
reads them).
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_classes, check_labels
from recal.clusters import row_names
from recal.errors import FileError, InputError
from recal.files import ledger as ledgers
from recal.files.ledger import FolderLock, Ledger, checksum, describe, is_store, read_ledger
from recal.files.limits import admit_folder
from recal.files.paths import is_remote, partial_name, remove_tree, replace_folder
from recal.files.views import check_layout, row_parts, specs, transformed_dtype
from recal.files.zarr_rows import Snapshot, StoredRows
from recal.transforms import as_transform
from recal.transforms.preprocessing import Preprocessing
from recal.views import Views

VERSION = 1
_ROW_NAMES = ("clusters", "groups", "ids")
_FLOATS = ("float16", "float32", "float64")
# Plain bytes. Compressed chunks could unpack to any size, and one of zarr's codecs is pickle.
_CODECS = frozenset(["bytes", "crc32c", "transpose", "sharding_indexed"])
_REPAIR = "Collect again to repair it, or open it with verify=False."

# --- writing


def write_folder(views: Views, target: Path) -> None:
    """Write a zarr folder under a temporary name and rename it. Only a folder of views without a
    writer is replaced.

    An object store cannot rename. There the description is written last, and without it there are
    no views.
    """
    remote = is_remote(target)
    target = target if remote else Path(os.path.realpath(target))
    partial = target if remote else partial_name(target)
    lock = None
    try:
        if target.exists() and not (target.is_dir() and is_store(target)):
            raise FileExistsError(17, "it contains files that recal did not write")
        if remote:
            remove_tree(target / "zarr.json")
            remove_tree(target)
        else:
            lock = FolderLock(target) if target.is_dir() else None
            target.parent.mkdir(parents=True, exist_ok=True)
        _write(views, partial)
        if not remote:
            replace_folder(partial, target)
    except OSError as error:
        state = "It may be incomplete" if remote else "No files were written"
        raise FileError(f"Cannot write {target}: {error.strerror or error}. {state}.") from error
    finally:
        if lock is not None:
            lock.close()
        if not remote:
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
    rows_of = {"clusters": views.clusters, "groups": views.groups, "ids": views.known_ids}
    ledger.end = describe_store(
        root, specs(views).tolist(), views.classes, views.labels, (n, k), preprocessing, rows_of
    )
    ledger.write()
    root.attrs["recal"] = description(
        specs(views).tolist(), ledger.generation(ledger.end), preprocessing
    )


def describe_store(
    root: Any,
    transforms: list[str],
    classes: NDArray[Any] | None,
    labels: NDArray[Any] | None,
    shape: tuple[int, int],
    preprocessing: dict[str, Any] | None,
    names_of_rows: Mapping[str, NDArray[Any] | None] = MappingProxyType({}),
) -> ledgers.Record:
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
    digest = describe(transforms, names, (len(transforms), *shape), preprocessing)
    end: ledgers.Record = {
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
    own = {"kind": "views", "version": VERSION, "transforms": transforms, "generation": generation}
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
    try:
        root: Any = zarr.open_group(str(path), mode="r", zarr_format=3)
        header, names = root.attrs.get("recal"), root.attrs.get("classes")
        arrays = {
            name: root[name]
            for name in ("logits", "labels", "transformed", *_ROW_NAMES)
            if name in root
        }
        codecs = {name for array in arrays.values() for name in _codecs(array.metadata.to_dict())}
    except Exception as error:  # zarr has no common error for broken folders
        raise FileError(f"{path} is not a zarr folder of views: {error}.") from error
    transforms = _check_header(path, header)
    _check_sizes(path, arrays)
    if codecs - _CODECS:
        raise FileError(
            f"{path} is packed with {sorted(codecs - _CODECS)[0]!r}, and only uncompressed arrays "
            "are read. Write them with zarr's compressors=None, or with Views.write."
        )
    logits = _check_array(path, arrays, "logits", 2)
    stack = _check_array(path, arrays, "transformed", 3) if "transformed" in arrays else None
    check_layout(
        path, logits.shape, transforms, stack.shape if stack is not None else (0, *logits.shape)
    )
    generation, stored = header.get("generation"), header.get("preprocessing")
    try:
        columns = None if names is None else check_classes(names, logits.shape[1])
        preprocessing = None if stored is None else Preprocessing.from_json(stored)
        if isinstance(generation, str) and verify:
            digest = describe(transforms.tolist(), names, (len(transforms), *logits.shape), stored)
            if ledger is None or ledger.end is None:
                raise FileError(
                    f"{path} is damaged: its {ledgers.NAME} cannot be used ({problem}). {_REPAIR}"
                )
            if (
                ledger.generation(ledger.end) != generation
                or ledger.end.get("description") != digest
            ):
                raise FileError(
                    f"{path} is damaged: what it says about its views is not what was written with them. {_REPAIR}"
                )
        else:  # a folder that recal did not write has no checksums
            ledger = None
        snapshot = Snapshot(path, generation, ledger)
        values, *texts = (
            _read_column(name, arrays, snapshot, ledger) for name in ("labels", *_ROW_NAMES)
        )
        truth = None if values is None else check_labels(values, *logits.shape)
        rows = [
            _row_names(path, name, text, logits.shape[0]) for name, text in zip(_ROW_NAMES, texts)
        ]
        layers = {
            as_transform(str(spec)): StoredRows(snapshot, stack, index)
            for index, spec in enumerate(transforms)
        }
    except InputError as error:
        raise error.at(path) from None
    if len(layers) != len(transforms):
        raise FileError(f"{path}: `transforms` names a transformation twice.")
    columns = columns if classes is None else check_classes(classes, logits.shape[1])
    truth = (
        truth if labels is None else check_labels(labels, logits.shape[0], logits.shape[1], columns)
    )
    return Views.unchecked(
        StoredRows(snapshot, logits), layers, truth, columns, preprocessing, *rows
    )


def _check_sizes(path: Path, arrays: dict[str, Any]) -> None:
    """Refuse arrays, or single chunks, that declare far more bytes or chunks than the folder has."""
    total = largest = count = 0
    for array in arrays.values():
        chunk, itemsize = array.shards or array.chunks, np.dtype(array.dtype).itemsize
        if 0 in chunk:
            raise FileError(f"{path} is damaged: it declares chunks that hold nothing.")
        total += math.prod(array.shape) * itemsize
        largest = max(largest, math.prod(chunk) * itemsize)
        count += math.prod(-(-n // size) for n, size in zip(array.shape, chunk))
    admit_folder(path, max(total, largest), count)


def _codecs(metadata: Any) -> Iterator[str]:
    """Yield the name of every codec of an array, including codecs inside other codecs."""
    for key, value in metadata.items():
        if key in ("codecs", "index_codecs"):
            for codec in value:
                yield codec["name"]
                yield from _codecs(codec)
        elif key == "configuration":
            yield from _codecs(value)


def _check_header(path: Path, header: Any) -> NDArray[Any]:
    if not isinstance(header, dict) or header.get("kind") != "views":
        raise FileError(f"{path} is a zarr folder, but not one of recal's views.")
    version, transforms = header.get("version"), header.get("transforms", [])
    if type(version) is not int or version > VERSION:
        raise FileError(
            f"{path} has the format {version!r} and this recal reads up to {VERSION}; update recal."
        )
    if not isinstance(transforms, list) or not all(isinstance(spec, str) for spec in transforms):
        raise FileError(f"{path}: `transforms` must be a list of specs, got {transforms!r}.")
    return np.array(transforms, dtype=np.str_)


def _check_array(path: Path, arrays: dict[str, Any], name: str, ndim: int) -> Any:
    array = arrays.get(name)
    if array is None or array.ndim != ndim or np.dtype(array.dtype).name not in _FLOATS:
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
