"""Folders of images, texts or sounds, one folder per class."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest_texts
from recal.collecting.models.base import Pixels
from recal.collecting.sources import Source, as_objects, form_of
from recal.errors import FileError, InputError, MissingExtraError, in_both
from recal.files.limits import admit
from recal.schema import Choice, Number, check

if TYPE_CHECKING:
    from PIL import Image

OnError = Literal["stop", "skip"]
ImageSize = int | tuple[int, int]
_MODES = {"rgb": "RGB", "gray": "L"}


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

    suffixes: ClassVar[tuple[str, ...]] = ()
    """The file name endings to read; an empty tuple means all files."""
    what: ClassVar[str] = "files"

    def __init__(self, root: Path, *, on_error: OnError = "stop") -> None:
        check(on_error, Choice("stop", "skip"), "on_error")
        self.root = Path(root)
        folders = sorted(path for path in _visible(self.root.iterdir()) if path.is_dir())
        self.classes = tuple(folder.name for folder in folders) or None
        paths = [
            (path, label)
            for label, folder in enumerate(folders or [self.root])
            for path in self._files(folder)
        ]
        if not paths:
            ends = f", whose names end in {', '.join(self.suffixes)}" if self.suffixes else ""
            raise InputError(
                f"{self.root} holds no {self.what}; expected {self.root.name}/CLASS/NAME, a folder for each class, or "
                f"{self.root.name}/NAME{ends}."
            )
        if on_error == "skip":
            damaged = {path for path, _ in paths if not self._is_readable(path)}
            self.skipped = tuple(self._name(path) for path, _ in paths if path in damaged)
            paths = [pair for pair in paths if pair[0] not in damaged]
            if not paths:
                raise InputError(
                    f"None of the {len(damaged)} {self.what} in {self.root} can be read."
                )
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
        if self.suffixes:
            paths = [path for path in paths if path.suffix.lower() in self.suffixes]
        return sorted(paths)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _is_readable(self, path: Path) -> bool:
        try:
            self.read_file(path)
        except FileError:
            return False
        return True


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
    resize : int or (height, width), optional
        An int is the new length of the shorter side; bilinear, antialiased.
    crop : int or (height, width), optional
        The part kept from the middle, after resizing.
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
        resize: ImageSize | None = None,
        crop: ImageSize | None = None,
        on_error: OnError = "stop",
        pixels: Pixels = "rgb",
    ) -> None:
        self.pixels: Pixels = check(pixels, Choice(*_MODES), "pixels")
        pair, self.crop = _pair(resize, "resize"), _pair(crop, "crop")
        self.resize = resize if isinstance(resize, int) else pair
        self.reading = {"pixels": pixels, "resize": self.resize, "crop": self.crop}
        super().__init__(root, on_error=on_error)

    def sample(self) -> tuple[tuple[int, ...], str] | None:
        try:
            return form_of(self.read(range(1)))
        except FileError:  # the run itself will report the file
            return None

    def read(self, rows: Sequence[int]) -> NDArray[Any]:
        paths = [self.paths[row] for row in rows]
        images = [self.read_file(path) for path in paths]
        for path, image in zip(paths, images):
            if image.shape != images[0].shape:
                raise InputError(
                    f"Images must have one size: {paths[0]} is {images[0].shape[:2]} and {path} is "
                    f"{image.shape[:2]} (height, width)",
                    remedy="Use resize=N (--resize N), and crop=N (--crop N) for other shapes",
                )
        return np.stack(images)

    def read_file(self, path: Path) -> NDArray[Any]:
        image = read_image(path, self.pixels)
        if self.resize is not None:
            from PIL import Image

            if isinstance(self.resize, int):
                width, height = (int(self.resize * side / min(image.size)) for side in image.size)
            else:
                height, width = self.resize
            admit(path, 4 * width * height)  # a very narrow image gets a very long longer side
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        if self.crop is not None:
            height, width = self.crop
            if image.width < width or image.height < height:
                raise InputError(
                    f"{height}x{width} is larger than the image {path}, which is {image.height}x{image.width}",
                    argument="crop",
                    remedy="Use a larger resize=N (--resize N)",
                )
            left, top = round((image.width - width) / 2), round((image.height - height) / 2)
            image = image.crop((left, top, left + width, top + height))
        return np.asarray(image)


def _pair(size: ImageSize | None, name: str) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise InputError(
            f"must be a positive length or (height, width), got {size!r}", argument=name
        )
    return pair[0], pair[1]


def read_image(path: str | os.PathLike[str], pixels: Pixels = "rgb") -> Image.Image:
    """Return an image file, rotated upright, in colour ("rgb") or grey.

    Sixteen-bit grey keeps its high byte, as sixteen-bit colours do in Pillow. Palettes become their
    colours, CMYK and grey become RGB, alpha is dropped, and only the first of several frames is
    read. Thirty-two-bit pixels are refused, because nothing in the file says which value is white.
    """
    from PIL import Image, ImageOps  # loaded late: most runs read no image

    unreadable = (OSError, SyntaxError, ValueError, KeyError, Image.DecompressionBombError)
    # Pillow would try every format that it knows; some of them start other programs (EPS).
    formats = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
    try:
        with Image.open(path, formats=formats) as file:
            admit(path, 4 * file.width * file.height)  # from the header: nothing is decoded yet
            image = ImageOps.exif_transpose(file)
            # "I" means 32 bits, but Pillow opens 16-bit PGM files as "I", and PNG files before
            # version 11.
            is_misnamed = image.mode == "I" and file.format in ("PNG", "PPM")
            if image.mode.startswith("I;16") or is_misnamed:
                values = np.asarray(image).astype(np.uint16) >> 8
                return Image.fromarray(values.astype(np.uint8)).convert(_MODES[pixels])
            if image.mode in ("I", "F"):
                raise ValueError(
                    "its pixels have 32 bits, and nothing says which is white; store it with 8 or 16 bits"
                )
            if image.mode in ("P", "PA") and "transparency" in image.info:
                image = image.convert("RGBA")  # Pillow warns without this step
            return image.convert(_MODES[pixels])
    except unreadable as error:
        raise FileError(
            f"The image {os.fspath(path)} cannot be read: {str(error).rstrip('.')}",
            remedy=f"Repair or remove it, or leave such files out with {in_both(on_error='skip')}",
        ) from error


class TextFolder(FileFolder):
    """Texts as `root/class/name.txt`, in UTF-8; a batch is an object array of strings."""

    suffixes: ClassVar[tuple[str, ...]] = (".txt", ".md", ".text")
    what: ClassVar[str] = "texts"
    kind = "text"

    def read_file(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"The text {path} cannot be read as UTF-8: {error}.") from error


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
                f"Sounds must have one sampling rate: the first has {self.rate} Hz and {path} has {rate}. "
                "Resample them to the rate that the model was trained on."
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
    try:
        import soundfile
    except ImportError as error:
        raise MissingExtraError("soundfile", "audio", f"Reading {path.name}") from error
    try:
        info = soundfile.info(path)
        admit(path, 4 * info.frames * info.channels)
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise FileError(f"The sound {path} cannot be read: {str(error).rstrip('.')}.") from error
    if not len(samples):
        raise FileError(f"The sound {path} holds no samples.")
    return samples.mean(axis=1, dtype=np.float32), int(rate)
