"""Speed next to other libraries and the physical limit: `make bench`.

    python -m benchmarks.run --out docs/results [--small] [--disk] [--views VIEWS.npz ...] [--only
    PART ...]

Each part is a module of this folder with `ratios(small)`, or `ratios(small, paths)` if it reads
real logits. Each part runs in its own process, and again for real logits. A part that fails is
named on the page and does not stop the others; so is a library that is not installed. speed.json is
written after each part, and a run of some parts keeps the results of the others. Everything takes
about ten minutes on two cores, and 4 GB of disk space for `disk`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import describe
from benchmarks.page import write_page

PARTS = ("answers_speed", "fits_speed", "metrics_speed", "start_up")
ON_FILES = ("answers_speed", "fits_speed")  # these also measure real logits


def measure(part: str, small: bool, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the records of one part."""
    module = import_module(f"benchmarks.{part}")
    if part == "disk":
        return module.fits_from_disk(small)
    warnings.simplefilter("ignore")  # few samples for many classes; only speed matters here
    found = module.ratios(small, paths) if paths else module.ratios(small)
    return [ratio.record() for ratio in found]


def in_its_own_process(part: str, options: Sequence[str], seconds: int = 900) -> dict[str, Any]:
    """Return a part's records and seconds, or why there are none."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.run", "--part", part, *options]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # so that CPU seconds are comparable
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=one_thread
        )
    except subprocess.TimeoutExpired:
        return {"left_out": f"it took more than {seconds} s"}
    said = done.stderr.strip().splitlines()
    if done.returncode:
        return {"left_out": (said or [f"exit {done.returncode}"])[-1]}
    return {
        "records": json.loads(done.stdout.splitlines()[-1]),
        "seconds": round(time.perf_counter() - begin, 1),
        "missing": sorted({line for line in said if " is left out: " in line}),
    }


def main() -> None:
    parser = describe(__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--small", action="store_true", help="a trial of everything on small sizes")
    parser.add_argument("--disk", action="store_true", help="add fits through a zarr folder")
    parser.add_argument("--views", type=Path, nargs="*", default=[], help="files of real logits")
    parser.add_argument("--only", nargs="*", choices=(*PARTS, "disk"), help="only these parts")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        print(json.dumps(measure(given.part, given.small, given.views)))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / "speed.json"
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() and given.only else {}
    results["small"] = given.small
    results["machine"] = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cores": os.cpu_count(),
    }
    parts = results.setdefault("parts", {})
    options = ["--small"] if given.small else []
    for part in given.only or (*PARTS, *(["disk"] if given.disk else [])):
        jobs = {part: options}
        if given.views and part in ON_FILES:
            jobs[f"{part} on real logits"] = [*options, "--views", *map(str, given.views)]
        for name, words in jobs.items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            parts[name] = in_its_own_process(part, words)
            said = parts[name].get("seconds") or parts[name]["left_out"]
            print(f"  {said}", file=sys.stderr, flush=True)
            kept.write_text(json.dumps(results, indent=1) + "\n")
            write_page(results, given.out)
    print(given.out / "speed.md")


if __name__ == "__main__":
    main()
