"""Views in a zarr folder: opened without reading logits, read row by row, written part by part."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import check_classes, check_labels
from recal.errors import FileError, InputError
from recal.files.atomic import partial_name, sync_folder
from recal.files.plain_chunks import plain_chunks
from recal.files.views import check_layout, row_parts, specs, transformed_dtype
from recal.transforms import as_transform
from recal.views import Views

VERSION = 1
# A folder that `collect` is still writing holds this file.
JOURNAL = "journal.jsonl"
_FLOATS = ("float16", "float32", "float64")
# Plain bytes and ways to pack them. A codec that is not listed might run something; pickle is one.
_CODECS = frozenset(["bytes", "zstd", "blosc", "gzip", "crc32c", "transpose", "sharding_indexed"])


def write_folder(views: Views, target: Path) -> None:
    """Write a zarr folder beside `target` and move it there; only a zarr folder is ever replaced."""
    target = Path(os.path.realpath(target))
    partial = partial_name(target)
    try:
        if target.exists() and not _is_zarr(target):
            raise FileExistsError(17, "something that is no zarr folder is there")
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(views, partial)
        _move(partial, target)
    except OSError as error:
        raise FileError(f"Cannot write {target}: {error.strerror or error}. Nothing was changed.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _is_zarr(path: Path) -> bool:
    return path.is_dir() and ((path / "zarr.json").is_file() or not any(path.iterdir()))


def _move(partial: Path, target: Path) -> None:
    """Put the new folder in the old one's place: no folder can be replaced in one step, so the old one steps aside."""
    old = partial_name(target)
    if target.exists():
        os.rename(target, old)
    try:
        os.rename(partial, target)
    except OSError:
        if old.exists():
            os.rename(old, target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _write(views: Views, path: Path) -> None:
    import zarr

    n, k = views.n_samples, views.n_classes
    slices = list(row_parts(n, k))
    rows = slices[0].stop
    root = zarr.open_group(str(path), mode="w", zarr_format=3)
    root.attrs["recal"] = {"kind": "views", "version": VERSION, "transforms": specs(views).tolist()}
    # A part that got lost reads as NaN, which is refused, and not as zeros.
    lost = float("nan")
    # Logits hardly get smaller by packing, and are read many times.
    options: Any = {"fill_value": lost, "compressors": None}
    logits = root.create_array("logits", shape=(n, k), chunks=(rows, k), dtype=views[:1].logits.dtype, **options)
    for part in slices:
        logits[part] = views[part].logits
    if views.labels is not None:
        root.create_array("labels", data=views.labels.astype(np.int64), chunks=(n,), fill_value=-1)
    if views.classes is not None:
        root.attrs["classes"] = views.classes.tolist()
    if views.transforms:
        shape, chunks = (len(views.transforms), n, k), (1, rows, k)
        dtype = transformed_dtype(views)
        stack = root.create_array("transformed", shape=shape, chunks=chunks, dtype=dtype, **options)
        for index, transform in enumerate(views.transforms):
            for part in slices:
                stack[index, part] = views[part].transformed(transform)


def open_folder(path: Path) -> Views:
    """Open views without reading their logits."""
    import zarr

    if (path / JOURNAL).exists():
        raise FileError(
            f"{path} is unfinished: collect was interrupted. Run the same collect again with resume=True "
            "(the default), and it goes on where it stopped."
        )

    try:
        root: Any = zarr.open_group(str(path), mode="r", zarr_format=3)
        header, names = root.attrs.get("recal"), root.attrs.get("classes")
        arrays = {name: root[name] for name in ("logits", "labels", "transformed") if name in root}
        codecs = {name for array in arrays.values() for name in _codecs(array.metadata.to_dict())}
    except Exception as error:  # a folder can be broken in more ways than zarr has errors for
        raise FileError(f"{path} is not a zarr folder of views: {error}.") from error
    listed = _check_header(path, header)
    if codecs - _CODECS:
        raise FileError(f"{path} is packed with {sorted(codecs - _CODECS)[0]!r}, which is not opened.")
    logits = _check_array(path, arrays, "logits", 2)
    stack = _check_array(path, arrays, "transformed", 3) if "transformed" in arrays else None
    check_layout(path, logits.shape, listed, stack.shape if stack is not None else (0, *logits.shape))
    try:
        classes = None if names is None else check_classes(names, logits.shape[1])
        labels = _read_labels(path, arrays, logits.shape)
        layers = {as_transform(spec): _Rows(path, stack, index) for index, spec in enumerate(listed.tolist())}
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if len(layers) != len(listed):
        raise FileError(f"{path}: `transforms` names a transformation twice.")
    return Views._from_arrays(_Rows(path, logits), layers, labels, classes)


def _codecs(metadata: Any) -> Iterator[str]:
    """Name every codec that an array's description mentions, those inside other codecs too."""
    for key, value in metadata.items():
        if key in ("codecs", "index_codecs"):
            for codec in value:
                yield codec["name"]
                yield from _codecs(codec)
        elif key == "configuration":
            yield from _codecs(value)


def _check_header(path: Path, header: Any) -> NDArray:
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


def _read_labels(path: Path, arrays: dict[str, Any], shape: tuple[int, ...]) -> NDArray[np.intp] | None:
    if "labels" not in arrays:
        return None
    stored = arrays["labels"]
    if stored.shape != shape[:1] or np.dtype(stored.dtype).kind not in "iu":
        raise FileError(f"{path}: `labels` must be {shape[0]} integers, got {stored.dtype}, shape {stored.shape}.")
    return check_labels(_Rows(path, stored)[:], shape[0], shape[1])


class _Rows:
    """A stored array, or one layer of a stored stack, that reads the rows asked for and no others."""

    def __init__(self, path: Path, stored: Any, layer: int | None = None) -> None:
        self._path, self._stored, self._layer = path, stored, layer
        self.shape: tuple[int, ...] = stored.shape if layer is None else stored.shape[1:]
        self._step = stored.chunks[0 if layer is None else 1]
        self._plain = plain_chunks(stored, layer) if len(self.shape) == 2 else None

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> NDArray:
        try:
            if not isinstance(rows, slice):
                return self._pick(rows)
            run = range(*rows.indices(self.shape[0]))
            if run.step > 0:
                return self._slice(rows)
            return self._slice(slice(run[-1], run[0] + 1, -run.step))[::-1]  # zarr reads forwards only
        except MemoryError as error:
            raise FileError(f"{self._path} does not fit in memory; select fewer rows at a time.") from error
        except Exception as error:
            raise FileError(f"{self._path} is damaged: {error}.") from error

    def _slice(self, rows: slice) -> NDArray:
        if self._plain:
            return self._plain.read(np.arange(*rows.indices(self.shape[0])))
        return np.asarray(self._stored[rows] if self._layer is None else self._stored[self._layer, rows])

    def _pick(self, rows: NDArray[np.intp]) -> NDArray:
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
