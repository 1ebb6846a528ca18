"""Fits of views larger than memory: peak memory and time with a zarr folder, compared with the same
fit in memory.
"""

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
import sys, json, time, warnings
warnings.simplefilter("ignore")
from recal import ReCal, Views, ViewStacking, read_views
path, in_memory, method = sys.argv[1], sys.argv[2] == "memory", sys.argv[3]
views = read_views(path)
if in_memory:
    views = Views(views.logits, {t: views.transformed(t) for t in views.transforms}, views.labels)
eval(method).fit(views[:200])
cpu, wall = time.process_time(), time.perf_counter()
eval(method).fit(views)
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
# Not getrusage: its maximum counts what the parent held when it started this process.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"cpu": cpu, "wall": wall, "peak_gb": peak * 1024 / 1e9}))
"""
METHODS = {"ReCal": "ReCal(random_state=0, tol=0)", "ViewStacking": "ViewStacking()"}
# Peak memory with a folder: its upper limit, and its value in release 1.0.0rc1.
TARGET_GB, BEFORE_GB = 1.0, {"ViewStacking": 2.0}


def fits_from_disk(small: bool) -> list[dict[str, Any]]:
    n, k, m = (4000, 200, 3) if small else (200_000, 1000, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "views.zarr")
        subprocess.run([sys.executable, "-c", _WRITE, path, str(n), str(k), str(m)], check=True)
        rows = []
        for name, method in METHODS.items():
            for how in ("disk", "memory"):
                command = [sys.executable, "-c", _FIT, path, how, method]
                done = json.loads(
                    subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                )
                limits = (
                    {"target_gb": TARGET_GB, "before_gb": BEFORE_GB.get(name)}
                    if how == "disk"
                    else {}
                )
                rows.append(
                    {"what": f"{name}, {n:,} x {k:,}, {m} views", "how": how, **done, **limits}
                )
    return rows
