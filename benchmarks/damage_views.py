"""Makes the views of clean and damaged images that the studies of `recal watch` read, with a small
network.

    python -m benchmarks.damage_views --data FOLDER --out damage/

FOLDER holds Fashion-MNIST's four IDX files (Debian: dataset-fashion-mnist). The script trains the
network and writes fit.npz (5,000 clean test images), clean.npz (the other 5,000) and
KIND-STRENGTH.npz (the latter, damaged). It takes some minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from paper.training.layouts import read_idx
from recal import collect
from recal.collecting import Normalize
from recal.transforms import as_transform

Images = NDArray[np.uint8]
POOL = ("flip", "shift:2", "zoom:0.8", "brightness:0.6")


def find(folder: Path, name: str) -> Path:
    """Return the file, compressed or not."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise SystemExit(
        f"There is no {name} in {folder}. Install dataset-fashion-mnist, or pass --data FOLDER."
    )


def train(
    images: Images, labels: NDArray[np.int64], preprocess: Normalize, epochs: int
) -> torch.nn.Module:
    """Train a small convolutional network."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, stride=2), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(800, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10),
    )  # fmt: skip
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    for epoch in range(epochs):
        for rows in torch.randperm(len(images)).split(128):
            batch = preprocess(torch.from_numpy(images[rows.numpy()]))
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                network(batch), torch.from_numpy(labels[rows.numpy()])
            )
            loss.backward()
            optimiser.step()
        print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.3f}")
    return network


def noise(images: Images, deviation: float) -> Images:
    drawn = np.random.default_rng(0).normal(0, deviation, images.shape)
    return np.clip(np.rint(images + drawn), 0, 255).astype(np.uint8)


def turn(images: Images, degrees: float) -> Images:
    return np.stack([ndimage.rotate(image, degrees, reshape=False, order=1) for image in images])


def by_spec(kind: str) -> Callable[[Images, float], Images]:
    # Here a transformation of recal causes the damage; except for darkness, none of these is among
    # the views.
    return lambda images, strength: np.asarray(as_transform(f"{kind}:{strength:g}")(images))


DAMAGE: dict[str, tuple[Callable[[Images, float], Images], tuple[float, ...]]] = {
    "jpeg": (by_spec("jpeg"), (50, 25, 10, 5, 2)),
    "blur": (by_spec("blur"), (0.5, 0.8, 1.2, 1.8, 2.5)),
    "dark": (by_spec("brightness"), (0.8, 0.6, 0.4, 0.25, 0.15)),
    "noise": (noise, (8, 16, 32, 50, 80)),
    "turn": (turn, (5, 10, 15, 25, 40)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    preprocess = Normalize(mean=0.286, std=0.353)

    def read(name: str) -> NDArray:
        return np.asarray(read_idx(find(arguments.data, name)))

    count = arguments.train
    labels = read("train-labels-idx1-ubyte")[:count].astype(np.int64)
    network = train(read("train-images-idx3-ubyte")[:count], labels, preprocess, arguments.epochs)
    images, labels = read("t10k-images-idx3-ubyte"), read("t10k-labels-idx1-ubyte").astype(np.int64)
    half = len(images) // 2
    parts = {"fit": (images[:half], labels[:half]), "clean": (images[half:], labels[half:])}
    for kind, (damage, strengths) in DAMAGE.items():
        for strength in strengths:
            parts[f"{kind}-{strength:g}"] = (damage(images[half:], strength), labels[half:])
    for name, (shown, truth) in parts.items():
        views = collect(
            network,
            shown,
            POOL,
            labels=truth,
            preprocess=preprocess,
            batch_size=500,
            progress=False,
        )
        views.write(arguments.out / f"{name}.npz")
        print(name, f"accuracy {(views.logits.argmax(1) == truth).mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
