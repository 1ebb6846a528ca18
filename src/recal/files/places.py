"""Where files lie: on this machine, or in an object store that is named by a URL.

`as_place` makes a path of either. Those of URLs come from universal_pathlib, which gives fsspec's file systems the
methods of `pathlib`; zarr opens the same URLs by itself. An object store has no folders, locks, renames or appends, but
an object appears whole or not at all, so what follows from that is here and in `locks.py` and `atomic.py`.
Credentials are read by the store's own package from its usual places and are never written anywhere.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from recal.errors import FileError, InputError, MissingExtraError

# The package that speaks each protocol, and the extra that installs it.
_PROTOCOLS = {
    "s3": ("s3fs", "s3"),
    "gs": ("gcsfs", "gs"),
    "gcs": ("gcsfs", "gs"),
    "az": ("adlfs", "az"),
    "abfs": ("adlfs", "az"),
    "abfss": ("adlfs", "az"),
    "memory": ("fsspec", "s3"),
}
# pathlib makes one slash of two: a URL that has been a `Path` is known all the same.
_URL = re.compile(rf"((?:{'|'.join(_PROTOCOLS)})(?=:/)|[a-z][a-z0-9+.-]+(?=://)):/{{1,2}}(?=[^/])")


def is_url(path: object) -> bool:
    """Whether a text or path names an object in a store.

    Examples
    --------
    >>> is_url("s3://bucket/views.zarr"), is_url("views.zarr"), is_url("C:/views.zarr")
    (True, False, False)
    """
    return not isinstance(path, bytes | int) and _URL.match(str(path)) is not None


def as_place(path: Any) -> Path:
    """Return what a text or path names, with the methods of a `Path`.

    Examples
    --------
    >>> as_place("views.zarr").name, str(as_place("memory://bucket/views.zarr"))
    ('views.zarr', 'memory://bucket/views.zarr')
    """
    found = None if isinstance(path, bytes) else _URL.match(str(path))
    if found is None:
        return Path(path)
    if found[1] not in _PROTOCOLS:
        raise InputError(f"{path} names no place that can be used. URLs begin with {', '.join(_PROTOCOLS)}.")
    package, extra = _PROTOCOLS[found[1]]
    try:
        __import__(package)
        from upath import UPath
    except ImportError as error:
        raise MissingExtraError(package, extra, f"A URL that begins with {found[1]}://") from error
    # Listings are asked for anew each time: zarr and other processes write there, too.
    place: Any = UPath(f"{found[1]}://{str(path)[found.end() :]}", use_listings_cache=False)
    return place  # it has all that is used of a Path


def is_remote(place: Path) -> bool:
    """Whether a place is an object in a store, and not a file of this machine."""
    return hasattr(place, "fs")


def exists(place: Path) -> bool:
    """Whether there is anything at a place; says what is wrong where its store cannot be asked."""
    try:
        return place.exists()
    except Exception as error:  # each store's package has errors of its own
        if not is_remote(place):
            raise
        raise FileError(
            f"Cannot reach {place}: {str(error).rstrip('.') or type(error).__name__}. Credentials and the address of "
            "the store are read by its own package, from the environment or its configuration files."
        ) from error


def refuse_single_file(place: Path) -> None:
    """Refuse views in one file at a URL: such a file is read whole, and written whole at the end."""
    if is_remote(place):
        raise InputError(f"Views at a URL are a zarr folder, got {place}. Choose a name that ends in .zarr.")


def sign_of(place: Path) -> tuple[Any, ...] | None:
    """Return what changes when a file is written again; None where there is none."""
    try:
        info: Any = place.stat()
    except OSError:
        return None
    if not is_remote(place):
        return info.st_ino, info.st_mtime_ns, info.st_size
    told = info.as_info()
    return tuple(str(told.get(key)) for key in ("ETag", "etag", "size", "LastModified", "mtime", "updated", "created"))


def remove_inside(folder: Path, *kept: str) -> None:
    """Empty a folder but for the names to be kept; the folder itself stays."""
    for path in folder.iterdir():
        if path.name in kept:
            continue
        if is_remote(path):
            remove_tree(path)
        else:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def remove_tree(folder: Path) -> None:
    """Remove an object, or all that lie below a folder, of an object store; what is gone already is no fault."""
    store: Any = folder
    with suppress(FileNotFoundError):
        store.fs.rm(store.path, recursive=True)


def sizes_in(folder: Path) -> Iterator[int]:
    """Yield the size of every file below a folder."""
    if is_remote(folder):
        store: Any = folder
        yield from (int(info.get("size") or 0) for info in store.fs.find(store.path, detail=True).values())
        return
    for above, _, names in os.walk(folder):
        for name in names:
            yield os.lstat(os.path.join(above, name)).st_size
