"""The cost of a second thread in small fits: python -m benchmarks.threads_cost [--small]

It compares the CPU seconds of a fit in a process that may use every core with those of a single
thread. Matrix products of this size are no faster with more threads, which use CPU while they wait
for each other.
"""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.ratios import Ratio, table

_FIT = """
import sys, time, warnings
warnings.simplefilter("ignore")
from benchmarks.measuring import made_up
from recal import calibrators
build, n, k = getattr(calibrators, sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
logits, _, y = made_up(n, k)
build().fit(logits, y)
spent = []
for _ in range(3):
    begin = time.process_time()
    build().fit(logits, y)
    spent.append(time.process_time() - begin)
print(min(spent))
"""
# Samples, classes, and the ratio of CPU seconds in release 1.0.0rc1.
CASES = {
    "StructuredVectorScaling": (3000, 300, 2.3),
    "VectorScaling": (3000, 300, 3.3),
    "StructuredMatrixScaling": (3000, 100, 10.0),
}


def cpu(method: str, n: int, k: int, one_thread: bool) -> float:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RECAL_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= dict.fromkeys(names, "1") if one_thread else {}
    command = [sys.executable, "-c", _FIT, method, str(n), str(k)]
    return float(
        subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    )


def ratios(small: bool) -> list[Ratio]:
    found = []
    for method, (n, k, before) in CASES.items():
        n = n // 5 if small else n
        all_cores, one = (cpu(method, n, k, one_thread) for one_thread in (False, True))
        what = f"fit of {method}, {n:,} x {k:,}, all cores"
        found.append(Ratio("Threads", what, "the same on one thread", all_cores, one, 1.2, before))
    return found


if __name__ == "__main__":
    print("\n".join(table(ratios("--small" in sys.argv))))
