"""A fit of views that do not fit in memory: a million samples, a thousand classes, three views, 16
GB on disk.

    python -m benchmarks.disk_million --folder /somewhere/with/room

`Views.write` writes made-up logits block by block to a zarr folder. Then each method fits them in
its own process, which reports CPU and wall seconds and its peak resident memory (VmHWM). The folder
is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recal.transforms import as_transform
from recal.views import Views

METHODS = {
    "TemperatureScaling": "TemperatureScaling()",
    "ReCal": "ReCal(random_state=0)",
    "ViewStacking": "ViewStacking()",
}
_BLOCK = 1000

_FIT = """
import json, sys, time
from recal import ReCal, TemperatureScaling, ViewStacking, read_views
views = read_views(sys.argv[1])
cpu, wall = time.process_time(), time.perf_counter()
fitted = eval(sys.argv[2]).fit(views)
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
# Not getrusage: its maximum counts what the parent held when it started this process.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"cpu": cpu, "wall": wall, "peak_gb": peak * 1024 / 1e9}))
"""


class MadeUp:
    """Logits of an over-confident model, of the originals or through a view, made whenever rows are
    asked for.
    """

    def __init__(
        self, labels: NDArray[np.int64], n_classes: int, keep: float | None = None
    ) -> None:
        self.labels, self.keep = labels, keep
        self.shape = (len(labels), n_classes)

    def __getitem__(self, rows: slice) -> NDArray[np.float32]:
        start, stop, _ = rows.indices(len(self.labels))
        blocks = range(start // _BLOCK, (stop - 1) // _BLOCK + 1)
        made = np.concatenate([self._block(block) for block in blocks])
        return made[start - blocks[0] * _BLOCK : stop - blocks[0] * _BLOCK]

    def _block(self, block: int) -> NDArray[np.float32]:
        y = self.labels[block * _BLOCK : (block + 1) * _BLOCK]
        rng = np.random.default_rng([0, block])
        logits = rng.standard_normal((len(y), self.shape[1]), dtype=np.float32)
        logits[np.arange(len(y)), y] += 4.5 + 1.5 * rng.standard_normal(len(y), dtype=np.float32)
        logits *= np.float32(2.2)
        if self.keep is None:
            return logits
        noise = np.random.default_rng([1, block, int(1000 * self.keep)]).standard_normal(
            logits.shape, dtype=np.float32
        )
        return logits * np.float32(self.keep) + noise * np.float32(2 * (1 - self.keep))


def write(path: Path, n: int, k: int, m: int) -> None:
    rng = np.random.default_rng(2)
    truth = rng.integers(0, k, n)
    keeps = [0.4 + 0.5 * place / m for place in range(m)]
    layers = {
        as_transform(f"zoom:{0.5 + 0.1 * place:.1f}"): MadeUp(truth, k, keep)
        for place, keep in enumerate(keeps)
    }
    labels = np.where(rng.random(n) < 0.1, rng.integers(0, k, n), truth)
    Views.unchecked(MadeUp(truth, k), layers, labels, None).write(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--views", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, help="where to write; the system's temporary folder if not said"
    )
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    arguments = parser.parse_args()
    n, k, m = arguments.samples, arguments.classes, arguments.views
    with tempfile.TemporaryDirectory(dir=arguments.folder) as place:
        size, free = 4 * n * k * (1 + m), shutil.disk_usage(place).free
        if size > 0.8 * free:
            raise SystemExit(
                f"{size / 1e9:.1f} GB are needed in {place}, and {free / 1e9:.1f} GB are free."
            )
        path, cpu, wall = Path(place) / "views.zarr", time.process_time(), time.perf_counter()
        write(path, n, k, m)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        print(
            f"{n:,} x {k:,} x {m} views, {size / 1e9:.1f} GB: made and written in {cpu:.0f} s CPU, {wall:.0f} s",
            flush=True,
        )
        for name in arguments.methods:
            command = [sys.executable, "-c", _FIT, str(path), METHODS[name]]
            done = json.loads(
                subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            )
            print(
                f"{name:<20}{done['cpu']:>7.1f} s CPU{done['wall']:>7.1f} s{done['peak_gb']:>7.2f} GB peak",
                flush=True,
            )


if __name__ == "__main__":
    main()
