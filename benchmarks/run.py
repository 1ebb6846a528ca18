"""Speed next to other libraries and the physical limit: `make bench`.

    python -m benchmarks.run --out docs/results [--small] [--disk] [--views VIEWS.npz ...] [--only
    PART ...]

Each part is a module of this folder with `ratios(small)`, or `ratios(small, paths)` if it reads
real logits. Some parts yield their ratios one by one, so that a later failure does not lose the
first ones. Each part runs in its own process, and again for real logits. A part that fails is named
on the page and does not stop the others; so is a library that is not installed. Contestants take
turns in one process; ratios are of CPU seconds. speed.json is written after each part, and a run of
some parts keeps the results of the others. Everything takes about a quarter of an hour on two
cores, and 4 GB of disk space for `disk`.
"""

from __future__ import annotations

import argparse
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
    "torch_runtime",
    "threads_cost",
    "start_up",
    "growth",
)
# Parts that also measure real logits, and the name of such a part.
ON_FILES = ("answers_speed", "fits_speed", "default_cost")
REAL = "{} on real logits"
# A part that hangs must not delay the others.
_MOST_SECONDS = 900


def measured(part: str, small: bool, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the records of one part: of ratios, or of how costs grow."""
    module = import_module(f"benchmarks.{part}")
    if part == "growth":
        return module.growth(small)
    if part == "disk":
        return module.fits_from_disk(small)
    found = []
    try:
        for ratio in module.ratios(small, paths) if paths else module.ratios(small):
            found.append(ratio.record())
    except Exception as error:
        if not found:
            raise
        print(f"The rest of {part} is left out: {type(error).__name__}: {error}", file=sys.stderr)
    return found


def in_its_own_process(part: str, options: Sequence[str]) -> dict[str, Any]:
    """Return a part's records and seconds, or why there are none."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.run", "--part", part, *options]
    one = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
    }  # one thread each, so that CPU seconds are comparable
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_MOST_SECONDS, env=one
        )
    except subprocess.TimeoutExpired:
        return {"left_out": f"it took more than {_MOST_SECONDS} s"}
    said = done.stderr.strip().splitlines()
    if done.returncode:
        return {"left_out": (said or [f"exit {done.returncode}"])[-1]}
    return {
        "records": json.loads(done.stdout.splitlines()[-1]),
        "seconds": round(time.perf_counter() - begin, 1),
        "missing": sorted({line for line in said if " is left out: " in line}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--small", action="store_true", help="a trial of everything on small sizes")
    parser.add_argument(
        "--disk", action="store_true", help="add fits through a zarr folder (4 GB of disk)"
    )
    parser.add_argument(
        "--views", type=Path, nargs="*", default=[], help="views files: real logits"
    )
    parser.add_argument(
        "--only", nargs="*", choices=(*PARTS, "disk"), help="some parts; others stay as they are"
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        print(json.dumps(measured(given.part, given.small, given.views)))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / "speed.json"
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() and given.only else {}
    results |= {
        "machine": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "cores": os.cpu_count(),
        },
        "small": given.small,
    }
    parts = results.setdefault("parts", {})
    options = ["--small"] if given.small else []
    for part in given.only or (*PARTS, *(["disk"] if given.disk else [])):
        jobs = {part: options}
        if given.views and part in ON_FILES:
            jobs[REAL.format(part)] = [*options, "--views", *map(str, given.views)]
        for name, asked in jobs.items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            parts[name] = in_its_own_process(part, asked)
            print(
                f"  {parts[name].get('seconds') or parts[name]['left_out']}",
                file=sys.stderr,
                flush=True,
            )
            kept.write_text(json.dumps(results, indent=1) + "\n")
            write_page(results, given.out)
    print(given.out / "speed.md")


if __name__ == "__main__":
    main()
