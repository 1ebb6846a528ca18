"""Made-up data sets in the layouts of the real ones.

Each class has its own colour, so that a network can learn it.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image


def coloured(count: int, n_classes: int, side: int = 32, channels: int = 3, seed: int = 0):
    """Return images (n, side, side, channels), noise around the colour of the class, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, count)
    colour = np.random.default_rng(99).integers(40, 216, (n_classes, channels))
    noise = rng.normal(0, 45, (count, side, side, channels))
    return np.clip(colour[labels][:, None, None, :] + noise, 0, 255).astype(np.uint8), labels


def binary_rows(images, labels, coarse=None) -> bytes:
    planes = np.moveaxis(images, -1, 1).reshape(len(images), -1)
    columns = [labels[:, None]] if coarse is None else [coarse[:, None], labels[:, None]]
    return np.concatenate([*(c.astype(np.uint8) for c in columns), planes], axis=1).tobytes()


def write_cifar10_binary(folder: Path, per_batch: int = 40, tests: int = 60) -> None:
    home = folder / "cifar-10-batches-bin"
    home.mkdir(parents=True)
    for number in range(1, 6):
        (home / f"data_batch_{number}.bin").write_bytes(
            binary_rows(*coloured(per_batch, 10, seed=number))
        )
    (home / "test_batch.bin").write_bytes(binary_rows(*coloured(tests, 10, seed=6)))


def write_cifar10_png(folder: Path, per_batch: int = 40, tests: int = 60) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    labels = []
    for number in range(1, 6):
        images, batch = coloured(per_batch, 10, seed=number)
        Image.fromarray(images.reshape(len(images), 1024, 3)).save(
            folder / f"data_batch_{number}.png"
        )
        labels += batch.tolist()
    images, batch = coloured(tests, 10, seed=6)
    Image.fromarray(images.reshape(len(images), 1024, 3)).save(folder / "test_batch.png")
    (folder / "train_lables.json").write_text(json.dumps(labels))
    (folder / "test_lables.json").write_text(json.dumps(batch.tolist()))


def write_cifar100_archive(folder: Path, count: int = 200, tests: int = 120) -> None:
    home = folder / "cifar-100-binary"
    home.mkdir(parents=True)
    for name, size, seed in (("train.bin", count, 1), ("test.bin", tests, 2)):
        images, labels = coloured(size, 100, seed=seed)
        (home / name).write_bytes(binary_rows(images, labels, coarse=labels // 5))
    with tarfile.open(folder / "cifar-100-binary.tar.gz", "w:gz") as archive:
        archive.add(home, arcname="cifar-100-binary")
    for path in home.iterdir():
        path.unlink()
    home.rmdir()


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, count: int = 200, tests: int = 60) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, size, seed in (("train", count, 1), ("t10k", tests, 2)):
        images, labels = coloured(size, 10, side=28, channels=1, seed=seed)
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[..., 0])))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))


def write_image_folder(folder: Path, n_classes: int = 3, per_class: int = 8) -> None:
    sizes = ((300, 260), (240, 400), (256, 256))
    images, _ = coloured(n_classes, n_classes)
    for label in range(n_classes):
        home = folder / "val" / f"n{label:08d}"
        home.mkdir(parents=True)
        for number in range(per_class):
            picture = Image.fromarray(images[label]).resize(sizes[number % 3])
            picture.save(home / f"ILSVRC2012_val_{number:08d}.JPEG")


@pytest.fixture(scope="session")
def pictures():
    return SimpleNamespace(
        coloured=coloured,
        idx=idx,
        cifar10=write_cifar10_binary,
        cifar10_png=write_cifar10_png,
        cifar100=write_cifar100_archive,
        mnist=write_idx,
        imagenet=write_image_folder,
    )


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks are faster on one thread, and sums keep one order."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
