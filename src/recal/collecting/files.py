"""Inputs and labels by path: folders of images, texts or sounds with one folder per class, tables,
arrays, and lines of text. Nothing is unpickled.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recal.checks import as_objects
from recal.collecting.fingerprint import digest_texts
from recal.collecting.models.base import Pixels
from recal.collecting.sources import FILE_OPTIONS, ArraySource, Source, sample_form
from recal.collecting.tables import open_table
from recal.errors import FileError, InputError, RecalError, in_both, needs_extra
from recal.files.paths import TABLES, admit, refuse_bombs
from recal.schema import Choice, Number, check, kind_of

if TYPE_CHECKING:
    from PIL import Image

OnError = Literal["stop", "skip"]
_MODES = {"rgb": "RGB", "gray": "L"}
_SKIP = f"Repair or remove it, or leave such files out with {in_both(on_error='skip')}"


class FileFolder(Source):
    """Files as `root/class/name`. A label is the index of the class folder in sorted order.

    Parameters
    ----------
    root : path
        A folder of class folders, or of files without labels.
    on_error : {"stop", "skip"}
        A file that cannot be read stops the run, or is left out and listed in `skipped`. With
        "skip", every file is read once beforehand, so that the batches do not depend on where a run
        was interrupted.
    """

    suffixes: ClassVar[tuple[str, ...]]
    """The file name endings to read."""
    what: ClassVar[str]

    def __init__(self, root: Path, *, on_error: OnError = "stop") -> None:
        check(on_error, kind_of(OnError), "on_error")
        self.root = Path(root)
        folders = sorted(path for path in _visible(self.root.iterdir()) if path.is_dir())
        self.classes = tuple(folder.name for folder in folders) or None
        paths = [
            (path, label)
            for label, folder in enumerate(folders or [self.root])
            for path in self._files(folder)
        ]
        if not paths:
            name = self.root.name
            raise InputError(
                f"{self.root} holds no {self.what} ({', '.join(self.suffixes)}); expected "
                f"{name}/CLASS/NAME, a folder for each class, or {name}/NAME."
            )
        if on_error == "skip":
            damaged = {path for path, _ in paths if not self._is_readable(path)}
            self.skipped = tuple(self._name(path) for path, _ in paths if path in damaged)
            paths = [pair for pair in paths if pair[0] not in damaged]
            if not paths:
                raise InputError(f"None of the {self.what} in {self.root} can be read.")
        self.paths = [path for path, _ in paths]
        self.labels = np.array([label for _, label in paths]) if folders else None
        self.n_samples = len(self.paths)

    @abstractmethod
    def read_file(self, path: Path) -> Any:
        """Return one sample; raise FileError if the file cannot be read."""

    def fingerprint(self) -> str:
        sizes = [f"{self._name(path)} {path.stat().st_size}" for path in self.paths]
        return digest_texts([repr(self.reading), *sizes])

    def names(self) -> list[str]:
        return [self._name(path) for path in self.paths]

    def read(self, rows: Sequence[int]) -> NDArray[Any]:
        """Return the samples as an object array, because texts and sounds differ in length."""
        return as_objects([self.read_file(self.paths[row]) for row in rows])

    def _files(self, folder: Path) -> list[Path]:
        paths = [path for path in _visible(folder.rglob("*")) if path.is_file()]
        return sorted(path for path in paths if path.suffix.lower() in self.suffixes)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _is_readable(self, path: Path) -> bool:
        try:
            self.read_file(path)
        except FileError:
            return False
        return True


@contextmanager
def _reading(path: str | os.PathLike[str], purpose: str = "", remedy: str = "") -> Iterator[None]:
    """Turn the errors of readers into a FileError: zipfile, zlib, struct, numpy, Pillow and
    soundfile raise different errors.
    """
    try:
        yield
    except (RecalError, MemoryError):
        raise
    except Exception as error:
        reason = str(error).rstrip(".")
        if "pickle" in reason or "Python objects" in reason:  # numpy would offer to open them
            reason = "it is damaged, or holds Python objects, which are never opened"
        rule = f"{os.fspath(path)} cannot be read{purpose}: {reason}"
        raise FileError(rule, remedy=remedy) from error


def _visible(paths: Iterable[Path]) -> Iterator[Path]:
    return (path for path in paths if not path.name.startswith("."))


class ImageFolder(FileFolder):
    """Images as `root/class/name.jpg`, read as uint8 with channels last. See `FileFolder` for the
    labels.

    `read_image` describes how sixteen bits, palettes, alpha, CMYK and rotated photographs are read.

    Parameters
    ----------
    root : path
        A folder of class folders, or of images without labels.
    resize : int, optional
        The new length of the shorter side; bilinear, antialiased.
    crop : int, optional
        The side of the square kept from the middle, after resizing.
    on_error : {"stop", "skip"}
        As in `FileFolder`.
    pixels : {"rgb", "gray"}
        What the model was trained on. Grey images come as (n, height, width).
    """

    suffixes: ClassVar[tuple[str, ...]] = (
        *(".jpg", ".jpeg", ".png", ".bmp", ".gif"),
        *(".ppm", ".pgm", ".tif", ".tiff", ".webp"),
    )
    what: ClassVar[str] = "images"
    kind = "image"

    def __init__(
        self,
        root: Path,
        *,
        resize: int | None = None,
        crop: int | None = None,
        on_error: OnError = "stop",
        pixels: Pixels = "rgb",
    ) -> None:
        self.pixels: Pixels = check(pixels, Choice(*_MODES), "pixels")
        self.resize, self.crop = resize, crop
        self.reading = {"pixels": pixels, "resize": resize, "crop": crop}
        for name, side in (("resize", resize), ("crop", crop)):
            if side is not None:
                check(side, Number(1, whole=True), name)
        super().__init__(root, on_error=on_error)

    def sample(self) -> tuple[tuple[int, ...], str] | None:
        try:
            return sample_form(self.read(range(1)))
        except FileError:  # the run itself will report the file
            return None

    def read(self, rows: Sequence[int]) -> NDArray[Any]:
        images = [self.read_file(self.paths[row]) for row in rows]
        first, size = self.paths[rows[0]], images[0].shape
        for row, image in zip(rows, images):
            if image.shape != size:
                raise InputError(
                    f"Images must have one size: {first} is {size[:2]} and {self.paths[row]} is "
                    f"{image.shape[:2]} (height, width)",
                    remedy="Use resize=N (--resize N), and crop=N (--crop N) for other shapes",
                )
        return np.stack(images)

    def read_file(self, path: Path) -> NDArray[Any]:
        image = read_image(path, self.pixels)
        if self.resize is not None:
            from PIL import Image

            width, height = (int(self.resize * side / min(image.size)) for side in image.size)
            admit(path, 4 * width * height)  # a very narrow image gets a very long longer side
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        if self.crop is not None:
            if min(image.size) < self.crop:
                size = f"{image.height}x{image.width}"
                rule = f"{self.crop} is larger than the image {path}, which is {size}"
                remedy = "Use a larger resize=N (--resize N)"
                raise InputError(rule, argument="crop", remedy=remedy)
            left, top = (round((side - self.crop) / 2) for side in image.size)
            image = image.crop((left, top, left + self.crop, top + self.crop))
        return np.asarray(image)


def read_image(path: str | os.PathLike[str], pixels: Pixels = "rgb") -> Image.Image:
    """Return an image file, rotated upright, in colour ("rgb") or grey.

    Sixteen-bit grey keeps its high byte, as sixteen-bit colours do in Pillow. Palettes become their
    colours, CMYK and grey become RGB, alpha is dropped, and only the first of several frames is
    read. Thirty-two-bit pixels are refused, because nothing in the file says which value is white.
    """
    from PIL import Image, ImageOps  # loaded late: most runs read no image

    # Pillow would try every format that it knows; some of them start other programs (EPS).
    formats = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
    with _reading(path, " as an image", _SKIP), Image.open(path, formats=formats) as file:
        admit(path, 4 * file.width * file.height)  # from the header: nothing is decoded yet
        image = ImageOps.exif_transpose(file)
        # "I" means 32 bits, but Pillow opens 16-bit PGM files as "I", and PNG files before
        # version 11.
        is_misnamed = image.mode == "I" and file.format in ("PNG", "PPM")
        if image.mode.startswith("I;16") or is_misnamed:
            values = np.asarray(image).astype(np.uint16) >> 8
            return Image.fromarray(values.astype(np.uint8)).convert(_MODES[pixels])
        if image.mode in ("I", "F"):
            raise ValueError("its pixels have 32 bits; store it with 8 or 16 bits")
        if image.mode in ("P", "PA") and "transparency" in image.info:
            image = image.convert("RGBA")  # Pillow warns without this step
        return image.convert(_MODES[pixels])


class TextFolder(FileFolder):
    """Texts as `root/class/name.txt`, in UTF-8; a batch is an object array of strings."""

    suffixes: ClassVar[tuple[str, ...]] = (".txt", ".md", ".text")
    what: ClassVar[str] = "texts"
    kind = "text"

    def read_file(self, path: Path) -> str:
        with _reading(path, " as a text", _SKIP):
            return path.read_text(encoding="utf-8-sig")


class SoundFolder(FileFolder):
    """Sounds as `root/class/name.wav`, one channel of floats from -1 to 1; several channels are
    averaged.

    A batch is an array (n, time) if all sounds have the same length, and an object array of arrays
    otherwise.

    Parameters
    ----------
    root : path
    seconds : float, optional
        Cut each sound to this length, or fill it up with silence.
    on_error : {"stop", "skip"}
    """

    suffixes: ClassVar[tuple[str, ...]] = (".wav", ".flac", ".ogg", ".aiff")
    what: ClassVar[str] = "sounds"
    kind = "audio"

    def __init__(
        self, root: Path, *, seconds: float | None = None, on_error: OnError = "stop"
    ) -> None:
        self.seconds = None if seconds is None else check(seconds, Number(0, ends="(]"), "seconds")
        self.rate: int | None = None
        self.reading = {"seconds": seconds}
        super().__init__(root, on_error=on_error)
        self.read_file(self.paths[0])  # sets the rate

    def read_file(self, path: Path) -> NDArray[np.float32]:
        samples, rate = read_sound(path)
        self.rate = self.rate or rate
        if rate != self.rate:
            raise InputError(
                f"Sounds must have one sampling rate: the first has {self.rate} Hz and {path} has "
                f"{rate}. Resample them to the rate that the model was trained on."
            )
        if self.seconds is None:
            return samples
        length = max(1, round(self.seconds * rate))
        admit(path, 4 * length)  # a file may declare any rate
        return np.pad(samples[:length], (0, max(0, length - len(samples))))

    def read(self, rows: Sequence[int]) -> NDArray[Any]:
        sounds = super().read(rows)
        return np.stack(list(sounds)) if len({len(sound) for sound in sounds}) == 1 else sounds


def read_sound(path: Path) -> tuple[NDArray[np.float32], int]:
    """Return the samples of a sound file, averaged over its channels, and its sampling rate."""
    with needs_extra("audio", f"Reading {path.name}"):
        import soundfile
    with _reading(path, " as a sound", _SKIP):
        info = soundfile.info(path)
        admit(path, 4 * info.frames * info.channels)
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        if not len(samples):
            raise ValueError("it holds no samples")
    return samples.mean(axis=1, dtype=np.float32), int(rate)


_FOLDERS: dict[str, type[FileFolder]] = {
    kind.what: kind for kind in (ImageFolder, TextFolder, SoundFolder)
}


def open_path(path: Path, **options: Any) -> Source:
    """Return the source for a file or folder, chosen by its name.

    Parameters
    ----------
    **options
        Options that are None are ignored.

        - of a folder: `read` ("images", "texts" or "sounds", by default what most file
          names say), `on_error`, and `cluster_by` ("parent", or a regular expression that finds the
          cluster in a file name);
        - of a folder of images: `resize`, `crop` and `pixels`; of sounds: `seconds`;
        - of a table: `label_column` (default "label"), `text_column` (the only column that is read,
          as texts), `cluster_column` and `group_column` (features only if the model was fitted on
          them).
    """
    if not path.exists():
        raise FileError(f"There is no file or folder {path}.")
    options = {name: value for name, value in options.items() if value is not None}
    suffix = path.suffix.lower()
    if path.is_dir():
        read = check(options.pop("read", None) or _most(path), Choice(*_FOLDERS), "read")
        _check_applies(options, f"folders of {read}", f", and {path} is read as {read}")
        rule = options.pop("cluster_by", None)
        folder = _FOLDERS[read](path, **options)
        if rule is not None:
            folder.clusters = found = clusters_by_name(folder.names(), rule)
            labels = found if folder.labels is None else folder.labels
            pairs = {*zip(found.tolist(), labels.tolist())}
            if labels is not found and len(pairs) == len({*found}) == len({*labels}):
                wrong = f"must find what belongs together, not the classes, got {rule!r}"
                remedy = "Name what files of one person or video share, or leave it out"
                raise InputError(wrong, argument="cluster_by", remedy=remedy)
        return folder
    if suffix in TABLES:
        _check_applies(options, FILE_OPTIONS["label_column"])
        return open_table(path, **options)
    _check_applies(options, "files")
    with _reading(path, ", perhaps cut short"):
        if suffix == ".npz":
            return ArraySource(*_read_npz(path))
        if suffix == ".npy":
            return ArraySource(np.load(path, mmap_mode="r", allow_pickle=False))
        if suffix == ".txt":
            return ArraySource(_read_lines(path))
    raise InputError(
        f"{path.name}: inputs are read from .npz, .npy, tables (.csv, .tsv, .parquet), texts "
        "(.txt, one per line), or a folder of images, sounds or texts."
    )


def _check_applies(options: Mapping[str, Any], kind: str, note: str = "") -> None:
    for name in options:
        if not kind.startswith(FILE_OPTIONS[name]):
            raise InputError(f"applies to {FILE_OPTIONS[name]} only{note}", argument=name)


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
        raise InputError(f"is no regular expression: {error}", argument="cluster_by") from None
    clusters = []
    for name in names:
        match = pattern.search(name.rpartition("/")[2])
        if match is None:
            raise InputError(f"must match every file name, not {name}", argument="cluster_by")
        clusters.append(match[min(1, pattern.groups)])
    return np.array(clusters)


def read_labels(path: Path) -> NDArray[Any]:
    """Read labels from a .npy file, or from text with one label per line; whole numbers if all
    labels are.
    """
    with _reading(path, " as labels (.npy, or .txt with one per line)"):
        if path.suffix == ".npy":
            # Mapping checks the declared size.
            return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
        if path.suffix not in (".txt", ".csv"):
            raise InputError(f"Labels are read from .npy, or .txt with one per line, got {path}.")
        lines = [line.strip() for line in _read_lines(path, trim=True)]
    if "" in lines:
        raise InputError(f"{path}: line {lines.index('') + 1} is empty; give each sample one.")
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
        label = next((name for name in ("labels", "y") if name in file.files), None)
        others = [name for name in file.files if name != label]
        chosen = "inputs" if "inputs" in others else others[0] if len(others) == 1 else None
        if chosen is None:
            rule = f"{path} holds {', '.join(file.files) or 'nothing'}"
            remedy = "Call the inputs `inputs` and the labels `labels`"
            if "logits" in others:
                remedy = "These are views already, which recal fit takes"
            raise InputError(rule, remedy=remedy)
        return file[chosen], None if label is None else file[label]
