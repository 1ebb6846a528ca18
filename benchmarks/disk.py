"""Fits of views larger than memory: peak memory and time with a zarr folder, compared with the same
fit in memory. `make bench` runs it; it needs 4 GB of disk space.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_WRITE = """
import sys
from benchmarks.measuring import made_up
path, n, k, m = sys.argv[1], *map(int, sys.argv[2:])
made_up(n, k, m).write(path)
"""

_FIT = """
import sys, json, time, warnings
warnings.simplefilter("ignore")
from recal import ReCal, Views, ViewStacking, read_views
path, how, method = sys.argv[1:]
views = read_views(path)
if how == "memory":
    views = Views(views.logits, {t: views.transformed(t) for t in views.transforms}, views.labels)
fit = {"ReCal": ReCal(random_state=0, tol=0), "ViewStacking": ViewStacking()}[method].fit
fit(views[:200])
begin = time.process_time()
fit(views)
cpu = time.process_time() - begin
# Not getrusage: its maximum counts what the parent held when it started this process.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"cpu": cpu, "peak_gb": peak * 1024 / 1e9}))
"""


def fits_from_disk(small: bool) -> list[dict[str, Any]]:
    n, k, m = (4000, 200, 3) if small else (200_000, 1000, 3)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "views.zarr")
        subprocess.run([sys.executable, "-c", _WRITE, path, str(n), str(k), str(m)], check=True)
        for method in ("ReCal", "ViewStacking"):
            for how in ("disk", "memory"):
                command = [sys.executable, "-c", _FIT, path, how, method]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                what = f"{method}, {n:,} x {k:,}, {m} views"
                rows.append({"what": what, "how": how, **json.loads(done.stdout)})
    return rows
