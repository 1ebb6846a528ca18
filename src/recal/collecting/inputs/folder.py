"""Folders of files, one folder per class, and how images are read."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest_texts
from recal.collecting.inputs.sources import IndexedSource, Stamp, form_of
from recal.collecting.models.base import Pixels
from recal.errors import FileError, InputError, Remedy
from recal.files.limits import admit

if TYPE_CHECKING:
    from PIL import Image

# Pillow would try every format that it knows on a file of any name; some of them start other programs (EPS).
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")


def read_image(path: str | os.PathLike[str], pixels: Pixels = "rgb") -> Image.Image:
    """Return an image file, upright, as `pixels` says: "rgb", "gray", "rgba" with its alpha, or "gray16".

    Sixteen-bit grey keeps its high byte, as sixteen-bit colours do in Pillow. Palettes become their colours, CMYK and
    grey become RGB, alpha is dropped, of several frames the first is read. Thirty-two-bit pixels are refused: nothing
    in the file says which value is white. With "gray16" sixteen bits stay as they are, and eight are spread over them.
    """
    from PIL import Image, ImageOps  # loaded late: most runs read no image

    unreadable = (OSError, SyntaxError, ValueError, KeyError, Image.DecompressionBombError)
    try:
        with Image.open(path, formats=FORMATS) as file:
            admit(path, 4 * file.width * file.height)  # from the header: nothing is decoded yet
            return _as_wanted(ImageOps.exif_transpose(file), file.format, pixels)
    except unreadable as error:
        raise FileError(
            f"The image {os.fspath(path)} cannot be read: {str(error).rstrip('.')}",
            remedy=Remedy(
                "Repair or remove it, or leave such files out with on_error='skip'",
                typed="Repair or remove it, or leave such files out with --on-error skip",
            ),
        ) from error


def _as_wanted(image: Image.Image, kind: str | None, pixels: Pixels) -> Image.Image:
    from PIL import Image

    mode = {"rgb": "RGB", "gray": "L", "rgba": "RGBA", "gray16": "L"}[pixels]
    # "I" means thirty-two bits, but Pillow opens sixteen-bit PGM files so, and before its version 11 PNG files, too.
    if image.mode.startswith("I;16") or (image.mode == "I" and kind in ("PNG", "PPM")):
        values = np.asarray(image).astype(np.uint16)
        if pixels == "gray16":
            return Image.fromarray(values)
        return Image.fromarray((values >> 8).astype(np.uint8)).convert(mode)
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, and nothing says which value is white; store it with 8 or 16 bits")
    if image.mode in ("P", "PA") and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns where this step is left out
    if pixels == "gray16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    return image.convert(mode)


OnError = Literal["stop", "skip"]
Size = int | tuple[int, int]

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


class FileFolder(IndexedSource):
    """Files as `root/class/name`; labels are the class folders' places in sorted order.

    Parameters
    ----------
    root : path
        A folder of class folders, or of files alone, which then have no labels.
    on_error : {"stop", "skip"}
        A file that cannot be read stops the run, or is left out and listed in `skipped`. To skip, every file is
        read once beforehand, so that the batches do not depend on where a run was interrupted.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    """The names' ends that are read; none means all."""
    what: ClassVar[str] = "files"

    def __init__(self, root: Path, *, on_error: OnError = "stop") -> None:
        if on_error not in ("stop", "skip"):
            raise InputError("must be 'stop' or 'skip'", argument="on_error", came=f"got {on_error!r}")
        self.root = Path(root)
        folders = sorted(path for path in self.root.iterdir() if path.is_dir() and not path.name.startswith("."))
        if folders:
            self.classes = tuple(folder.name for folder in folders)
            found = [(path, label) for label, folder in enumerate(folders) for path in self._files(folder)]
        else:
            found = [(path, -1) for path in self._files(self.root)]
        if not found:
            ends = f", whose names end in {', '.join(self.suffixes)}" if self.suffixes else ""
            raise InputError(
                f"{self.root} holds no {self.what}; expected {self.root.name}/CLASS/NAME, a folder for each class, or "
                f"{self.root.name}/NAME{ends}."
            )
        if on_error == "skip":
            readable = [self._is_readable(path) for path, _ in found]
            self.skipped = tuple(self._name(path) for (path, _), ok in zip(found, readable) if not ok)
            found = [pair for pair, ok in zip(found, readable) if ok]
            if not found:
                raise InputError(f"None of the {len(readable)} {self.what} in {self.root} can be read.")
        self.paths = [path for path, _ in found]
        self.labels = np.array([label for _, label in found]) if folders else None
        self.n_samples = len(self.paths)

    @abstractmethod
    def read_file(self, path: Path) -> Any:
        """Return one sample; raise FileError where the file cannot be read."""

    def settings(self) -> str:
        """Return what else decides how a file is read, for the fingerprint."""
        return ""

    def fingerprint(self) -> str:
        sizes = [f"{self._name(path)} {path.stat().st_size}" for path in self.paths]
        return digest_texts([self.settings(), *sizes])

    def names(self) -> list[str]:
        return [self._name(path) for path in self.paths]

    def stamp(self, start: int, stop: int) -> Stamp:
        return Stamp.of(self.paths[start:stop])

    def describe(self, row: int) -> str:
        return f"sample {row} ({self._name(self.paths[row])})"

    def read(self, start: int, stop: int) -> Any:
        """Return samples as an object array, since texts and sounds differ in length."""
        return as_objects([self.read_file(path) for path in self.paths[start:stop]])

    def _files(self, folder: Path) -> list[Path]:
        paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        return sorted(path for path in paths if not self.suffixes or path.suffix.lower() in self.suffixes)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _is_readable(self, path: Path) -> bool:
        try:
            self.read_file(path)
        except FileError:
            return False
        return True


