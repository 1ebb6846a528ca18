"""Folders of texts, sounds, or any files as bytes, one folder per class."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recal.collecting.inputs.folder import SUFFIXES, FileFolder, ImageFolder, OnError, as_objects
from recal.errors import FileError, InputError, MissingExtraError, Remedy
from recal.files.gate import admit

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
