"""`collect` on Ray next to `collect` in one process, on the same cores: the cost of start-up, and
overhead after it.

    python -m benchmarks.ray_overhead

Start-up is reported separately: Ray, the workers' processes, their imports, the model. Steady time
is measured after the first tenth of the samples, and scaled up to all samples. Locally the network
uses one thread per core; on Ray there is one worker with one thread per core. Runs take turns and
the smallest time counts. CPU seconds of this process and of all processes of Ray are shown next to
wall times: they show what was spent on a busy machine. Compare them with one local thread, which
never waits for another.
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
from recal.collecting.blocks import MemorySink
from recal.collecting.forward import Block, Job
from recal.collecting.local import run_local
from recal.collecting.store import StoreSink

CORES = os.cpu_count() or 1


def cpu_seconds() -> float:
    """CPU time of this process and of all that it started and that still runs, Ray's included."""
    parents, spent, tick = {}, {}, os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # the process has just ended
                continue
            parents[int(folder.name)], spent[int(folder.name)] = (
                int(fields[1]),
                int(fields[11]) + int(fields[12]),
            )
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(spent.get(pid, 0) for pid in ours) / tick


class Clock:
    """Notes when samples were done, and what had been spent by then."""

    def __init__(self, n_samples: int) -> None:
        self.n_samples, self.done = n_samples, 0
        self.started = time.perf_counter()
        self.moments: list[tuple[int, float, float]] = []

    def note(self, count: int) -> None:
        before, self.done = self.done, self.done + count
        tenth = before < self.n_samples / 10 <= self.done
        if tenth or self.done == self.n_samples or not self.moments:
            self.moments.append((self.done, time.perf_counter(), cpu_seconds()))

    @property
    def first(self) -> float:
        return self.moments[0][1] - self.started

    @property
    def steady(self) -> float:
        return self._since_a_tenth(1)

    @property
    def cpu(self) -> float:
        return self._since_a_tenth(2)

    def _since_a_tenth(self, what: int) -> float:
        begun, ended = self.moments[-2:]
        return (ended[what] - begun[what]) * self.n_samples / (ended[0] - begun[0])


def clocked(kind: type, clock: Clock) -> type:
    class Clocked(kind):  # type: ignore[misc]
        def take(self, index: int, result: Any) -> None:  # `put` ends with it
            super().take(index, result)
            clock.note(len(result) if isinstance(result, Block) else result["rows"])

    return Clocked


def time_run(job: Job, images: np.ndarray, batch_size: int, run: Any, stored: bool) -> Clock:
    source, clock = as_source(images), Clock(len(images))
    with tempfile.TemporaryDirectory() as folder:
        if stored:
            kind = clocked(StoreSink, clock)
            sink = kind(
                job, source, None, Path(folder) / "v.zarr", batch_size=batch_size, resume=True
            )
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
    ray.init(
        address="local",
        num_cpus=CORES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
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
    for name in ("numpy", "recal.collecting.ray", "recal.collecting.models.torch"):
        print(f"once: its import of {name:<31}{ray.get(actor.load.remote(name)):>5.2f} s")
    ray.kill(actor)


def throughput(job: Job, images: np.ndarray, batch_size: int, counts: list[int]) -> None:
    """Print how many images a second go through the network and its views into a store, by the
    number of workers.
    """
    from recal.collecting import RayEngine

    torch.set_num_threads(1)
    runs = {"local, 1 thread": run_local} | {
        f"Ray, {count} workers": RayEngine(workers=count).run for count in counts
    }
    for name, run in runs.items():
        clock = time_run(job, images, batch_size, run, stored=True)
        print(
            f"{name:<16} {len(images) / clock.steady:>7.0f} images/s, {clock.cpu:>6.2f} s CPU",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--views", type=int, default=3)
    parser.add_argument(
        "--threads", action="store_true", help="also with as many threads in each worker as cores"
    )
    parser.add_argument(
        "--workers", type=int, nargs="*", help="only the throughput with so many workers each"
    )
    arguments = parser.parse_args()
    from recal.collecting import RayEngine

    start_ray()
    images = np.random.default_rng(0).integers(
        0, 256, (arguments.images, 3, 32, 32), dtype=np.uint8
    )
    job = Job(as_model(network()), pool(f"zoom:0.5-0.9:{arguments.views}"), PREPROCESS)
    if arguments.workers:
        throughput(job, images, arguments.batch_size, arguments.workers)
        return
    runs = {"local": run_local, "local, 1 thread": run_local, "Ray": RayEngine(workers=CORES).run}
    if arguments.threads:
        runs[f"Ray, {CORES} threads each"] = RayEngine(workers=CORES, threads=CORES).run
    print(
        f"{arguments.images:,} images, {arguments.views} views, batches of {arguments.batch_size}, {CORES} cores"
    )
    for stored in (False, True):
        best: dict[str, Clock] = {}
        for name, run in [*runs.items()] * arguments.repeats:
            torch.set_num_threads(1 if "1 thread" in name else CORES)
            clock = time_run(job, images, arguments.batch_size, run, stored)
            if name not in best or clock.steady < best[name].steady:
                best[name] = clock
        for name, clock in best.items():
            base = best["local"]
            print(
                f"{name + (', store' if stored else ', memory'):<24} first answer {clock.first:>6.2f} s, steady "
                f"{clock.steady:>6.2f} s ({clock.steady / base.steady:.2f} of local), "
                f"{clock.cpu:>6.2f} s CPU ({clock.cpu / base.cpu:.2f} of local)",
                flush=True,
            )
    nothing = Job(as_model(empty))
    for name, run in (("local", runs["local"]), ("Ray", runs["Ray"])):
        clock = time_run(nothing, images, arguments.batch_size, run, False)
        batches = -(-arguments.images // arguments.batch_size)
        print(
            f"{name}: a batch of a model that does nothing takes {1000 * clock.steady / batches:.2f} ms"
        )


if __name__ == "__main__":
    main()
