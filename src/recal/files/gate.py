"""One gate for all bytes that come in: how many a file may become in memory, whatever it says of itself.

A few kilobytes can declare, or unpack to, more than any machine holds. Readers ask here before they unpack. By default
a file may become 200 times its own size, but no more than 4 GiB, unless that is less than 256 MiB or than twice its
size. Logits, images, sounds and tables stay far below; what does not can be let in by name: ``RECAL_MAX_BYTES=16GB``.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from recal.errors import FileError, InputError
from recal.files.places import sizes_in

LIMIT = "RECAL_MAX_BYTES"
_SMALL, _RATIO, _LARGE = 256 * 2**20, 200, 4 * 2**30
_FEW_CHUNKS = 1000
_HEADERS = 65_536  # beside the content that a reader asks for
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
# How codecs of zarr are called that make more bytes of fewer.
_PACKINGS = ("gzip", "zstd", "blosc")


def allowance(size: int) -> int:
    """Return how many bytes a file of `size` bytes may become.

    Examples
    --------
    >>> allowance(1_000) == 256 * 2**20, allowance(10_000_000), allowance(10**10)
    (True, 2000000000, 20000000000)
    """
    told = _told()
    return max(2 * size, max(_SMALL, min(_RATIO * size, _LARGE)) if told is None else told)


def admit(path: str | os.PathLike[str], needed: int, size: int | None = None) -> None:
    """Refuse a file that would become more than it may; `size` is that of its part in question, or of all of it."""
    held = os.stat(path).st_size if size is None else size
    if needed > (allowed := allowance(held)):
        raise FileError(
            f"{path}: its {held:,} bytes claim to hold {needed:,}, and at most {allowed:,} are read. If you trust the "
            f"file, set {LIMIT}={needed}."
        )


def admit_folder(path: Path, needed: int, chunks: int) -> None:
    """Refuse a folder whose arrays declare far more bytes, or chunks, than its files hold.

    It is read in pieces, so that it may be of any size. Each chunk is a file, and to look for one costs time as well.
    """
    told = _told() or 0
    needed = 0 if needed <= max(_SMALL, told) else needed
    wanted = 0 if chunks <= _FEW_CHUNKS else chunks // 2
    if not needed and not wanted:
        return
    held = files = 0
    for size in sizes_in(path):
        held, files = held + size, files + 1
        if needed <= _RATIO * held and wanted <= files:
            return
    if needed <= _RATIO * held:
        raise FileError(
            f"{path}: its arrays declare {chunks:,} chunks, and {files:,} files are there: most are missing."
        )
    raise FileError(
        f"{path}: its {held:,} bytes declare arrays of {needed:,}, so nearly all of their values are missing. If you "
        f"trust the folder, set {LIMIT}={needed}."
    )


def _told() -> int | None:
    text = os.environ.get(LIMIT, "").strip()
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if text and found is None:
        raise InputError(f"{LIMIT} is a number of bytes, such as 16GB, got {text!r}.")
    return None if found is None else int(float(found[1]) * _UNITS[found[2].upper()])


class Metered:
    """A stream that stops once it has given as many bytes as its file may become."""

    def __init__(self, file: Any, path: Path, *, packed: bool) -> None:
        self._file, self._path, self.packed = file, path, packed
        self._size = path.stat().st_size
        self.given, self.most = 0, allowance(self._size) + _HEADERS

    def read(self, size: int = -1) -> bytes:
        left = self.most - self.given
        content: bytes = self._file.read(left + 1 if size < 0 else min(size, left + 1))
        self.given += len(content)
        if self.given > self.most:
            raise FileError(
                f"{self._path}: its {self._size:,} bytes unpack to more than {self.most:,}, where reading stops. If "
                f"you trust the file, set {LIMIT} to a larger number, such as {LIMIT}=16GB."
            )
        return content


def open_packed(path: Path) -> tuple[IO[bytes], Metered]:
    """Open a file that may be packed with gzip, as its first bytes say, and return what is to be closed and read."""
    with path.open("rb") as file:
        head = file.read(6)
    for beginning, name in ((b"\xfd7zXZ\x00", "xz"), (b"BZh", "bzip2"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"PK", "zip")):
        if head.startswith(beginning):
            raise FileError(f"{path} is packed with {name}, whatever its name says; gzip is read. Pack it again.")
    packed = head.startswith(b"\x1f\x8b")
    opened: Any = gzip.open(path, "rb") if packed else path.open("rb")  # noqa: SIM115  # the caller closes it
    return opened, Metered(opened, path, packed=packed)


def declared(arrays: Iterable[tuple[Sequence[int], int]]) -> int:
    """Return how many bytes arrays of these shapes and item sizes take."""
    return sum(math.prod(shape) * itemsize for shape, itemsize in arrays)


def admit_chunk(path: Path, codecs: Sequence[str], expected: int) -> None:
    """Refuse a packed chunk that unpacks to more than its array's chunks hold; some codecs would unpack all of it."""
    packings = [name for name in codecs if name in _PACKINGS]
    if not packings:
        return
    if len(packings) > 1:
        raise ValueError(f"{path} is packed {len(packings)} times over, which is not opened")
    size = {"gzip": _gzip_size, "zstd": _zstd_size, "blosc": _blosc_size}[packings[0]](path, expected)
    if size is None or size > expected + 64:
        raise ValueError(f"{path} unpacks to {size or 'an unknown number of'} bytes, and {expected} were expected")


def _blosc_size(path: Path, _: int) -> int:
    with path.open("rb") as file:
        return int.from_bytes(file.read(8)[4:], "little")


def _zstd_size(path: Path, _: int) -> int | None:
    """The size that stands in the frame's header; None where none does."""
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
