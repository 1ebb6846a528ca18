"""Fashion-MNIST from files to calibrated probabilities: train a small network, collect, fit, judge.

The data are in Debian's package dataset-fashion-mnist (apt install dataset-fashion-mnist), or anywhere else as the
four IDX files: python examples/fashion_mnist.py --data FOLDER. Needs torch; takes about a minute.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch

from recal import ReCal, TemperatureScaling, collect, evaluate
from recal.collecting import Normalize

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def find(folder: Path, name: str) -> Path:
    """Return the file, compressed or not."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise SystemExit(f"There is no {name} in {folder}. Install dataset-fashion-mnist, or pass --data FOLDER.")


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file of bytes: two zeros, the type, the number of axes, their lengths, the values."""
    content = (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
    shape = np.frombuffer(content, ">u4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def train(images: np.ndarray, labels: np.ndarray, preprocess: Normalize, epochs: int) -> torch.nn.Module:
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
            loss = torch.nn.functional.cross_entropy(network(batch), torch.from_numpy(labels[rows.numpy()]))
            loss.backward()
            optimiser.step()
        print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.3f}")
    return network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DEBIAN)
    parser.add_argument("--out", type=Path, default=Path("fashion-views.zarr"))
    parser.add_argument("--train", type=int, default=20_000, help="how many images to train on")
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()

    images = read_idx(find(arguments.data, "train-images-idx3-ubyte"))[: arguments.train]
    labels = read_idx(find(arguments.data, "train-labels-idx1-ubyte"))[: arguments.train].astype(np.int64)
    preprocess = Normalize(mean=0.286, std=0.353)
    network = train(images, labels, preprocess, arguments.epochs)

    # The test images were never seen: one half calibrates, the other judges. Interrupt this and run it again: the
    # store resumes.
    new = read_idx(find(arguments.data, "t10k-images-idx3-ubyte"))
    truth = read_idx(find(arguments.data, "t10k-labels-idx1-ubyte")).astype(np.int64)
    pool = "zoom:0.5-0.9:10+brightness:0.1-0.9:10"
    views = collect(network, new, pool, labels=truth, preprocess=preprocess, out=arguments.out, batch_size=500)
    print(views)
    held_out, test = views[: len(views) // 2], views[len(views) // 2 :]
    for calibrator in (TemperatureScaling(), ReCal(start="temperature", max_iter=50, random_state=0)):
        probs = calibrator.fit(held_out).predict_proba(test)
        print(f"\n{calibrator}\n{evaluate(probs, test.labels)}")


if __name__ == "__main__":
    main()
