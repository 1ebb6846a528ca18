"""Views on disk: one `.npz` file, or a `.zarr` folder for views that do not fit in memory.

Both have `logits` (n, K), optional `labels`, `clusters`, `groups` and `ids` (n,), optional
`classes` (K,), `transforms` (m,) specs, `transformed` (m, n, K) and optional `preprocessing`: JSON
that says how inputs were prepared for the model. They are written under a temporary name and
renamed, so a reader never sees an incomplete file.
"""

from __future__ import annotations

import json
import math
import os
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as numpy_format
from numpy.typing import ArrayLike, NDArray

from recal.engine import row_blocks
from recal.errors import FileError, InputError, needs_extra
from recal.files.paths import admit, check_file, local_path, refuse_bombs, replacing
from recal.transforms.preprocessing import Preprocessing
from recal.views import Views

npy: Any = numpy_format  # it has no type annotations
LEDGER_FILE = "ledger.txt"  # only in folders that recal wrote
OF_ROWS = ("labels", "classes", "clusters", "groups", "ids")


def read_views(
    path: str | os.PathLike[str],
    *,
    labels: ArrayLike | None = None,
    classes: Sequence[Any] | NDArray[Any] | None = None,
) -> Views:
    """Read views from an ``.npz`` file into memory, or open a ``.zarr`` folder lazily.

    A zarr group that another program wrote is read into memory, too, by the package zarr. It has
    the same arrays as a file and no compression (``compressors=None``).

    Parameters
    ----------
    path : the file or folder
    labels, classes : optional
        Replace those in the file; as in `Views`.

    Examples
    --------
    >>> import tempfile
    >>> from recal import Views, read_views
    >>> views = Views([[2.0, 0.5], [0.1, 0.3]], {"zoom:0.5": [[1.0, 0.5], [0.2, 0.3]]}, [0, 1])
    >>> read_views(views.write(tempfile.mkdtemp() + "/views.npz"))
    Views: 2 samples, 2 classes, 1 transformation, labelled
    """
    source = local_path(path)
    if not source.exists():
        raise FileError(f"There is no file or folder {source}.")
    given: dict[str, Any] = {"labels": labels, "classes": classes}
    names = ("logits", "transformed", "transforms", "preprocessing", *OF_ROWS)
    if not source.is_dir():
        arrays = read_npz(source, names, required="logits")
    elif (source / LEDGER_FILE).exists():
        from recal.files.zarr_views import open_folder

        return open_folder(source, given)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # zarr warns of texts of a fixed width
            arrays = read_group(source, names)
    logits, specs = arrays["logits"], arrays.get("transforms", np.array([], dtype=np.str_))
    transformed = arrays.get("transformed", np.empty((0, *logits.shape)))
    count = len(np.unique(specs))
    if (specs.dtype.kind != "U" and count) or transformed.shape != (count, *logits.shape):
        raise FileError(
            f"{source}: `transforms` must be a list of specs, and `transformed` have the shape "
            f"{(count, *logits.shape)}; got dtype {specs.dtype}, shapes {specs.shape} and "
            f"{transformed.shape}."
        )
    more = {name: arrays.get(name) if given.get(name) is None else given[name] for name in OF_ROWS}
    try:
        prepared = _read_preprocessing(arrays.get("preprocessing"))
        views = dict(zip(specs.tolist(), transformed))
        return Views(logits, views, preprocessing=prepared, **more)
    except InputError as error:
        raise error.at(source) from None


def write_views(views: Views, target: Path) -> Path:
    """Write a ``.npz`` file or a ``.zarr`` folder, by the ending of the name; replace an old one
    when complete.
    """
    if target.suffix == ".zarr":
        from recal.files.zarr_views import write_folder

        write_folder(views, target)
        return target
    if target.suffix != ".npz":
        raise InputError(
            f"Views are written to a name ending in .npz or .zarr, got {target.name!r}."
        )
    shape, first = (views.n_samples, views.n_classes), views[:1]
    slices = list(row_blocks(*shape))
    logits = (views[rows].logits for rows in slices)
    arrays: dict[str, Any] = {"logits": ArrayParts(shape, first.logits.dtype, logits)}
    if views.transforms:
        stack = (views[rows].transformed(view) for view in views.transforms for rows in slices)
        dtype = np.result_type(*(first.transformed(view) for view in views.transforms))
        arrays["transformed"] = ArrayParts((len(views.transforms), *shape), dtype, stack)
    arrays |= details(views)
    if views.preprocessing is not None:
        arrays["preprocessing"] = np.array(json.dumps(arrays["preprocessing"]))
    write_npz(target, arrays)
    return target


def details(views: Views) -> dict[str, Any]:
    """Return what files hold besides logits, by name."""
    found: dict[str, Any] = {name: getattr(views, name) for name in OF_ROWS if name != "ids"}
    if views.classes is not None and views.labels is not None:
        # With numeric names, a column number would be read as a name.
        found["labels"] = views.classes[views.labels]
    found["ids"] = views.known_ids
    found["transforms"] = np.array([str(view) for view in views.transforms], dtype=np.str_)
    if views.preprocessing is not None:
        found["preprocessing"] = views.preprocessing.as_json()
    return {name: values for name, values in found.items() if values is not None}


