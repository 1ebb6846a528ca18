"""Inputs and labels by path: a folder, a table, arrays, or lines of text. Nothing is unpickled."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.folders import FileFolder, ImageFolder, SoundFolder, TextFolder
from recal.collecting.sources import FILE_OPTIONS, ArraySource, Source
from recal.collecting.tables import TABLE_SUFFIXES as TABLES
from recal.collecting.tables import open_table
from recal.errors import FileError, InputError, RecalError
from recal.files.limits import refuse_bombs
from recal.schema import Choice, check

_FOLDERS: dict[str, type[FileFolder]] = {
    "images": ImageFolder,
    "texts": TextFolder,
    "sounds": SoundFolder,
}


def open_path(path: Path, **options: Any) -> Source:
    """Return the source for a file or folder, chosen by its name.

    Parameters
    ----------
    **options
        Options that are None are ignored.

        - of a folder: `read` ("images", "texts" or "sounds", by default what most file
          names say), `on_error`,
          and `cluster_by` ("parent", or a regular expression that finds the cluster in a file
          name);
        - of a folder of images: `resize`, `crop` and `pixels`; of sounds: `seconds`;
        - of a table: `label_column` (default "label"), `text_column` (the only column that is read,
          as texts),
          `cluster_column` and `group_column` (features only if the model was fitted on them).
    """
    if not path.exists():
        raise FileError(f"There is no file or folder {path}.")
    options = {name: value for name, value in options.items() if value is not None}
    suffix = path.suffix.lower()
    kind, note = "files", ""
    if path.is_dir():
        read = options.pop("read", None) or _most(path)
        check(read, Choice(*_FOLDERS), "read")
        kind, note = f"folders of {read}", f", and {path} is read as {read}"
    elif suffix in TABLES:
        kind = "tables (.csv, .tsv, .parquet)"
    for name in options:
        if not kind.startswith(FILE_OPTIONS[name]):
            raise InputError(f"applies to {FILE_OPTIONS[name]} only{note}", argument=name)
    if path.is_dir():
        rule = options.pop("cluster_by", None)
        folder = _FOLDERS[read](path, **options)
        if rule is not None:
            folder.clusters = clusters_by_name(folder.names(), rule)
            if folder.labels is not None and _is_same_partition(folder.clusters, folder.labels):
                raise InputError(
                    f"finds the {len(np.unique(folder.labels))} classes, got {rule!r}; clusters are "
                    "files that belong together, such as those of one person or one video",
                    argument="cluster_by",
                )
        return folder
    if suffix in TABLES:
        return open_table(path, **options)
    with _reading(path):
        if suffix == ".npz":
            return ArraySource(*_read_npz(path))
        if suffix == ".npy":
            return ArraySource(np.load(path, mmap_mode="r", allow_pickle=False))
        if suffix == ".txt":
            return ArraySource(_read_lines(path))
    raise InputError(
        f"{path.name}: inputs are read from .npz, .npy, tables (.csv, .tsv, .parquet), texts (.txt, one per line), or "
        "a folder of images, sounds or texts."
    )


def _most(path: Path) -> str:
    """Return the type of most files in a folder, by the endings of their names."""
    endings = [file.suffix.lower() for file in path.rglob("*") if not file.name.startswith(".")]
    counts = {kind: sum(map(endings.count, _FOLDERS[kind].suffixes)) for kind in _FOLDERS}
    if not any(counts.values()):
        raise InputError(
            f"{path} holds no images, texts or sounds (.png, .txt, .wav, ...); expected "
            f"{path.name}/CLASS/NAME, a folder for each class, or {path.name}/NAME."
        )
    return max(counts, key=lambda kind: counts[kind])


@contextmanager
def _reading(path: Path, purpose: str = "") -> Iterator[None]:
    """Turn the errors of readers into a FileError: zipfile, zlib, struct and numpy raise different
    errors.
    """
    try:
        yield
    except RecalError:
        raise
    except Exception as error:
        reason = str(error).rstrip(".")
        if isinstance(error, zipfile.BadZipFile):
            reason = "it is damaged or truncated"
        elif "pickle" in reason or "Python objects" in reason:  # numpy would offer to open them
            reason = "it is damaged, or holds Python objects, which are never opened"
        raise FileError(f"{path} cannot be read{purpose}: {reason}.") from error


def clusters_by_name(names: Sequence[str], rule: str) -> NDArray[Any]:
    """Return the cluster of each file: its folder, or what a pattern finds in its name without the
    folders.

    Examples
    --------
    >>> clusters_by_name(["a/patient7_1.png", "b/patient7_2.png"], r"(.+)_\\d+").tolist()
    ['patient7', 'patient7']
    >>> clusters_by_name(["cat/film1/001.png", "cat/film2/001.png"], "parent").tolist()
    ['cat/film1', 'cat/film2']
    """
    if rule == "parent":
        return np.array([name.rpartition("/")[0] for name in names])
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise InputError(
            f"is no regular expression: {error}, got {rule!r}", argument="cluster_by"
        ) from None
    files = [name.rpartition("/")[2] for name in names]
    matches = [pattern.search(name) for name in files]
    if None in matches:
        name = files[matches.index(None)]
        raise InputError(
            f"must match the name of every file; it does not match {name!r}", argument="cluster_by"
        )
    return np.array(
        [match[1] if pattern.groups else match[0] for match in matches if match is not None]
    )


def _is_same_partition(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two columns divide the rows in the same way."""
    pairs = {*zip(one.tolist(), other.tolist())}
    return len(pairs) == len(np.unique(one)) == len(np.unique(other))


def read_labels(path: Path) -> NDArray[Any]:
    """Read labels from a .npy file, or from text with one label per line; whole numbers if all
    labels are.
    """
    with _reading(path, " as labels (.npy, or .txt with one per line)"):
        if path.suffix == ".npy":
            return np.array(
                np.load(path, mmap_mode="r", allow_pickle=False)
            )  # mapping checks the declared size
        if path.suffix not in (".txt", ".csv"):
            raise InputError(
                f"Labels are read from .npy, or from .txt with one per line, got {path}."
            )
        lines = [line.strip() for line in _read_lines(path, trim=True)]
    if "" in lines:
        raise InputError(
            f"{path}: line {lines.index('') + 1} is empty; every sample needs a label, in the samples' order."
        )
    try:
        return np.array([int(line) for line in lines])
    except (ValueError, OverflowError):
        return np.array(lines)


def _read_lines(path: Path, *, trim: bool = False) -> list[str]:
    text = path.read_text(encoding="utf-8-sig")
    lines = (text.rstrip() if trim else text).splitlines()
    if not lines:
        raise ValueError("it holds no line")
    return lines


def _read_npz(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    refuse_bombs(path)
    with np.load(path, allow_pickle=False) as file:
        names = list(file.files)
        label = next((name for name in ("labels", "y", "targets") if name in names), None)
        others = [name for name in names if name != label]
        usual = [name for name in ("inputs", "images", "x", "X", "data") if name in names]
        chosen = (usual or others)[0] if usual or len(others) == 1 else None
        if chosen is None:
            views = " These are views already, which recal fit takes." if "logits" in names else ""
            raise InputError(
                f"{path} holds {', '.join(names) or 'nothing'}; call the inputs `inputs`, the labels `labels`.{views}"
            )
        return file[chosen], None if label is None else file[label]
