"""A JSON header and arrays in one safetensors file, which holds data only.

The metadata hold one JSON text under ``recal``: the version of the format, the version of recal that wrote it, and the
content. The arrays are the tensors of the file. A reader compares every declared size with the size of the file before
it uses any of them. A digest of the content detects damage, but not forgery.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import FileError, InputError
from recal.files.atomic import replacing

VERSION = 1
MAX_HEADER_BYTES = 16 * 2**20
MAX_FILE_BYTES = 4 * 2**30
_KEY, _DIGEST = "recal", "digest"
_DTYPES = frozenset(["F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL"])
# The first bytes of other files that people open by mistake, and what the error says.
_BEGINNINGS = {
    b"PK\x03\x04": "it is a zip or .npz file; views are read with read_views",
    b"\x89PNG": "it is a PNG image",
    b"\xff\xd8\xff": "it is a JPEG image",
    b"\x93NUMPY": "it is a .npy array",
    b"\x1f\x8b": "it is a gzip file",
    b"\x80\x04": "it is a pickle, and recal never opens pickles",
    b"\x80\x05": "it is a pickle, and recal never opens pickles",
}


def write_tensors(path: str | os.PathLike[str], content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a header and the arrays that it refers to. The file is complete or not there at all."""
    from safetensors.numpy import save as to_bytes

    from recal import __version__

    header = json.dumps({"version": VERSION, "written_by": f"recal {__version__}", **content}, allow_nan=False)
    if len(header) > MAX_HEADER_BYTES // 2:
        raise InputError(f"Without its arrays it takes {len(header):,} bytes; at most {MAX_HEADER_BYTES // 2:,} fit.")
    with replacing(path) as file:
        file.write(to_bytes(dict(arrays), metadata={_KEY: _sealed(header, arrays)}))


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]], bool]:
    """Return the header, the arrays, and whether both are as `write_tensors` wrote them."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as from_bytes

    info = path.stat()
    if stat.S_ISDIR(info.st_mode):
        raise FileError("it is a folder; views in a .zarr folder are read with read_views")
    if not stat.S_ISREG(info.st_mode):
        raise FileError("it is not a regular file")
    if info.st_size > MAX_FILE_BYTES:
        raise FileError(f"it has {info.st_size:,} bytes; at most {MAX_FILE_BYTES:,} are read")
    with path.open("rb") as file:
        content = file.read(info.st_size)
    header = _outer_header(content)
    inner = _parse(header["__metadata__"][_KEY])
    _check_version(inner)
    try:
        arrays = dict(from_bytes(content))
    except SafetensorError as error:
        raise FileError(f"its arrays are damaged ({error})") from error
    for name, array in arrays.items():
        # A truth value is a byte of 0 or 1. Any other byte would act as true here and as false there.
        if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
            raise FileError(f"the array {name!r} holds truth values that are neither true nor false")
    digest = inner.pop(_DIGEST, None)  # a file that `save` did not write may have none
    plain = header["__metadata__"][_KEY].removesuffix(_seal(digest)) + "}"
    return inner, arrays, digest is None or digest == _digest(plain, arrays)


def _sealed(header: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the header with the digest as its last entry. Separate metadata entries have no fixed order."""
    return header.removesuffix("}") + _seal(_digest(header, arrays))


def _seal(digest: Any) -> str:
    return f', "{_DIGEST}": "{digest}"}}'


def _digest(header: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return a digest of the header and the arrays; one changed bit of a weight would otherwise go unnoticed."""
    state = hashlib.blake2b(header.encode(), digest_size=16)
    for name, array in sorted(arrays.items()):
        state.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def _outer_header(content: bytes) -> dict[str, Any]:
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or content[8:9] != b"{":
        # Checked only here: the length of a valid header may begin with the bytes of a pickle or a gzip file.
        for beginning, reason in _BEGINNINGS.items():
            if content.startswith(beginning):
                raise FileError(reason)
        raise FileError("it does not begin as one" if content else "it is empty")
    if length > MAX_HEADER_BYTES:
        raise FileError(f"its header declares {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read")
    if len(content) < 8 + length:
        raise FileError(f"it is cut short: the header needs {8 + length:,} bytes and the file has {len(content):,}")
    header = _parse(content[8 : 8 + length])
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or not isinstance(metadata.get(_KEY), str):
        raise FileError("it is a safetensors file of something else")
    end = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if not isinstance(entry, dict) or entry.get("dtype") not in _DTYPES:
            raise FileError(f"the array {name!r} has no dtype that recal reads")
        offsets = entry.get("data_offsets")
        if not isinstance(offsets, list) or not all(type(offset) is int for offset in offsets):
            raise FileError(f"the array {name!r} has no place in the file")
        end = max([end, *offsets])
    if len(content) != 8 + length + end:
        fault = "cut short" if len(content) < 8 + length + end else "longer than it says"
        raise FileError(f"it is {fault}: its header declares {8 + length + end:,} bytes and it has {len(content):,}")
    return header


def _check_version(header: dict[str, Any]) -> None:
    version = header.get("version")
    if type(version) is not int or version < 1:
        raise FileError(f"its version must be a whole number from 1 on, got {version!r}")
    if version > VERSION:
        raise FileError(
            f"it has the format {version} and this recal reads up to {VERSION}; "
            "update with: pip install --upgrade recal-calibration"
        )


def _parse(text: bytes | str) -> dict[str, Any]:
    value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse_constant)
    if not isinstance(value, dict):
        raise FileError("its header is not an object")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise FileError("its header has the same key twice")
    return entries


def _refuse_constant(name: str) -> Any:
    raise FileError(f"its header holds {name}, which is not JSON")
