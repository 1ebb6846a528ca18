"""Views on disk: one `.npz` file, or a `.zarr` folder for views that do not fit in memory.

Both have `logits` (n, K), optional `labels`, `clusters` and `groups` (n,), optional `classes` (K,), `transforms` (m,)
specs, `transformed` (m, n, K) and optional `preprocessing`: JSON that says how inputs were prepared for the model. They
are written under a temporary name and renamed, so a reader never sees a part of one.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_classes, check_labels
from recal.errors import FileError, InputError
from recal.files.npz import Parts, read_npz, write_npz
from recal.files.urls import as_path, exists, is_remote, refuse_single_file
from recal.transforms.preprocessing import Preprocessing
from recal.views import Views

# About 4 MB of float32: large enough to be fast, small enough to keep several in memory.
_PART_VALUES = 1_000_000
_NAMES = ("logits", "labels", "classes", "transforms", "transformed", "preprocessing", "clusters", "groups")


def read_views(
    path: str | os.PathLike[str],
    *,
    verify: bool = True,
    labels: ArrayLike | None = None,
    classes: Sequence[Any] | NDArray[Any] | None = None,
) -> Views:
    """Read views from an ``.npz`` file into memory, or open a ``.zarr`` folder lazily.

    Parameters
    ----------
    path : the file or folder
    verify : bool
        Compare each block of a folder with its checksum when it is first read. Files are always checked.
    labels, classes : optional
        Used instead of those in the file; as in `Views`.

    Examples
    --------
    >>> import tempfile
    >>> from recal import Views, read_views
    >>> views = Views([[2.0, 0.5], [0.1, 0.3]], {"zoom:0.5": [[1.0, 0.5], [0.2, 0.3]]}, labels=[0, 1])
    >>> read_views(views.write(tempfile.mkdtemp() + "/views.npz"))
    Views: 2 samples, 2 classes, 1 transformation, labelled
    """
    source = as_path(path)
    if not exists(source):
        local = not is_remote(source) and source.parent.is_dir()
        parts = sorted(source.parent.glob(f".{glob.escape(source.name)}.*.part")) if local else []
        hint = f" Writing it was interrupted; what is left of it is {parts[0]}." if parts else ""
        raise FileError(f"There is no file or folder {source}.{hint}")
    if source.is_dir():
        from recal.files.zarr_views import open_folder

        return _with(open_folder(source, verify=verify), labels, classes)
    refuse_single_file(source)
    return _read_file(source, labels, classes)


def _with(views: Views, labels: ArrayLike | None, classes: Sequence[Any] | NDArray[Any] | None) -> Views:
    """Return the same logits with other labels or other names of the columns."""
    if labels is None and classes is None:
        return views
    names = views.classes if classes is None else check_classes(classes, views.n_classes)
    truth = views.labels if labels is None else check_labels(labels, views.n_samples, views.n_classes, names)
    return views.relabelled(truth, names)


def write_views(views: Views, target: Path) -> Path:
    """Write to a ``.npz`` file or a ``.zarr`` folder, by the ending of the name. Replaces an old one when complete."""
    if target.suffix == ".npz":
        refuse_single_file(target)
        _write_file(views, target)
    elif target.suffix == ".zarr":
        from recal.files.zarr_views import write_folder

        write_folder(views, target)
    else:
        raise InputError(f"Views are written to a name ending in .npz or .zarr, got {target.name!r}.")
    return target


def specs(views: Views) -> NDArray[np.str_]:
    """Return the specs of the transformations."""
    return np.array([str(transform) for transform in views.transforms], dtype=np.str_)


def row_parts(n_samples: int, n_classes: int) -> Iterator[slice]:
    """Return slices that cover all rows, about a million values each."""
    step = max(1, min(n_samples, _PART_VALUES // n_classes))
    return (slice(start, start + step) for start in range(0, n_samples, step))


def transformed_dtype(views: Views) -> np.dtype[Any]:
    """Return a dtype that can represent the logits of every transformation exactly."""
    return np.result_type(*(views[:1].transformed(transform).dtype for transform in views.transforms))


def _write_file(views: Views, path: Path) -> None:
    shape = (views.n_samples, views.n_classes)
    slices = list(row_parts(*shape))
    arrays: dict[str, NDArray[Any] | Parts] = {
        "logits": Parts(shape, views[:1].logits.dtype, (views[rows].logits for rows in slices)),
        "transforms": specs(views),
    }
    if views.transforms:
        arrays["transformed"] = Parts(
            (len(views.transforms), *shape),
            transformed_dtype(views),
            (views[rows].transformed(transform) for transform in views.transforms for rows in slices),
        )
    if views.labels is not None:
        # Write names of classes, not columns: with numeric names, a column number would be read as a name.
        arrays["labels"] = views.labels if views.classes is None else views.classes[views.labels]
    if views.classes is not None:
        arrays["classes"] = views.classes
    arrays |= {name: values for name in ("clusters", "groups") if (values := getattr(views, name)) is not None}
    if views.preprocessing is not None:
        arrays["preprocessing"] = np.array(json.dumps(views.preprocessing.as_json()))
    write_npz(path, arrays)


def _read_file(path: Path, labels: ArrayLike | None, classes: Sequence[Any] | NDArray[Any] | None) -> Views:
    arrays = read_npz(path, _NAMES, required="logits")
    logits, names = arrays["logits"], arrays.get("transforms", np.array([], dtype=np.str_))
    transformed = arrays.get("transformed", np.empty((0, *logits.shape)))
    check_layout(path, logits.shape, names, transformed.shape)
    try:
        pairs = dict(zip(names.tolist(), transformed))
        between = read_preprocessing(arrays["preprocessing"]) if "preprocessing" in arrays else None
        truth = arrays.get("labels") if labels is None else labels
        named = arrays.get("classes") if classes is None else classes
        rows = {name: arrays.get(name) for name in ("clusters", "groups")}
        return Views(logits, pairs, truth, classes=named, preprocessing=between, **rows)
    except InputError as error:
        raise error.at(path) from None


def read_preprocessing(text: NDArray[Any]) -> Preprocessing:
    """Return the preprocessing from an array with its JSON text."""
    if text.shape != () or text.dtype.kind != "U":
        raise InputError(f"`preprocessing` must be one text, got {text.dtype}, shape {text.shape}.")
    try:
        values = json.loads(str(text))
    except (ValueError, RecursionError) as error:
        raise InputError(f"`preprocessing` must be JSON: {error}.") from None
    return Preprocessing.from_json(values)


def check_layout(path: Path, shape: tuple[int, ...], names: NDArray[Any], transformed: tuple[int, ...]) -> None:
    """Refuse a file whose arrays do not fit together."""
    if names.ndim != 1 or (len(names) and names.dtype.kind != "U"):
        raise FileError(f"{path}: `transforms` must be a list of specs, got dtype {names.dtype}, shape {names.shape}.")
    if len(set(names.tolist())) != len(names):
        raise FileError(f"{path}: `transforms` names a transformation twice.")
    if transformed != (len(names), *shape):
        raise FileError(f"{path}: `transformed` must have the shape {(len(names), *shape)}, got {transformed}.")
