"""Speed, beside other libraries and the physical limit: `make bench`.

    python -m benchmarks.run --out docs/benchmarks [--small] [--disk] [--views VIEWS.npz ...] [--only PART ...]

Each part is a module of this folder with `ratios(small)`, and `ratios(small, paths)` where it reads real logits, and
runs in a process of its own: one that fails, or whose packages are missing, is named on the page and stops no other.
Contestants take turns in one process; ratios are of CPU seconds. Results are kept in speed.json as the parts end, and
a run of some parts leaves those of the others.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.page import write_page

PARTS = (
    "answers_speed",
    "fits_speed",
    "metrics_speed",
    "default_cost",
    "image_transforms",
    "onnx_gate",
    "start_up",
    "growth",
)
# One that hangs must not hold up the others.
_MOST_SECONDS = 900


def measured(part: str, small: bool, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the records of one part: of ratios, or of how costs grow."""
    module = import_module(f"benchmarks.{part}")
    if part == "growth":
        return module.growth(small)
    if part == "disk":
        return module.fits_from_disk(small)
    found = module.ratios(small)
    if paths and "paths" in inspect.signature(module.ratios).parameters:
        found += module.ratios(small, paths)  # real logits beside made-up ones
    return [ratio.record() for ratio in found]


def in_its_own_process(part: str, options: Sequence[str]) -> dict[str, Any]:
    """Return a part's records and seconds, or why there are none."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.run", "--part", part, *options]
    one = {**os.environ, "OMP_NUM_THREADS": "1"}  # thread each, so that CPU seconds mean the same for all
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS, env=one)
    except subprocess.TimeoutExpired:
        return {"left_out": f"it took more than {_MOST_SECONDS} s"}
    if done.returncode:
        return {"left_out": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return {"records": json.loads(done.stdout.splitlines()[-1]), "seconds": round(time.perf_counter() - begin, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--small", action="store_true", help="a trial of everything on small sizes")
    parser.add_argument("--disk", action="store_true", help="add the fit through a zarr folder (2 GB of disk)")
    parser.add_argument("--views", type=Path, nargs="*", default=[], help="views files: real logits")
    parser.add_argument("--only", nargs="*", choices=(*PARTS, "disk"), help="some parts; others stay as they are")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        print(json.dumps(measured(given.part, given.small, given.views)))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / "speed.json"
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() and given.only else {}
    results |= {
        "machine": {"python": platform.python_version(), "numpy": np.__version__, "cores": os.cpu_count()},
        "small": given.small,
    }
    parts = results.setdefault("parts", {})
    options = ["--small"] if given.small else []
    options += ["--views", *map(str, given.views)] if given.views else []
    for part in given.only or (*PARTS, *(["disk"] if given.disk else [])):
        print(f"{part} ...", file=sys.stderr, flush=True)
        parts[part] = in_its_own_process(part, options)
        print(f"  {parts[part].get('seconds') or parts[part]['left_out']}", file=sys.stderr, flush=True)
        kept.write_text(json.dumps(results, indent=1) + "\n")
    print(write_page(results, given.out))


if __name__ == "__main__":
    main()
