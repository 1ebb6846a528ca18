"""Paths of files and folders, and atomic writes to them.

`replacing` writes a file atomically: after a kill or on a full disk it has either its old or its
new content.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from recal.errors import FileError, InputError


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a path; refuse a URL, which `Path` would take for a folder.

    Examples
    --------
    >>> local_path("views.zarr").name
    'views.zarr'
    """
    if re.match(r"[a-z][a-z0-9+.-]+:/", os.fspath(path)):
        raise InputError(
            f"{path} is a URL, and recal reads and writes local files only. Mount the bucket, or copy the file."
        )
    return Path(path)


def version_stamp(path: Path) -> tuple[int, ...] | None:
    """Return values that change when a file is written again, or None if it does not exist."""
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns, info.st_size


def check_file(path: Path, folder: Path) -> None:
    """Raise a ValueError for a pipe or a device, and for a link that leads out of the folder."""
    if not os.path.lexists(path):
        return
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{path} is a link to a file outside")
    elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
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
    partial = partial_name(target)
    try:
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
    except OSError as error:
        raise FileError(
            f"Cannot write {path}: {error.strerror or error}. No files were written."
        ) from error
    finally:
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)


def write_together(folder: Path, contents: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write several files of one result: all of them are complete before the first is renamed.

    An error says which of them are new, if a rename fails after another one.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp()) / "results"
    >>> [path.name for path in write_together(folder, {"a.txt": b"one", "b.txt": b"two"})]
    ['a.txt', 'b.txt']
    """
    existed = folder.exists()
    try:
        with ExitStack() as stack:
            for name, content in contents.items():
                file = stack.enter_context(replacing(folder / name))
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
    except FileError as error:
        paths = {folder / name: content for name, content in contents.items()}
        new = [path.name for path in paths if path.is_file() and path.read_bytes() == paths[path]]
        if new:
            raise FileError(
                f"Cannot write all of {folder}: {error.__cause__}. Only {', '.join(new)} are new."
            ) from error
        if not existed and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise
    return tuple(folder / name for name in contents)


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
        old = partial_name(target)
        os.rename(target, old)
        try:
            os.rename(new, target)
        except OSError:
            os.rename(old, target)
            raise
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


def json_text(value: Any) -> str:
    """Return JSON that every reader accepts: numbers that are not finite become null, and numpy
    values, tuples and paths become plain ones.

    Examples
    --------
    >>> from recal.files.paths import json_text
    >>> json_text((1.5, float("inf")))
    '[\\n  1.5,\\n  null\\n]\\n'
    """
    return json.dumps(_plain(value), indent=2, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Return `value` as plain JSON values, converted from numpy numbers and arrays, tuples and
    paths.
    """
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
