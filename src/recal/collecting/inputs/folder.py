"""A folder of images, one folder per class, read with Pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recal.collecting.fingerprint import digest_texts
from recal.collecting.inputs.pixels import read_image
from recal.collecting.inputs.sources import IndexedSource
from recal.errors import FileError, InputError

OnError = Literal["stop", "skip"]
Size = int | tuple[int, int]

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


class ImageFolder(IndexedSource):
    """Images as `root/class/name.jpg`; labels are the class folders' places in sorted order. uint8, channels last.

    What becomes of sixteen bits, palettes, alpha, CMYK and rotated photographs is told in `pixels.read_image`.

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
    """

    def __init__(
        self, root: Path, *, resize: Size | None = None, crop: Size | None = None, on_error: OnError = "stop"
    ) -> None:
        if on_error not in ("stop", "skip"):
            raise InputError(f"`on_error` must be 'stop' or 'skip', got {on_error!r}.")
        self.root, self.resize, self.crop = Path(root), resize, None if crop is None else _pair(crop, "crop")
        if resize is not None and not isinstance(resize, int):
            self.resize = _pair(resize, "resize")
        elif isinstance(resize, int):
            _pair(resize, "resize")
        folders = sorted(path for path in self.root.iterdir() if path.is_dir() and not path.name.startswith("."))
        if folders:
            self.classes = tuple(folder.name for folder in folders)
            found = [(path, label) for label, folder in enumerate(folders) for path in _images(folder)]
        else:
            found = [(path, -1) for path in _images(self.root)]
        if not found:
            raise InputError(f"{self.root} holds no images; expected {self.root.name}/class/name with {SUFFIXES}.")
        if on_error == "skip":
            readable = [self._is_readable(path) for path, _ in found]
            self.skipped = tuple(self._name(path) for (path, _), ok in zip(found, readable) if not ok)
            found = [pair for pair, ok in zip(found, readable) if ok]
            if not found:
                raise InputError(f"None of the {len(readable)} images in {self.root} can be read.")
        self.paths = [path for path, _ in found]
        self.labels = np.array([label for _, label in found]) if folders else None
        self.n_samples = len(self.paths)

    def fingerprint(self) -> str:
        sizes = [f"{self._name(path)} {path.stat().st_size}" for path in self.paths]
        return digest_texts([f"{self.resize} {self.crop}", *sizes])

    def describe(self, row: int) -> str:
        return f"sample {row} ({self._name(self.paths[row])})"

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        first = self._image(self.paths[start])
        batch = np.empty((stop - start, *first.shape), dtype=np.uint8)
        batch[0] = first
        for row in range(start + 1, stop):
            image = self._image(self.paths[row])
            if image.shape != first.shape:
                raise InputError(
                    f"Images must have one size: {self.paths[start]} is {first.shape[:2]} and {self.paths[row]} is "
                    f"{image.shape[:2]} (height, width). Pass resize=, and crop= for other shapes."
                )
            batch[row - start] = image
        return batch

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _is_readable(self, path: Path) -> bool:
        try:
            self._image(path)
        except FileError:
            return False
        return True

    def _image(self, path: Path) -> NDArray[np.uint8]:
        image = read_image(path)
        if self.resize is not None:
            image = image.resize(self._resized(*image.size), Image.Resampling.BILINEAR)
        if self.crop is not None:
            height, width = self.crop
            if image.width < width or image.height < height:
                raise InputError(
                    f"crop={height}x{width} is larger than the image {path}, which is {image.height}x{image.width}; "
                    "pass a larger resize=."
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


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _pair(size: Size, name: str) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise InputError(f"`{name}` must be a positive length or (height, width), got {size!r}.")
    return pair[0], pair[1]
