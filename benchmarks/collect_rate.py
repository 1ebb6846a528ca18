"""`collect` next to a bare loop that does the same work, and its memory as the number of inputs
grows.

    python -m benchmarks.collect_rate

Times are CPU seconds, because wall times are noisy. The bare loop transforms each batch, normalises
it and runs the network; `collect` adds checks, digests and the store. Its target is at least 0.9 of
the bare loop's rate. Memory is the peak of a separate process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from recal import collect, pool
from recal.collecting import Normalize

POOL = "zoom:0.5-0.9:10"
PREPROCESS = Normalize(mean=0.5, std=0.25)


def network() -> torch.nn.Module:
    """A network small enough that overhead would show."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(), torch.nn.Linear(1024, 10),
    ).eval()  # fmt: skip


def bare_loop(model: torch.nn.Module, images: np.ndarray, batch_size: int) -> None:
    transforms = pool(POOL)
    with torch.no_grad():
        for start in range(0, len(images), batch_size):
            batch = torch.from_numpy(images[start : start + batch_size])
            for transform in (None, *transforms):
                model(PREPROCESS(batch if transform is None else transform(batch))).numpy()


def cpu_seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def rates(n: int, batch_size: int, repeats: int) -> dict[str, float]:
    """Samples per CPU second: the best of some repeats, taken in turn so that a busy machine is
    fair to all.
    """
    images = np.random.default_rng(0).integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    model = network()
    options: dict[str, Any] = {"preprocess": PREPROCESS, "batch_size": batch_size}
    best = {"bare loop": np.inf, "collect, memory": np.inf, "collect, store": np.inf}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "v.zarr"
            work: dict[str, Callable[[], Any]] = {
                "bare loop": lambda: bare_loop(model, images, batch_size),
                "collect, memory": lambda: collect(model, images, POOL, **options),
                "collect, store": lambda out=store: collect(
                    model, images, POOL, out=out, **options
                ),
            }
            for name, function in work.items():
                best[name] = min(best[name], cpu_seconds(function))
    return {name: n / seconds for name, seconds in best.items()}


def peak_megabytes(n: int) -> float:
    """Collect from a folder of n images into a store, and return this process's peak memory."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "images" / "one"
        folder.mkdir(parents=True)
        first = folder / "0.png"
        Image.fromarray(
            np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)
        ).save(first)
        for index in range(1, n):
            (folder / f"{index}.png").hardlink_to(first)
        collect(
            network(),
            folder,
            "zoom:0.7",
            preprocess=PREPROCESS,
            batch_size=64,
            out=Path(place) / "v.zarr",
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak:
        print(json.dumps(peak_megabytes(arguments.peak)))
        return
    found = rates(arguments.samples, arguments.batch_size, arguments.repeats)
    for name, rate in found.items():
        print(
            f"{name:<18}{rate:>8.0f} samples per CPU second{rate / found['bare loop']:>8.2f} of the bare loop"
        )
    for n in (500, 2000, 8000):
        command = [sys.executable, "-m", "benchmarks.collect_rate", "--peak", str(n)]
        peak = json.loads(
            subprocess.run(command, capture_output=True, text=True, check=True).stdout
        )
        print(
            f"peak memory, {n:>5} images from a folder: {peak:>6.0f} MB ({n * 96 * 96 * 3 / 2**20:.0f} MB of pixels)"
        )


if __name__ == "__main__":
    main()
