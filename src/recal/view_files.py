"""Views on disk: one `.npz` file, or a `.zarr` folder for what outgrows memory.

Both hold `logits` (n, K), optional `labels` (n,), optional `classes` (K,), `transforms` (m,) specs and
`transformed` (m, n, K). A file is written beside its final name and moved there, so a reader never meets half of one.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import check_classes, check_labels
from recal.errors import FileError, InputError
from recal.transforms import as_transform
from recal.views import Views

# About 4 MB of float32 a chunk: large enough to read fast, small enough to hold many.
_CHUNK_VALUES = 1_000_000


def read_views(path: str | os.PathLike[str]) -> Views:
    """Read views from an ``.npz`` file into memory, or open a ``.zarr`` folder lazily."""
    source = Path(path)
    if not source.exists():
        raise FileError(f"There is no file or folder {source}.")
    return _open_zarr(source) if source.is_dir() else _read_npz(source)


def write_views(views: Views, target: Path) -> Path:
    """Write to a ``.npz`` file or a ``.zarr`` folder, as the name says, replacing what was there only when done."""
    if target.suffix not in (".npz", ".zarr"):
        raise InputError(f"Views are written to a name ending in .npz or .zarr, got {target.name!r}.")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part{target.suffix}")
    try:
        if target.suffix == ".npz":
            _write_npz(views, partial)
        else:
            _write_zarr(views, partial)
        _move(partial, target)
    except OSError as error:
        raise FileError(f"Cannot write {target}: {error.strerror or error}. Nothing was changed.") from error
    finally:
        _remove(partial)
    return target


def _move(partial: Path, target: Path) -> None:
    if target.is_dir():  # a folder cannot be replaced in one step
        shutil.rmtree(target)
    os.replace(partial, target)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _write_npz(views: Views, path: Path) -> None:
    arrays: dict[str, Any] = {"logits": views.logits, "transforms": _specs(views)}
    if views.transforms:
        arrays["transformed"] = np.stack([views.transformed(t) for t in views.transforms])
    if views.labels is not None:
        arrays["labels"] = views.labels
    if views.classes is not None:
        arrays["classes"] = views.classes
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())


def _specs(views: Views) -> NDArray[np.str_]:
    return np.array([str(transform) for transform in views.transforms], dtype=np.str_)


def _read_npz(path: Path) -> Views:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError, MemoryError, NotImplementedError) as error:
        raise FileError(f"{path} is not a readable .npz file of views: {error}.") from error
    if "logits" not in arrays:
        raise FileError(f"{path} holds no array `logits`; it holds: {', '.join(arrays) or 'nothing'}.")
    specs = arrays.get("transforms", np.array([], dtype=np.str_))
    transformed = arrays.get("transformed", np.empty((0, *arrays["logits"].shape)))
    _check_layout(path, arrays["logits"].shape, specs, transformed.shape)
    try:
        return Views(
            arrays["logits"],
            dict(zip(specs.tolist(), transformed)),
            _decode_labels(arrays.get("labels"), arrays.get("classes")),
            classes=arrays.get("classes"),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _decode_labels(labels: NDArray | None, classes: NDArray | None) -> NDArray | None:
    """A file written by recal holds column indices; one made by hand may hold names."""
    if labels is None or classes is None or labels.dtype.kind not in "iu" or classes.dtype.kind in "iu":
        return labels
    return classes[check_labels(labels, len(labels), len(classes))]


def _check_layout(path: Path, shape: tuple[int, ...], specs: NDArray, transformed: tuple[int, ...]) -> None:
    if specs.ndim != 1 or (len(specs) and specs.dtype.kind != "U"):
        raise FileError(f"{path}: `transforms` must be a list of specs, got dtype {specs.dtype}, shape {specs.shape}.")
    if transformed != (len(specs), *shape):
        raise FileError(f"{path}: `transformed` must have the shape {(len(specs), *shape)}, got {transformed}.")


def _write_zarr(views: Views, path: Path) -> None:
    import zarr

    n, k = views.n_samples, views.n_classes
    rows = max(1, min(n, _CHUNK_VALUES // k))
    root = zarr.open_group(str(path), mode="w")
    root.attrs["recal"] = {"kind": "views", "version": 1, "transforms": _specs(views).tolist()}
    logits = views.logits
    root.create_array("logits", data=logits, chunks=(rows, k))
    if views.labels is not None:
        root.create_array("labels", data=views.labels.astype(np.int64), chunks=(n,))
    if views.classes is not None:
        root.attrs["classes"] = views.classes.tolist()
    if views.transforms:
        dtype = np.result_type(*(views.transformed(t)[:1].dtype for t in views.transforms))
        stack = root.create_array("transformed", shape=(len(views.transforms), n, k), chunks=(1, rows, k), dtype=dtype)
        for index, transform in enumerate(views.transforms):
            stack[index] = views.transformed(transform)


class _Layer:
    """One view inside a stored (m, n, K) stack: read only when sliced."""

    def __init__(self, stack: Any, index: int) -> None:
        self._stack, self._index = stack, index
        self.shape, self.dtype = stack.shape[1:], stack.dtype

    def __getitem__(self, rows: slice) -> NDArray:
        return np.asarray(self._stack[self._index, rows])


def _open_zarr(path: Path) -> Views:
    import zarr

    try:
        root: Any = zarr.open_group(str(path), mode="r")
        header = dict(root.attrs["recal"])
        logits = root["logits"]
        labels = np.asarray(root["labels"][:]) if "labels" in root else None
        stack = root.get("transformed")
        names = root.attrs.get("classes")
    except Exception as error:
        raise FileError(f"{path} is not a zarr folder of views: {error}.") from error
    specs = np.array(header.get("transforms", []), dtype=np.str_)
    _check_layout(path, logits.shape, specs, stack.shape if stack is not None else (0, *logits.shape))
    classes = None if names is None else check_classes(names, logits.shape[1])
    layers = {as_transform(spec): _Layer(stack, index) for index, spec in enumerate(specs.tolist())}
    checked = None if labels is None else check_labels(labels, logits.shape[0], logits.shape[1])
    return Views._from_arrays(logits, layers, checked, classes)
