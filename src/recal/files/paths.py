"""Paths, and writes that survive a kill at any moment.

`replacing` writes a file atomically: after a kill or on a full disk it has either its old or its
new content. A `Journal` only grows, and an incomplete last line is not read. `folder_lock` keeps a
second writer away.

A few kilobytes can declare, or unpack to, more than any machine has, so every reader checks the
declared size first (`admit`). A file may use 200 times its own size, up to 4 GiB; 256 MiB and twice
its size are always allowed. Logits, images, sounds and tables stay far below that.
``RECAL_MAX_BYTES=16GB`` raises the limit.
"""

from __future__ import annotations

import csv
import ctypes
import json
import math
import os
import re
import secrets
import shutil
import stat
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from recal.errors import FileError, InputError

# The endings of tables with a header, and of those with an object in each line.
TABLES = (".csv", ".tsv", ".parquet")
LINES = (".jsonl", ".ndjson")
LIMIT = "RECAL_MAX_BYTES"
_SMALL, _RATIO, _LARGE = 256 * 2**20, 200, 4 * 2**30


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a path; refuse a URL, which `Path` would take for a folder.

    Examples
    --------
    >>> local_path("views.zarr").name
    'views.zarr'
    """
    if re.match(r"[a-z][a-z0-9+.-]+:/", os.fspath(path)):
        raise InputError(
            f"{path} is a URL, and recal reads and writes local files only. Mount the bucket, or "
            "copy the file."
        )
    return Path(path)


def check_file(path: Path, folder: Path) -> None:
    """Raise a ValueError for a pipe or a device, and for a file outside of its folder."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path} is a link to a file outside")
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is not a regular file")


def docs_dir() -> Path:
    """Return the folder with the documentation as Markdown files; `index.md` is the first page.

    An installed package brings its own copy. In a clone it is the folder `docs`.

    Examples
    --------
    >>> import recal
    >>> (recal.docs_dir() / "tutorial.md").is_file()
    True
    """
    installed = Path(__file__).parents[1] / "_docs"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "docs"


# --- atomic writes


@contextmanager
def file_errors(path: str | os.PathLike[str], what: str, remedy: str = "") -> Iterator[None]:
    """Turn errors of the file system, of decoding and of CSV into a FileError that names the file.

    `what` is "read" or "write".
    """
    try:
        yield
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"Cannot {what} {path}: {reason}.{remedy}") from error


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file under a temporary name, and rename it when the block ends without an error.

    A reader of `path` sees either the old or the new content, even after a kill, a full disk or a
    power cut. A kill leaves a hidden file that ends in ``.part``, which is never read.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "note.txt"
    >>> with replacing(path) as file:
    ...     count = file.write(b"whole")
    >>> path.read_bytes()
    b'whole'
    """
    target = Path(os.path.realpath(local_path(path)))  # follow links
    partial, folder_existed = partial_name(target), target.parent.exists()
    try:
        with file_errors(path, "write", " No files were written."):
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_dir():
                raise IsADirectoryError(21, "it is a folder")
            with partial.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, partial)
            os.replace(partial, target)
            sync_folder(target.parent)
    finally:
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)
        if not folder_existed:
            with suppress(OSError):  # it is not empty
                target.parent.rmdir()


def partial_name(target: Path) -> Path:
    """Return an unused temporary name in the same folder."""
    return target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def replace_folder(new: Path, target: Path) -> None:
    """Give a folder the name of another one, which is removed; atomic if the system supports it."""
    sync_folder(new)
    if not target.exists():
        os.rename(new, target)
    elif exchange(new, target):
        shutil.rmtree(new, ignore_errors=True)
    else:
        os.rename(target, old := partial_name(target))
        os.rename(new, target)
        shutil.rmtree(old, ignore_errors=True)
    sync_folder(target.parent)


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two folders atomically; return False if the system cannot.

    With two renames, a kill in between would leave nothing under the name. Python has no function
    for this system call.
    """
    try:
        library = ctypes.CDLL(None, use_errno=True)
        names = (os.fsencode(one), os.fsencode(other))
        if sys.platform == "darwin":
            return bool(library.renamex_np(*names, 2) == 0)
        here = -100  # AT_FDCWD: relative to the working directory
        return bool(library.renameat2(here, names[0], here, names[1], 2) == 0)
    except (OSError, AttributeError, TypeError):
        return False


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, if the system supports it."""
    with suppress(OSError):  # some systems cannot open folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# --- journals and locks


class Journal:
    """Append-only records that survive a kill at any moment.

    A line that a kill cut off is left as it is, and is not read.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from recal.files.paths import Journal
    >>> journal = Journal(Path(tempfile.mkdtemp()) / "audit.jsonl")
    >>> journal.append({"id": 1}, {"id": 2})
    >>> [record["id"] for record in journal.read()]
    [1, 2]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0  # bytes

    def append(self, *records: dict[str, Any], sync: bool = True) -> None:
        """Write records in one piece, while no other process writes.

        Without `sync` they survive a kill of the process, but not a power cut.
        """
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        content = lines.encode()
        with file_errors(self.path, "write"), self.path.open("ab+") as file:
            lock(file.fileno())
            file.seek(0, os.SEEK_END)
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                content = b"\n" + content  # after a line that a kill cut off
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the records that were added since the last call, without incomplete lines."""
        if not self.path.exists():
            return
        with file_errors(self.path, "read"), self.path.open("rb") as file:
            file.seek(self._read)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]  # another process may be writing the rest
        self._read += len(complete)
        for line in complete.splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                yield record


def lock(handle: int, *, wait: bool = True) -> None:
    """Lock an open file or folder until it is closed, where the system has locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # some network file systems have no locks
        return


@contextmanager
def folder_lock(folder: Path, refusal: str = "") -> Iterator[None]:
    """Lock a folder by its handle: no file is left behind, and the lock ends with the process."""
    if os.name == "nt":  # which cannot open folders
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            lock(handle, wait=False)
        except BlockingIOError as error:
            raise FileError(
                refusal
                or f"Another collect is writing {folder} now; wait for it, or choose another name."
            ) from error
        yield
    finally:
        os.close(handle)


# --- limits on memory


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
            f"{path}: its {size:,} bytes claim to hold {n_bytes:,}, and at most {allowed:,} are "
            f"read. If you trust the file, set {LIMIT}={n_bytes}."
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


# --- JSON


def json_text(value: Any) -> str:
    """Return JSON that every reader accepts: numbers that are not finite become null, and numpy
    values, tuples and paths become plain ones.

    Examples
    --------
    >>> from recal.files.paths import json_text
    >>> json_text((1.5, float("inf")))
    '[\\n  1.5,\\n  null\\n]\\n'
    """
    return json.dumps(plain_values(value), indent=2, allow_nan=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error
    if not isinstance(found, dict):
        raise FileError(f"{path} must hold an object, got {type(found).__name__}.")
    return found


def plain_values(value: Any) -> Any:
    """Return `value` as plain JSON values, from numpy numbers and arrays, tuples and paths."""
    if isinstance(value, dict):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    if hasattr(value, "tolist"):
        return plain_values(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
