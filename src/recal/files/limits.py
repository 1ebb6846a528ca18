"""Limits on how much memory an untrusted file may need.

A few kilobytes can declare, or unpack to, more than any machine has, so every reader checks the declared size first. A
file may take 200 times its own size, up to 4 GiB; 256 MiB and twice its size are always allowed. Logits, images, sounds
and tables stay far below. ``RECAL_MAX_BYTES=16GB`` raises the limit.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from recal.errors import FileError, InputError
from recal.files.urls import sizes_in

LIMIT = "RECAL_MAX_BYTES"
_SMALL, _RATIO, _LARGE = 256 * 2**20, 200, 4 * 2**30
_FEW_CHUNKS = 1000
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
# The codecs of zarr that compress.
_COMPRESSORS = ("gzip", "zstd", "blosc")


def allowance(size: int) -> int:
    """Return how many bytes a file of `size` bytes may take in memory.

    Examples
    --------
    >>> allowance(1_000) == 256 * 2**20, allowance(10_000_000), allowance(10**10)
    (True, 2000000000, 20000000000)
    """
    limit = _user_limit()
    return max(2 * size, max(_SMALL, min(_RATIO * size, _LARGE)) if limit is None else limit)


def admit(path: str | os.PathLike[str], needed: int, size: int | None = None) -> None:
    """Refuse a file that needs more memory than allowed; `size` is that of the part in question (default: all)."""
    size = os.stat(path).st_size if size is None else size
    if needed > (allowed := allowance(size)):
        raise FileError(
            f"{path}: its {size:,} bytes claim to hold {needed:,}, and at most {allowed:,} are read. If you trust the "
            f"file, set {LIMIT}={needed}."
        )


def admit_folder(path: Path, needed: int, chunks: int) -> None:
    """Refuse a folder whose arrays declare far more bytes, or far more chunks, than its files have.

    A folder is read in pieces, so its size has no limit. Each chunk is a file, and looking for one takes time.
    """
    needed = 0 if needed <= max(_SMALL, _user_limit() or 0) else needed
    expected_files = 0 if chunks <= _FEW_CHUNKS else chunks // 2
    if not needed and not expected_files:
        return
    size = files = 0
    for file_size in sizes_in(path):
        size, files = size + file_size, files + 1
        if needed <= _RATIO * size and expected_files <= files:
            return
    if needed <= _RATIO * size:
        raise FileError(f"{path}: its arrays declare {chunks:,} chunks, but it has {files:,} files: most are missing.")
    raise FileError(
        f"{path}: its {size:,} bytes declare arrays of {needed:,}, so nearly all of their values are missing. If you "
        f"trust the folder, set {LIMIT}={needed}."
    )


def _user_limit() -> int | None:
    text = os.environ.get(LIMIT, "").strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if text and match is None:
        raise InputError(f"{LIMIT} is a number of bytes, such as 16GB, got {text!r}.")
    return None if match is None else int(float(match[1]) * _UNITS[match[2].upper()])


def array_bytes(arrays: Iterable[tuple[Sequence[int], int]]) -> int:
    """Return how many bytes arrays of these shapes and item sizes take."""
    return sum(math.prod(shape) * itemsize for shape, itemsize in arrays)


def admit_chunk(path: Path, codecs: Sequence[str], expected: int) -> None:
    """Refuse a compressed chunk that unpacks to more than a chunk of its array; some codecs would unpack all of it."""
    compressors = [name for name in codecs if name in _COMPRESSORS]
    if not compressors:
        return
    if len(compressors) > 1:
        raise ValueError(f"{path} is compressed {len(compressors)} times, which is not opened")
    size = {"gzip": _gzip_size, "zstd": _zstd_size, "blosc": _blosc_size}[compressors[0]](path, expected)
    if size is None or size > expected + 64:
        raise ValueError(f"{path} unpacks to {size or 'an unknown number of'} bytes, and {expected} were expected")


def _blosc_size(path: Path, _: int) -> int:
    with path.open("rb") as file:
        return int.from_bytes(file.read(8)[4:], "little")


def _zstd_size(path: Path, _: int) -> int | None:
    """Return the size in the frame header, or None if there is none."""
    with path.open("rb") as file:
        head = file.read(18)
    if len(head) < 6:
        return 0
    flags = head[4]
    single, width = bool(flags & 0x20), (0, 2, 4, 8)[flags >> 6]
    start = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    if not width:
        return head[start] if single else None
    return int.from_bytes(head[start : start + width], "little") + (256 if width == 2 else 0)


def _gzip_size(path: Path, expected: int) -> int:
    total, unpacker = 0, zlib.decompressobj(wbits=31)
    with path.open("rb") as file:
        rest = file.read(65_536)
        while rest and total <= expected + 64:
            total += len(unpacker.decompress(rest, 2**20))
            if unpacker.eof:  # another member may follow
                rest, unpacker = unpacker.unused_data, zlib.decompressobj(wbits=31)
            else:
                rest = unpacker.unconsumed_tail
            rest = rest or file.read(65_536)
    return total