def as_objects(items: Sequence[Any]) -> NDArray[np.object_]:
    """Return items as an array of objects, whatever they are."""
    held = np.empty(len(items), dtype=object)
    held[:] = items
    return held


class ImageFolder(FileFolder):
    """Images as `root/class/name.jpg`; labels are the class folders' places in sorted order. uint8, channels last.

    `pixels.read_image` describes how sixteen bits, palettes, alpha, CMYK and rotated photographs are read.

    Parameters
    ----------
    root : path
        A folder of class folders, or of images alone, which then have no labels.
    resize : int or (height, width), optional
        An int is the new length of the shorter side; bilinear, antialiased.
    crop : int or (height, width), optional
        The part kept from the middle, after resizing.
    on_error : {"stop", "skip"}
        An image that cannot be read stops the run, or is left out and listed in `skipped`. To skip, every image is
        decoded once beforehand, so that the batches do not depend on where a run was interrupted.
    pixels : {"rgb", "gray", "rgba", "gray16"}
        What the model was trained on. Grey images come as (n, height, width); sixteen bits as uint16.
    """

    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES
    what: ClassVar[str] = "images"

    def __init__(
        self,
        root: Path,
        *,
        resize: Size | None = None,
        crop: Size | None = None,
        on_error: OnError = "stop",
        pixels: Pixels = "rgb",
    ) -> None:
        self.resize, self.crop = resize, None if crop is None else _pair(crop, "crop")
        if resize is not None and not isinstance(resize, int):
            self.resize = _pair(resize, "resize")
        elif isinstance(resize, int):
            _pair(resize, "resize")
        if pixels not in ("rgb", "gray", "rgba", "gray16"):
            raise InputError("must be 'rgb', 'gray', 'rgba' or 'gray16'", argument="pixels", came=f"got {pixels!r}")
        self.pixels: Pixels = pixels
        super().__init__(root, on_error=on_error)

    def reading(self) -> dict[str, Any]:
        return {"pixels": self.pixels, "resize": self.resize, "crop": self.crop}

    def sample(self) -> tuple[tuple[int, ...], str] | None:
        try:
            return form_of(self.read_file(self.paths[0])[None])
        except FileError:  # the run itself says which batch it was
            return None

    def settings(self) -> str:
        return f"{self.resize} {self.crop}" + ("" if self.pixels == "rgb" else f" {self.pixels}")

    def read(self, start: int, stop: int) -> NDArray[Any]:
        first = self.read_file(self.paths[start])
        batch = np.empty((stop - start, *first.shape), dtype=first.dtype)
        batch[0] = first
        for row in range(start + 1, stop):
            image = self.read_file(self.paths[row])
            if image.shape != first.shape:
                raise InputError(
                    f"Images must have one size: {self.paths[start]} is {first.shape[:2]} and {self.paths[row]} is "
                    f"{image.shape[:2]} (height, width)",
                    remedy=Remedy(
                        "Pass resize=, and crop= for other shapes",
                        typed="Give --resize N, and --crop N for other shapes",
                    ),
                )
            batch[row - start] = image
        return batch

    def read_file(self, path: Path) -> NDArray[Any]:
        image = read_image(path, self.pixels)
        if self.resize is not None:
            from PIL import Image

            size = self._resized(*image.size)
            admit(path, 4 * max(size[0], 1) * max(size[1], 1))  # a line of pixels has a very long longer side
            image = image.resize(size, Image.Resampling.BILINEAR)
        if self.crop is not None:
            height, width = self.crop
            if image.width < width or image.height < height:
                raise InputError(
                    f"{height}x{width} is larger than the image {path}, which is {image.height}x{image.width}",
                    argument="crop",
                    remedy=Remedy("Pass a larger resize=", typed="Give a larger --resize"),
                )
            left, top = round((image.width - width) / 2), round((image.height - height) / 2)
            image = image.crop((left, top, left + width, top + height))
        return np.asarray(image)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """The new (width, height), as Pillow wants it."""
        if isinstance(self.resize, int):
            if width <= height:
                return self.resize, int(self.resize * height / width)
            return int(self.resize * width / height), self.resize
        assert self.resize is not None
        return self.resize[1], self.resize[0]


def _pair(size: Size, name: str) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise InputError("must be a positive length or (height, width)", argument=name, came=f"got {size!r}")
    return pair[0], pair[1]
