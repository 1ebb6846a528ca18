"""Atomic writes: a file has its old content or all of its new content."""

from __future__ import annotations

import ctypes
import io
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from recal.errors import FileError
from recal.files.urls import as_path, is_remote


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file under a temporary name, and rename it when the block ends without an error.

    A reader of `path` sees the old content or the new, also after a kill, a full disk or a power cut. A kill leaves a
    hidden file that ends in ``.part``, which is never read.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "note.txt"
    >>> with replacing(path) as file:
    ...     count = file.write(b"whole")
    >>> path.read_bytes()
    b'whole'
    """
    if is_remote(remote := as_path(path)):
        yield from _write_object(remote)
        return
    target = Path(os.path.realpath(path))  # follow links
    partial = partial_name(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
        sync_folder(target.parent)
    except OSError as error:
        raise FileError(f"Cannot write {path}: {error.strerror or error}. No files were written.") from error
    finally:
        partial.unlink(missing_ok=True) if partial.parent.is_dir() else None


def _write_object(path: Path) -> Iterator[BinaryIO]:
    """Write an object of a store, which is atomic."""
    content = io.BytesIO()
    try:
        yield content
        path.write_bytes(content.getvalue())
    except OSError as error:
        raise FileError(f"Cannot write {path}: {error.strerror or error}. No files were written.") from error


def write_together(folder: Path, contents: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write several files of one result: all of them are complete before the first is renamed.

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
                try:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError as error:
                    with suppress(OSError):
                        file.close()  # tries to write the rest once more
                    raise FileError(
                        f"Cannot write {folder / name}: {error.strerror or error}. No files were written."
                    ) from error
    except FileError:
        if not existed and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise
    return tuple(folder / name for name in contents)


def partial_name(target: Path) -> Path:
    """Return an unused temporary name in the same folder."""
    return target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two folders atomically; return False if the system cannot.

    A kill between two renames would leave nothing under the name. Python has no function for this system call.
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
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # some systems cannot open folders
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
