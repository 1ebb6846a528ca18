"""Paths of local files and of objects in a store, and atomic writes to both.

`as_path` returns a path for both. For a URL it comes from universal_pathlib, which gives fsspec's
file systems the methods of `pathlib`; zarr opens the same URLs itself. An object store has no
folders, locks, renames or appends, but writing an object is atomic. The store's own package reads
credentials from the environment or its configuration files; recal never writes them.

`replacing` writes a file atomically: after a kill or on a full disk it has either its old or its
new content.
"""

from __future__ import annotations

import ctypes
import io
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

from recal.errors import FileError, InputError, MissingExtraError

# The package for each protocol, and the extra that installs it.
_PROTOCOLS = {
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gs")),
    **dict.fromkeys(("az", "abfs", "abfss"), ("adlfs", "az")),
    "s3": ("s3fs", "s3"),
    "memory": ("fsspec", "s3"),
}
# A URL that was a `Path` before has one slash, since pathlib merges two.
_URL = re.compile(rf"((?:{'|'.join(_PROTOCOLS)})(?=:/)|[a-z][a-z0-9+.-]+(?=://)):/{{1,2}}(?=[^/])")


def is_url(path: object) -> bool:
    """Whether a text or path names an object in a store.

    Examples
    --------
    >>> is_url("s3://bucket/views.zarr"), is_url("views.zarr"), is_url("C:/views.zarr")
    (True, False, False)
    """
    return not isinstance(path, bytes | int) and _URL.match(str(path)) is not None


def as_path(path: Any) -> Path:
    """Return a path for a text, a path or a URL.

    Examples
    --------
    >>> as_path("views.zarr").name, str(as_path("memory://bucket/views.zarr"))
    ('views.zarr', 'memory://bucket/views.zarr')
    """
    match = None if isinstance(path, bytes) else _URL.match(str(path))
    if match is None:
        return Path(path)
    if match[1] not in _PROTOCOLS:
        raise InputError(
            f"{path} is not a URL that can be used. URLs begin with {', '.join(_PROTOCOLS)}."
        )
    package, extra = _PROTOCOLS[match[1]]
    try:
        __import__(package)
        from upath import UPath
    except ImportError as error:
        raise MissingExtraError(package, extra, f"A URL that begins with {match[1]}://") from error
    # Do not cache listings: zarr and other processes write there, too.
    remote: Any = UPath(f"{match[1]}://{str(path)[match.end() :]}", use_listings_cache=False)
    return remote  # it has all methods of a Path that recal uses


def is_remote(path: Path) -> bool:
    """Whether a path is in an object store."""
    return hasattr(path, "fs")


def exists(path: Path) -> bool:
    """Whether a path exists. If its store cannot be reached, the error says why."""
    try:
        return path.exists()
    except Exception as error:  # each package has its own errors
        if not is_remote(path):
            raise
        raise FileError(
            f"Cannot reach {path}: {str(error).rstrip('.') or type(error).__name__}. The package of "
            "the store reads credentials and address from the environment or its configuration files."
        ) from error


def refuse_single_file(path: Path) -> None:
    """Refuse an .npz file of views at a URL: it can only be read and written as a whole."""
    if is_remote(path):
        raise InputError(
            f"Views at a URL are a zarr folder, got {path}. Choose a name that ends in .zarr."
        )


def version_stamp(path: Path) -> tuple[Any, ...] | None:
    """Return values that change when a file is written again, or None if it does not exist."""
    try:
        info: Any = path.stat()
    except OSError:
        return None
    if not is_remote(path):
        return info.st_ino, info.st_mtime_ns, info.st_size
    details = info.as_info()
    keys = ("ETag", "etag", "size", "LastModified", "mtime", "updated", "created")
    return tuple(str(details.get(key)) for key in keys)


def check_file(path: Path, folder: Path) -> None:
    """Raise a ValueError for a pipe or a device, and for a link that leads out of the folder."""
    if is_remote(path) or not os.path.lexists(path):
        return
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{path} is a link to a file outside")
    elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError(f"{path} is not a regular file")


def remove_inside(folder: Path, *kept: str) -> None:
    """Remove everything in a folder except the given names."""
    for path in folder.iterdir():
        if path.name in kept:
            continue
        if is_remote(path):
            remove_tree(path)
        else:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def remove_tree(folder: Path) -> None:
    """Remove an object, or all objects below a folder, of an object store, if they exist."""
    store: Any = folder
    with suppress(FileNotFoundError):
        store.fs.rm(store.path, recursive=True)


def sizes_in(folder: Path) -> Iterator[int]:
    """Yield the size of every file below a folder."""
    if is_remote(folder):
        store: Any = folder
        files = store.fs.find(store.path, detail=True).values()
        yield from (int(info.get("size") or 0) for info in files)
        return
    for above, _, names in os.walk(folder):
        for name in names:
            yield os.lstat(os.path.join(above, name)).st_size


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
    remote = is_remote(target := as_path(path))
    target = target if remote else Path(os.path.realpath(path))  # follow links
    partial = partial_name(target)
    try:
        if remote:  # writing an object is atomic
            content = io.BytesIO()
            yield content
            target.write_bytes(content.getvalue())
            return
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
        if not remote and partial.parent.is_dir():
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
