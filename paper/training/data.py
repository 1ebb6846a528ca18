"""The paper's data sets, read from files that are already there. Nothing downloads, nothing
unpickles.

Images are uint8 arrays of shape (n, height, width, channels), as the transformations want them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paper.stages import digest_arrays
from paper.training.layouts import LAYOUTS, Images
from recal.checks import Labels
from recal.collecting.files import ImageFolder
from recal.errors import FileError, InputError
from recal.transforms.preprocessing import Normalize

# Held-out training images that calibration is fitted on; the paper keeps 5,000 of CIFAR's 50,000.
VALIDATION_SIZE = 5000


@dataclass(frozen=True)
class Dataset:
    """Images with labels as column indices.

    ImageNet brings no training images here: its networks come trained, and its validation images, a
    folder that is read batch by batch, are halved.
    """

    name: str
    layout: str
    train_images: NDArray[np.uint8]
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
    """Rows for training, for fitting the calibration (both of the training images), and for the
    test.
    """

    train: NDArray[np.intp]
    validation: NDArray[np.intp]


# What every published ImageNet network was trained with.
IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def normalisation(images: NDArray[np.uint8]) -> Normalize:
    """Return the preprocessing that centres and scales each channel over `images` (n, height,
    width, channels).

    Mean and deviation come from the exact counts of the 256 pixel values, so they are the same on
    every machine.

    Examples
    --------
    >>> import numpy as np
    >>> from paper.training.data import normalisation
    >>> normalisation(np.array([0, 255], np.uint8).reshape(2, 1, 1, 1))
    Normalize(mean=(0.5,), std=(0.5,), divide=255.0, channels='first')
    """
    levels = np.arange(256) / 255.0
    mean, std = [], []
    for channel in range(images.shape[-1]):
        share = np.bincount(images[..., channel].ravel(), minlength=256) / images[..., channel].size
        mean.append(float(share @ levels))
        std.append(max(float(np.sqrt(share @ (levels - mean[-1]) ** 2)), 1.0 / 255))
    return Normalize(tuple(mean), tuple(std))


def load(name: str, data_dir: str | Path, *, verify: bool = True) -> Dataset:
    """Read a data set from `data_dir`, in whichever of its layouts is found there.

    Parameters
    ----------
    name : {"cifar10", "cifar100", "mnist", "fashion-mnist", "imagenet"}
    data_dir : folder
        Holds the files, or a folder named after the data set that holds them.
    verify : bool
        Whether CIFAR's images must be the official ones, by checksum, in whichever layout they lie.
    """
    if name not in LAYOUTS:
        raise InputError(f"There is no data set {name!r}; there are: {', '.join(LAYOUTS)}.")
    root = Path(data_dir)
    if not root.is_dir():
        raise FileError(f"There is no folder {root}. Put the data set's files there first.")
    for layout in LAYOUTS[name]:
        for folder in (root / name, root):
            if layout.found(folder):
                parts = layout.read(folder, verify)
                return Dataset(name, layout.name, *parts, n_classes=layout.n_classes(parts[3]))
    wanted = "\n".join(f"  - {layout.name}: {layout.files}" for layout in LAYOUTS[name])
    raise FileError(
        f"{root} holds no {name} (nor does {root / name}). Give one of these:\n{wanted}"
    )


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


def digest_images(images: Images) -> str:
    """Return a mark that changes with the images: their bytes, or the names and sizes of a folder's
    files.
    """
    return images.fingerprint() if isinstance(images, ImageFolder) else digest_arrays(images)