def _read_preprocessing(text: NDArray[Any] | None) -> Preprocessing | None:
    """Return the preprocessing from an array with its JSON text."""
    if text is None:
        return None
    try:
        values = json.loads(str(text))
    except (ValueError, RecursionError) as error:
        raise InputError(f"`preprocessing` must be JSON: {error}.") from None
    return Preprocessing.from_json(values)


# --- arrays in an .npz file


@dataclass(frozen=True)
class ArrayParts:
    """An array that is written part by part along its first axes, so it need not fit in memory."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parts: Iterable[NDArray[Any]]


def write_npz(
    path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any] | ArrayParts]
) -> None:
    """Write arrays as `numpy.load` reads them, atomically. Equal arrays give equal bytes."""
    with (
        replacing(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
    ):
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                _write_array(member, array)


def _write_array(file: Any, array: NDArray[Any] | ArrayParts) -> None:
    descr = npy.dtype_to_descr(array.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": array.shape}
    npy.write_array_header_1_0(file, header)
    for part in array.parts if isinstance(array, ArrayParts) else [array]:
        file.write(np.ascontiguousarray(part, dtype=array.dtype).tobytes())


def names_in(path: Path) -> tuple[str, ...]:
    """Return the names of the arrays in a file, or none if it is not an .npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return tuple(name.removesuffix(".npy") for name in archive.namelist())
    except Exception:  # `read_npz` says what is wrong
        return ()


def read_npz(path: Path, names: Sequence[str], *, required: str) -> dict[str, NDArray[Any]]:
    """Return the named arrays that the file has.

    Other arrays are not read, and pickles are never opened.
    """
    if not path.is_file():
        raise FileError(
            f"There is no file {path}." if not path.exists() else f"{path} is not a regular file."
        )
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            stored = [info.filename.removesuffix(".npy") for info in archive.infolist()]
            if required not in stored:
                raise FileError(
                    f"it holds no array `{required}`; it holds: "
                    f"{', '.join(stored[:8]) or 'nothing'}"
                )
            if len(set(stored)) != len(stored):
                raise FileError("it holds two arrays of one name")
            members = {
                name: info for name, info in zip(stored, archive.infolist()) if name in names
            }
            refuse_bombs(path, list(members.values()))
            return {name: _read_array(archive, info, name) for name, info in members.items()}
    except zipfile.BadZipFile as error:
        raise FileError(f"{path} is not a complete .npz file: {error}.") from error
    except FileError as error:
        if str(error).startswith(str(path)):
            raise
        raise FileError(f"{path} cannot be used: {error}.") from None
    # zlib, struct, lzma and numpy each raise their own errors for a damaged file.
    except Exception as error:
        raise FileError(f"{path} is damaged and cannot be read: {error}.") from error


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    with archive.open(info) as member:
        version = npy.read_magic(member)
        if version not in ((1, 0), (2, 0)):
            raise FileError(f"an array has the format {version}, which is unknown")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(member)
        if dtype.hasobject or dtype.fields is not None:
            raise FileError(f"`{name}` holds Python objects, which are never opened")
        # Any number of texts without a width takes no bytes.
        size, expected = info.file_size - member.tell(), math.prod(shape) * max(1, dtype.itemsize)
        if size != expected:
            raise FileError(f"`{name}` declares {expected:,} bytes and has {size:,}")
        member.seek(0)
        return _whole_text(npy.read_array(member, allow_pickle=False))


def _whole_text(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array; raise ValueError or SystemError for characters that do not exist."""
    if array.dtype.kind == "U":
        array.tolist()
    return array


# --- a zarr group


def read_group(folder: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the named arrays of a zarr group that another program wrote.

    Compressed chunks are refused, because they could unpack to any size.
    """
    if not (folder / "zarr.json").exists():
        raise FileError(f"{folder} is a folder without views: it has no zarr.json.")
    with needs_extra("zarr", "Reading zarr groups of other programs"):
        import zarr
    try:
        files = [place for place in folder.rglob("*") if place.is_symlink() or not place.is_dir()]
        for file in files:
            check_file(file, folder)
        group = zarr.open_group(str(folder), mode="r", zarr_format=3)
        arrays: dict[str, Any] = {name: group[name] for name in names if name in group}
        if "recal" in group.attrs:
            raise ValueError(f"recal wrote it, and its {LEDGER_FILE} is missing")
        if "logits" not in arrays:
            raise ValueError(f"it has no array `logits`; it has: {', '.join(group) or 'nothing'}")
        size = 0
        for name, array in arrays.items():
            codecs = {codec["name"] for codec in array.metadata.to_dict()["codecs"]}
            if packed := codecs - {"bytes"}:  # others may unpack to any size; one is pickle
                raise ValueError(
                    f"`{name}` is packed by {min(packed)!r}, and only plain arrays are read. Write "
                    "it with zarr's compressors=None, and texts with data=numpy.array([...])"
                )
            # Reading takes memory for at least one chunk, and time for each.
            values = max(math.prod(array.shape), math.prod(array.chunks))
            size += values * max(1, array.dtype.itemsize) + 1000 * array.nchunks
        admit(folder, size, sum(file.stat().st_size for file in files))
        for name in {"logits", "transformed"} & set(arrays):
            if arrays[name].nchunks_initialized < arrays[name].nchunks:
                raise ValueError(f"`{name}` lacks chunks")
        return {name: _whole_text(array[...]) for name, array in arrays.items()}
    except FileError:
        raise
    except Exception as error:  # zarr raises many kinds of errors
        raise FileError(f"{folder} cannot be used: {error}.") from error
