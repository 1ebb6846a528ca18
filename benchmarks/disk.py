"""Fits of views larger than memory: peak memory and time with a zarr folder, compared with the same
fit in memory. `make bench` runs it; it needs 4 GB of disk space.

Pages of mapped files do not count: the system drops them when it needs the memory.
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
import sys, json, threading, time, warnings
warnings.simplefilter("ignore")
import numpy as np
from recal import ReCal, Views, ViewStacking, read_views
path, how, method = sys.argv[1:]
views = read_views(path)
if how == "memory":
    copies = {t: np.array(views.transformed(t)) for t in views.transforms}
    views = Views(np.array(views.logits), copies, views.labels)
fit = {"ReCal": ReCal(random_state=0, tol=0), "ViewStacking": ViewStacking()}[method].fit
fit(views[:200])
peak, done = 0, threading.Event()
def watch():
    global peak
    while not done.wait(0.01):
        status = open("/proc/self/status")
        peak = max(peak, *(int(line.split()[1]) for line in status if line.startswith("RssAnon")))
watching = threading.Thread(target=watch)
watching.start()
begin = time.process_time()
fit(views)
cpu = time.process_time() - begin
done.set()
watching.join()
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
