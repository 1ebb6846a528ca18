"""Files that appear whole or not at all."""

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
from recal.files.places import as_place, is_remote


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file beside its final name and move it there when the block ends well.

    Whoever reads `path` meets the old content or the new, also after a kill, a full disk or a power cut. What a kill
    leaves behind is a hidden file ending in ``.part``, which nothing reads.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "note.txt"
    >>> with replacing(path) as file:
    ...     count = file.write(b"whole")
    >>> path.read_bytes()
    b'whole'
    """
    place = as_place(path)
    if is_remote(place):
        yield from _putting(place)
        return
    target = Path(os.path.realpath(path))  # through a link, to the file it names
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


def _putting(place: Path) -> Iterator[BinaryIO]:
    """Write an object of a store, which appears whole or not at all by itself."""
    content = io.BytesIO()
    try:
        yield content
        place.write_bytes(content.getvalue())
    except OSError as error:
        raise FileError(f"Cannot write {place}: {error.strerror or error}. No files were written.") from error


def write_together(folder: Path, contents: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write several files of one result: all of them are whole before the first takes its name.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp()) / "results"
    >>> [path.name for path in write_together(folder, {"a.txt": b"one", "b.txt": b"two"})]
    ['a.txt', 'b.txt']
    """
    was_there = folder.exists()
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
                        file.close()  # which would try to write the rest once more
                    raise FileError(
                        f"Cannot write {folder / name}: {error.strerror or error}. No files were written."
                    ) from error
    except FileError:
        if not was_there and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise
    return tuple(folder / name for name in contents)


def partial_name(target: Path) -> Path:
    """Return a name beside `target` that nobody else uses."""
    return target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def exchange(one: Path, other: Path) -> bool:
    """Let two folders change their names in one step; False where the system cannot.

    With two renames instead, a kill between them would leave nothing under the name. Python has no call for it.
    """
    try:
        library = ctypes.CDLL(None, use_errno=True)
        names = (os.fsencode(one), os.fsencode(other))
        if sys.platform == "darwin":
            return bool(library.renamex_np(*names, 2) == 0)
        here = -100  # AT_FDCWD: names are not relative to an open folder
        return bool(library.renameat2(here, names[0], here, names[1], 2) == 0)
    except (OSError, AttributeError, TypeError):
        return False


def sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # some systems open no folders
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
