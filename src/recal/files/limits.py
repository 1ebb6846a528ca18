"""Limits on how much memory an untrusted file may need.

A few kilobytes can declare, or unpack to, more than any machine has, so every reader checks the
declared size first. A file may use 200 times its own size, up to 4 GiB; 256 MiB and twice its size
are always allowed. Logits, images, sounds and tables stay far below that. ``RECAL_MAX_BYTES=16GB``
raises the limit.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from recal.errors import FileError, InputError

LIMIT = "RECAL_MAX_BYTES"
_SMALL, _RATIO, _LARGE = 256 * 2**20, 200, 4 * 2**30


def allowance(size: int) -> int:
    """Return how many bytes a file of `size` bytes may take in memory.

    Examples
    --------
    >>> allowance(1_000) == 256 * 2**20, allowance(10_000_000), allowance(10**10)
    (True, 2000000000, 20000000000)
    """
    limit = _user_limit()
    return max(2 * size, max(_SMALL, min(_RATIO * size, _LARGE)) if limit is None else limit)


def admit(path: str | os.PathLike[str], n_bytes: int, size: int | None = None) -> None:
    """Refuse a file that needs more memory than allowed; `size` is the size of the part to read
    (default: all).
    """
    size = os.stat(path).st_size if size is None else size
    if n_bytes > (allowed := allowance(size)):
        raise FileError(
            f"{path}: its {size:,} bytes claim to hold {n_bytes:,}, and at most {allowed:,} are read. If you trust the "
            f"file, set {LIMIT}={n_bytes}."
        )


def refuse_bombs(path: Path, members: Sequence[zipfile.ZipInfo] | None = None) -> None:
    """Refuse a zip archive whose members (default: all) unpack to far more than their own size."""
    if members is None:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    # Compare with the members' own bytes: other bytes in the file would raise the limit.
    total, packed = (
        sum(info.file_size for info in members),
        sum(info.compress_size for info in members),
    )
    if packed > (size := path.stat().st_size):
        raise FileError(f"{path}: its {size:,} bytes claim to be {packed:,}.")
    admit(path, total, packed)


def _user_limit() -> int | None:
    text = os.environ.get(LIMIT, "").strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if text and match is None:
        raise InputError(f"{LIMIT} is a number of bytes, such as 16GB, got {text!r}.")
    if match is None:
        return None
    return int(float(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " "))
