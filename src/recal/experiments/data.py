"""The paper's data sets, read from files that are already there. Nothing downloads, nothing unpickles.

Images are uint8 arrays of shape (n, height, width, channels), as the transformations want them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recal.checks import Labels
from recal.errors import FileError, InputError
from recal.experiments.layouts import LAYOUTS, Images

# Held-out training images that calibration is fitted on; the paper keeps 5,000 of CIFAR's 50,000.
VALIDATION_SIZE = 5000


@dataclass(frozen=True)
class Dataset:
    """Images with labels as column indices; `test_images` may be a folder that is read when asked.

    ImageNet brings no training images here: its networks come trained, and its validation images are halved.
    """

    name: str
    layout: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    n_classes: int

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.layout}): {len(self.train_labels):,} images to train with, "
            f"{len(self.test_labels):,} to test with, {self.n_classes} classes"
        )


@dataclass(frozen=True)
class Split:
    """Rows for training, for fitting the calibration (both of the training images), and for the test."""

    train: NDArray[np.intp]
    validation: NDArray[np.intp]


@dataclass(frozen=True)
class Preprocess:
    """From uint8 pixels (n, h, w, c) to the network's float32 input (n, c, h, w): each channel centred and scaled.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.experiments.data import Preprocess
    >>> Preprocess(mean=(0.5,), std=(0.25,))(np.full((1, 2, 2, 1), 255, np.uint8))[0, 0, 0, 0]
    np.float32(2.0)
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: NDArray) -> NDArray[np.float32]:
        scale = np.asarray(self.std, np.float32) * np.float32(255)
        shift = np.asarray(self.mean, np.float32) / np.asarray(self.std, np.float32)
        values = np.asarray(images).astype(np.float32) / scale - shift
        return np.ascontiguousarray(np.moveaxis(values, -1, 1))

    @classmethod
    def of(cls, images: NDArray[np.uint8]) -> Preprocess:
        """Return the channels' mean and deviation over `images`, from the exact counts of the 256 pixel values."""
        levels = np.arange(256) / 255.0
        mean, std = [], []
        for channel in range(images.shape[-1]):
            share = np.bincount(images[..., channel].ravel(), minlength=256) / images[..., channel].size
            mean.append(float(share @ levels))
            std.append(max(float(np.sqrt(share @ (levels - mean[-1]) ** 2)), 1.0 / 255))
        return cls(tuple(mean), tuple(std))


# What every published ImageNet network was trained with.
IMAGENET_PREPROCESS = Preprocess(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def load(name: str, data_dir: str | Path, *, verify: bool = True) -> Dataset:
    """Read a data set from `data_dir`, in whichever of its layouts is found there.

    Parameters
    ----------
    name : {"cifar10", "cifar100", "mnist", "fashion-mnist", "imagenet"}
    data_dir : folder
        Holds the files, or a folder named after the data set that holds them.
    verify : bool
        Whether an official archive must have its published checksum.
    """
    if name not in LAYOUTS:
        raise InputError(f"There is no data set {name!r}; there are: {', '.join(LAYOUTS)}.")
    root = Path(data_dir)
    if not root.is_dir():
        raise FileError(f"There is no folder {root}. Nothing is downloaded: put the data set's files there first.")
    for layout in LAYOUTS[name]:
        for folder in (root / name, root):
            if layout.found(folder):
                parts = layout.read(folder, verify)
                return Dataset(name, layout.name, *parts, n_classes=layout.n_classes(parts[3]))
    wanted = "\n".join(f"  - {layout.name}: {layout.files}" for layout in LAYOUTS[name])
    raise FileError(f"{root} holds no {name} (nor does {root / name}). Any of these would do:\n{wanted}")


def split(dataset: Dataset, *, validation_size: int = VALIDATION_SIZE, seed: int = 0) -> Split:
    """Hold `validation_size` training images out, drawn by `seed`; a tenth where there are few.

    Where nothing is trained (ImageNet) there is nothing to hold out: see `halves`.
    """
    total = len(dataset.train_labels)
    held = min(validation_size, total // 10)
    order = np.random.default_rng(seed).permutation(total)
    return Split(train=np.sort(order[held:]), validation=np.sort(order[:held]))


def halves(n_samples: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return two random halves of `n_samples` rows: one to fit on, one to test on."""
    if n_samples < 2:
        raise InputError(f"Two halves need at least 2 samples, got {n_samples}.")
    order = np.random.default_rng(seed).permutation(n_samples)
    return np.sort(order[: n_samples // 2]), np.sort(order[n_samples // 2 :])


def dataset_names() -> Sequence[str]:
    """Return the names that `load` knows."""
    return tuple(LAYOUTS)
