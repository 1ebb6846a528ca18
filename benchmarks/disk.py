"""The fit of views that outgrow memory: peak memory and time through a zarr folder, beside the same in memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_WRITE = """
import sys, numpy as np, zarr
path, n, k, m = sys.argv[1], *map(int, sys.argv[2:])
from recal.transforms import as_transform
rng = np.random.default_rng(0)
y = rng.integers(0, k, n)
base = rng.standard_normal((n, k), dtype=np.float32)
base[np.arange(n), y] += 4.5 + 1.5 * rng.standard_normal(n).astype(np.float32)
base *= 2.2
specs = [f"zoom:{0.1 + 0.01 * i:.2f}" for i in range(m)]
root = zarr.open_group(path, mode="w")
root.attrs["recal"] = {"kind": "views", "version": 1, "transforms": [str(as_transform(s)) for s in specs]}
rows = max(1, 1_000_000 // k)
root.create_array("logits", data=base, chunks=(rows, k), compressors=None)
wrong = rng.random(n) < 0.1
labels = np.where(wrong, rng.integers(0, k, n), y).astype(np.int64)
root.create_array("labels", data=labels, chunks=(n,))
stack = root.create_array("transformed", shape=(m, n, k), chunks=(1, rows, k), dtype="float32", compressors=None)
for i in range(m):
    keep = np.float32(0.4 + 0.55 * i / m)
    stack[i] = base * keep + rng.standard_normal((n, k), dtype=np.float32) * (2 * (1 - keep))
"""

_FIT = """
import sys, json, time
from recal import ReCal, Views, read_views
path, in_memory = sys.argv[1], sys.argv[2] == "memory"
views = read_views(path)
if in_memory:
    views = Views(views.logits, {t: views.transformed(t) for t in views.transforms}, views.labels)
ReCal(max_iter=2).fit(views[:200])
cpu, wall = time.process_time(), time.perf_counter()
fit = ReCal(random_state=0, tol=0).fit(views)
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
# Not getrusage: its maximum counts what the parent held when it started this process.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"cpu": cpu, "wall": wall, "peak_gb": peak / 1e6, "iterations": fit.n_iter_}))
"""


def fits_from_disk(small: bool) -> list[dict[str, Any]]:
    n, k, m = (4000, 200, 5) if small else (100_000, 1000, 5)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "views.zarr")
        subprocess.run([sys.executable, "-c", _WRITE, path, str(n), str(k), str(m)], check=True)
        rows = []
        for how in ("disk", "memory"):
            done = subprocess.run([sys.executable, "-c", _FIT, path, how], check=True, capture_output=True, text=True)
            rows.append({"size": f"{n:,} x {k:,} x {m}", "how": how, **json.loads(done.stdout)})
    return rows
