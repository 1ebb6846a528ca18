"""collect on Ray beside collect in one process, on the same cores: what start-up costs once, and what remains after it.

    python -m benchmarks.ray_overhead

Start-up is told by itself: Ray, the workers' processes, their imports, the model. Steady time runs from the moment at
which a tenth of the samples are done, and stands for all of them. Locally the network computes with as many threads as
there are cores; on Ray there are as many workers with one thread each. Runs take turns and the least time counts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.collect_rate import PREPROCESS, network

from recal import pool
from recal.collecting import as_model, as_source
from recal.collecting.job import Block, Job
from recal.collecting.local import run_local
from recal.collecting.sinks.memory import MemorySink
from recal.collecting.sinks.store import StoreSink

CORES = os.cpu_count() or 1


class Clock:
    """Notes when samples were done."""

    def __init__(self, n_samples: int) -> None:
        self.n_samples, self.done, self.moments = n_samples, 0, [(0, time.perf_counter())]

    def note(self, count: int) -> None:
        self.done += count
        self.moments.append((self.done, time.perf_counter()))

    @property
    def first(self) -> float:
        return self.moments[1][1] - self.moments[0][1]

    @property
    def steady(self) -> float:
        rows, begun = next(moment for moment in self.moments if moment[0] >= self.n_samples / 10)
        end, ended = self.moments[-1]
        return (ended - begun) * self.n_samples / (end - rows)


def clocked(kind: type, clock: Clock) -> type:
    class Clocked(kind):  # type: ignore[misc]
        def put(self, block: Block) -> None:
            super().put(block)
            clock.note(len(block))

        def take(self, finished: Any) -> None:
            super().take(finished)
            clock.note(len(finished))

    return Clocked


def time_run(job: Job, images: np.ndarray, batch_size: int, run: Any, stored: bool) -> Clock:
    source, clock = as_source(images), Clock(len(images))
    with tempfile.TemporaryDirectory() as folder:
        if stored:
            kind = clocked(StoreSink, clock)
            sink = kind(job, source, None, Path(folder) / "v.zarr", batch_size=batch_size, resume=True)
        else:
            sink = clocked(MemorySink, clock)(job, source, None)
        with sink:
            run(job, source, batch_size, sink, False)
    return clock


def empty(batch: Any) -> np.ndarray:
    return np.zeros((len(batch), 10), dtype=np.float32) + np.arange(10, dtype=np.float32)


def start_ray() -> None:
    started = time.perf_counter()
    import ray

    imported = time.perf_counter()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=CORES, include_dashboard=False, log_to_driver=False, logging_level="error")
    begun = time.perf_counter()

    class Importer:
        def load(self, name: str) -> float:
            import importlib

            before = time.perf_counter()
            importlib.import_module(name)
            return time.perf_counter() - before

    actor: Any = ray.remote(Importer).remote()
    ray.get(actor.load.remote("sys"))
    answered = time.perf_counter()
    print(f"once: import ray             {imported - started:>7.2f} s")
    print(f"once: start a local cluster  {begun - imported:>7.2f} s")
    print(f"once: a worker's process     {answered - begun:>7.2f} s")
    for name in ("numpy", "recal.collecting.workers", "recal.collecting.models.torch"):
        print(f"once: its import of {name:<31}{ray.get(actor.load.remote(name)):>5.2f} s")
    ray.kill(actor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--views", type=int, default=3)
    arguments = parser.parse_args()
    from recal.collecting import RayEngine

    start_ray()
    images = np.random.default_rng(0).integers(0, 256, (arguments.images, 3, 32, 32), dtype=np.uint8)
    job = Job(as_model(network()), pool(f"zoom:0.5-0.9:{arguments.views}"), PREPROCESS)
    on_ray = RayEngine(workers=CORES).run
    best: dict[str, Clock] = {}
    for _ in range(arguments.repeats):
        for stored in (False, True):
            for name, run in (("local", run_local), ("Ray", on_ray)):
                torch.set_num_threads(CORES)
                clock = time_run(job, images, arguments.batch_size, run, stored)
                name = f"{name}, {'store' if stored else 'memory'}"
                if name not in best or clock.steady < best[name].steady:
                    best[name] = clock
    print(f"{arguments.images:,} images, {arguments.views} views, batches of {arguments.batch_size}, {CORES} cores")
    for name, clock in best.items():
        ratio = clock.steady / best[name.replace("Ray", "local")].steady
        print(
            f"{name:<14} first answer after {clock.first:>5.2f} s, steady {clock.steady:>6.2f} s, {ratio:.2f} of local"
        )
    nothing = Job(as_model(empty))
    for name, run in (("local", run_local), ("Ray", on_ray)):
        clock = time_run(nothing, images, arguments.batch_size, run, False)
        batches = -(-arguments.images // arguments.batch_size)
        print(f"{name}: a batch of a model that does nothing takes {1000 * clock.steady / batches:.2f} ms")


if __name__ == "__main__":
    main()
