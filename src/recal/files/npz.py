"""Arrays in an .npz file: written part by part, and read after every declared size was compared with the file."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as numpy_format
from numpy.typing import NDArray

from recal.errors import FileError
from recal.files.atomic import replacing
from recal.files.limits import admit

npy: Any = numpy_format  # it has no type annotations


@dataclass(frozen=True)
class Parts:
    """An array that is written part by part along its first axes, so it need not fit in memory."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parts: Iterable[NDArray[Any]]


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any] | Parts]) -> None:
    """Write arrays as `numpy.load` reads them, atomically. Equal arrays give equal bytes."""
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            parts = Parts(array.shape, array.dtype, [array]) if isinstance(array, np.ndarray) else array
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                _write_array(member, parts)


def _write_array(file: Any, array: Parts) -> None:
    dtype = array.dtype
    npy.write_array_header_1_0(file, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": array.shape})
    for part in array.parts:
        file.write(np.ascontiguousarray(part, dtype=dtype).tobytes())


def names_in(path: Path) -> tuple[str, ...]:
    """Return the names of the arrays in a file; none if it is not an .npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return tuple(name.removesuffix(".npy") for name in archive.namelist())
    except Exception:  # `read_npz` says what is wrong
        return ()


def read_npz(path: Path, names: Sequence[str], *, required: str) -> dict[str, NDArray[Any]]:
    """Return the named arrays that the file has. Other arrays are not read, and pickles are never opened."""
    if not path.is_file():
        raise FileError(f"There is no file {path}." if not path.exists() else f"{path} is not a regular file.")
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = [info.filename.removesuffix(".npy") for info in archive.infolist()]
            if required not in members:
                raise FileError(f"it holds no array `{required}`; it holds: {', '.join(members[:8]) or 'nothing'}")
            if len(set(members)) != len(members):
                raise FileError("it holds two arrays of one name")
            wanted = [info for info in archive.infolist() if info.filename.removesuffix(".npy") in names]
            _refuse_bombs(wanted, path)
            return {info.filename.removesuffix(".npy"): _read_array(archive, info) for info in wanted}
    except zipfile.BadZipFile as error:
        raise FileError(f"{path} is not a complete .npz file: {error}.") from error
    except FileError as error:
        if str(error).startswith(str(path)):
            raise
        raise FileError(f"{path} cannot be used: {error}.") from None
    # zlib, struct, lzma and numpy each raise their own errors for a damaged file.
    except Exception as error:
        raise FileError(f"{path} is damaged and cannot be read: {error}.") from error


def refuse_bombs(path: Path) -> None:
    """Refuse an archive whose members unpack to far more than their own size."""
    with zipfile.ZipFile(path) as archive:
        _refuse_bombs(archive.infolist(), path)


def _refuse_bombs(members: list[zipfile.ZipInfo], path: Path) -> None:
    # Compare with the members' own bytes: other bytes in the file would raise the limit.
    total, packed = sum(info.file_size for info in members), sum(info.compress_size for info in members)
    if packed > path.stat().st_size:
        raise FileError(f"{path}: its {path.stat().st_size:,} bytes claim to be {packed:,}.")
    admit(path, total, packed)


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    name = info.filename.removesuffix(".npy")
    with archive.open(info) as member:
        shape, dtype = _read_header(member)
        if dtype.hasobject or dtype.fields is not None:
            raise FileError(f"`{name}` holds Python objects, which are never opened")
        size, expected = info.file_size - member.tell(), math.prod(shape) * dtype.itemsize
        if size != expected:
            raise FileError(f"`{name}` declares {expected:,} bytes and has {size:,}")
        member.seek(0)
        array: NDArray[Any] = npy.read_array(member, allow_pickle=False)
        return array


def _read_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = npy.read_array_header_2_0(file)
    else:
        raise FileError(f"an array has the format {version}, which is unknown")
    return shape, dtype
