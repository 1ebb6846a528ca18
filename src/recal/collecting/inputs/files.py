"""Files and folders of inputs: arrays, texts, sounds, bytes. Nothing is unpickled."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recal.collecting.inputs.folder import SUFFIXES, FileFolder, ImageFolder, OnError, as_objects
from recal.collecting.inputs.sources import ArraySource, Source
from recal.collecting.inputs.tables import SUFFIXES as TABLES
from recal.collecting.inputs.tables import open_table
from recal.errors import FileError, InputError, MissingExtraError, RecalError, Remedy
from recal.files.limits import admit
from recal.files.npz import refuse_bombs

ReadAs = Literal["images", "texts", "sounds", "bytes"]


class TextFolder(FileFolder):
    """Texts as `root/class/name.txt`, in UTF-8; a batch is an object array of strings."""

    suffixes: ClassVar[tuple[str, ...]] = (".txt", ".md", ".text")
    what: ClassVar[str] = "texts"

    def read_file(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"The text {path} cannot be read as UTF-8: {error}.") from error


class ByteFolder(FileFolder):
    """Any files as `root/class/name`; a batch is an object array of bytes."""

    def reading(self) -> dict[str, Any]:
        return {"read": "bytes"}

    def read_file(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise FileError(f"The file {path} cannot be read: {error}.") from error


class SoundFolder(FileFolder):
    """Sounds as `root/class/name.wav`, one channel of floats from -1 to 1; several channels are averaged.

    A batch is an array (n, time) where all sounds are equally long, else an object array of arrays.

    Parameters
    ----------
    root : path
    seconds : float, optional
        Cut or fill up each sound with silence to this length.
    on_error : {"stop", "skip"}
    """

    suffixes: ClassVar[tuple[str, ...]] = (".wav", ".flac", ".ogg", ".aiff")
    what: ClassVar[str] = "sounds"

    def __init__(self, root: Path, *, seconds: float | None = None, on_error: OnError = "stop") -> None:
        if seconds is not None and not seconds > 0:
            raise InputError("must be positive", argument="seconds", came=f"got {seconds!r}")
        self.seconds = seconds
        self.rate: int | None = None
        super().__init__(root, on_error=on_error)
        self.read_file(self.paths[0])  # tells the rate

    def reading(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def settings(self) -> str:
        return f"{self.seconds}"

    def read_file(self, path: Path) -> NDArray[np.float32]:
        samples, rate = read_sound(path)
        self.rate = self.rate or rate
        if rate != self.rate:
            raise InputError(
                f"Sounds must have one sampling rate: the first has {self.rate} Hz and {path} has {rate}. "
                "Resample them to the rate that the model was trained on."
            )
        if self.seconds is None:
            return samples
        length = max(1, round(self.seconds * rate))
        admit(path, 4 * length)  # a file may claim any rate
        return np.pad(samples[:length], (0, max(0, length - len(samples))))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        sounds = [self.read_file(path) for path in self.paths[start:stop]]
        return np.stack(sounds) if len({len(sound) for sound in sounds}) == 1 else as_objects(sounds)


def read_sound(path: Path) -> tuple[NDArray[np.float32], int]:
    """Return the samples of a sound file, its channels averaged, and its sampling rate."""
    try:
        import soundfile
    except ImportError as error:
        raise MissingExtraError("soundfile", "audio", f"Reading {path.name}") from error
    try:
        told = soundfile.info(path)
        admit(path, 4 * told.frames * told.channels)
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise FileError(f"The sound {path} cannot be read: {str(error).rstrip('.')}.") from error
    if not len(samples):
        raise FileError(f"The sound {path} holds no samples.")
    return samples.mean(axis=1, dtype=np.float32), int(rate)


_FOLDERS: dict[str, type[FileFolder]] = {
    "images": ImageFolder,
    "texts": TextFolder,
    "sounds": SoundFolder,
    "bytes": ByteFolder,
}
_TAKES = {"resize": "images", "crop": "images", "pixels": "images", "seconds": "sounds"}


def open_folder(path: Path, read: ReadAs | None = None, **options: Any) -> FileFolder:
    """Return the source of a folder: what most of its files are, or what `read` says."""
    chosen = _most(path) if read is None else read
    if chosen not in _FOLDERS:
        raise InputError(f"must be one of {', '.join(_FOLDERS)}", argument="read", came=f"got {read!r}")
    for name in options:
        if _TAKES.get(name, chosen) != chosen:
            raise InputError(
                f"applies to folders of {_TAKES[name]} only, and {path} is read as {chosen}", argument=name
            )
    return _FOLDERS[chosen](path, **options)


def _most(path: Path) -> str:
    """What most files in a folder are, by their names; asks where most are unknown, rather than leave those out."""
    ends = {"images": SUFFIXES, "texts": TextFolder.suffixes, "sounds": SoundFolder.suffixes}
    counts = dict.fromkeys(ends, 0)
    other = 0
    for file in path.rglob("*"):
        kind = next((kind for kind, suffixes in ends.items() if file.suffix.lower() in suffixes), None)
        if kind is not None:
            counts[kind] += 1
        else:
            other += file.is_file() and not file.name.startswith(".")
    chosen = max(counts, key=lambda kind: counts[kind])
    if other > counts[chosen]:
        known = f"only {counts[chosen]} of them {chosen}" if counts[chosen] else "none of them images, sounds or texts"
        raise InputError(
            f"{path} holds {other + sum(counts.values())} files, {known} by their names (.png, .wav, .txt, ...)",
            remedy=Remedy(
                "To read all as bytes say read='bytes'; to read those of one kind alone, read='images', read='sounds' "
                "or read='texts'",
                typed="To read all as bytes say --read bytes; to read those of one kind alone, --read images, --read "
                "sounds or --read texts",
            ),
        )
    return chosen


_INPUTS = ("inputs", "images", "x", "X", "data")
_LABELS = ("labels", "y", "targets")


def open_path(
    path: Path,
    *,
    read: ReadAs | None = None,
    label_column: str | None = None,
    text_column: str | None = None,
    cluster_column: str | None = None,
    group_column: str | None = None,
    cluster_by: str | None = None,
    **options: Any,
) -> Source:
    """Return the source for a file or folder, chosen by its name.

    Parameters
    ----------
    read : {"images", "texts", "sounds", "bytes"}, optional
        What the files of a folder are; by their names where not said.
    cluster_column, group_column : str, optional
        Of a table: which column says what each row belongs to. These columns are no features.
    cluster_by : str, optional
        Of a folder: "parent", or a regular expression that finds the cluster in the name of each file.
    label_column, text_column : str, optional
        Of a table: where its labels are ("label" where not said), and which column alone is read, as texts.
    **options
        `resize`, `crop`, `pixels` and `on_error` of a folder of images, `seconds` of one of sounds.
    """
    if not path.exists():
        raise FileError(f"There is no file or folder {path}.")
    options = {name: value for name, value in options.items() if value is not None}
    is_table = path.suffix.lower() in TABLES
    columns = {"label_column": label_column, "text_column": text_column}
    columns |= {"cluster_column": cluster_column, "group_column": group_column}
    for column, value in columns.items():
        _refuse(column, value if not is_table else None, "tables (.csv, .tsv, .parquet)")
    if path.is_dir():
        folder = open_folder(path, read, **options)
        if cluster_by is not None:
            folder.clusters = clusters_by_name(folder.names() or (), cluster_by)
        return folder
    _refuse("cluster_by", cluster_by, "folders")
    for name, value in {"read": read, **options}.items():
        _refuse(name, value, "folders")
    name = path.name.lower()
    if is_table:
        return open_table(path, **columns)
    try:
        if name.endswith(".npz"):
            return ArraySource(*_read_npz(path))
        if name.endswith(".npy"):
            return _mapped(ArraySource(np.load(path, mmap_mode="r", allow_pickle=False)), path)
        if name.endswith(".txt"):
            return ArraySource(_read_lines(path))
    except RecalError:
        raise
    except Exception as error:  # zipfile, zlib, tarfile, struct and numpy each break in ways of their own
        raise FileError(f"{path} cannot be read: {_reason(error)}.") from error
    raise InputError(
        f"{path.name}: inputs are read from .npz, .npy, tables (.csv, .tsv, .parquet), texts (.txt, one per line), or "
        "a folder of images, sounds or texts."
    )


def _mapped(source: ArraySource, path: Path) -> ArraySource:
    source.file = path
    return source


def _reason(error: Exception) -> str:
    if isinstance(error, zipfile.BadZipFile):
        return "it is damaged or truncated"
    if "pickle" in str(error) or "Python objects" in str(error):
        return "it is damaged, or holds Python objects, which are never opened"  # numpy would offer to open them
    return str(error).rstrip(".")


def _refuse(name: str, value: Any, where: str) -> None:
    if value is not None:
        raise InputError(f"applies to {where} only", argument=name)


def clusters_by_name(names: Sequence[str], rule: str) -> NDArray[Any]:
    """Return the cluster of each file: its folder, or what a pattern finds in its name.

    Examples
    --------
    >>> clusters_by_name(["a/patient7_1.png", "b/patient7_2.png"], r"patient(\\d+)").tolist()
    ['7', '7']
    >>> clusters_by_name(["cat/film1/001.png", "cat/film2/001.png"], "parent").tolist()
    ['cat/film1', 'cat/film2']
    """
    if rule == "parent":
        return np.array([name.rpartition("/")[0] for name in names])
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise InputError(f"is no regular expression: {error}", argument="cluster_by", came=f"got {rule!r}") from None
    matches = [pattern.search(name) for name in names]
    if None in matches:
        name = names[matches.index(None)]
        raise InputError(f"must match the name of every file; it does not match {name!r}", argument="cluster_by")
    return np.array([match[1] if pattern.groups else match[0] for match in matches if match is not None])


def read_labels(path: Path) -> NDArray[Any]:
    """Read labels from a .npy file, or from text with one label per line."""
    try:
        if path.suffix in (".txt", ".csv"):
            return _read_label_lines(path)
        if path.suffix == ".npy":
            return np.array(np.load(path, mmap_mode="r", allow_pickle=False))  # mapped: its size must be the file's
        raise InputError(f"Labels are read from .npy, or from .txt with one per line, got {path}.")
    except RecalError:
        raise
    except Exception as error:
        raise FileError(
            f"{path} cannot be read as labels (.npy, or .txt with one per line): {_reason(error)}."
        ) from error


def _read_label_lines(path: Path) -> NDArray[Any]:
    """Return one label per line: whole numbers where all are, otherwise words."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").rstrip().splitlines()]
    if not lines:
        raise ValueError("it holds no line")
    if "" in lines:
        raise InputError(
            f"{path}: line {lines.index('') + 1} is empty; every sample needs a label, in the samples' order."
        )
    try:
        return np.array([int(line) for line in lines])
    except (ValueError, OverflowError):
        return np.array(lines)


def _read_lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    if not lines:
        raise ValueError("it holds no line")
    return lines


def _read_npz(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    refuse_bombs(path)
    with np.load(path, allow_pickle=False) as file:
        names = list(file.files)
        label = next((name for name in _LABELS if name in names), None)
        others = [name for name in names if name != label]
        chosen = next((name for name in _INPUTS if name in names), others[0] if len(others) == 1 else None)
        if chosen is None:
            views = " These are views already, which recal fit takes." if "logits" in names else ""
            raise InputError(
                f"{path} holds {', '.join(names) or 'nothing'}; call the inputs `inputs`, the labels `labels`.{views}"
            )
        return file[chosen], None if label is None else file[label]
