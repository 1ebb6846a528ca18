"""`make arena`: build the problems, judge every method on them, and write the page.

    python -m benchmarks.arena --problems FOLDER --out docs/results
    python -m benchmarks.arena --problems FOLDER --data digits,banana --out /tmp/page

Everything can be resumed: what FOLDER holds is neither built nor fitted again, but for methods
named by `--again`. All 39 data sets take about five CPU minutes. `--minutes` stops after so much
CPU time and writes the page of what is judged by then. Data sets come in an order drawn at random,
so these are a fair sample.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arena.page import write_page
from benchmarks.arena.problems import build_all
from benchmarks.arena.scores import Scores, peers, read


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--problems", type=Path, required=True, help="folder of the problems and of their scores"
    )
    parser.add_argument(
        "--data", type=lambda text: tuple(text.split(",")), default=(), help="only these data sets"
    )
    parser.add_argument(
        "--debian", type=Path, default=Path("/"), help="where Debian's packages are unpacked"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="CPU minutes after which no fit begins"
    )
    names = "what was judged of these methods is forgotten, such as ensemble,auto: their code has changed"
    parser.add_argument("--again", type=lambda text: tuple(text.split(",")), default=(), help=names)
    parser.add_argument("--no-peers", action="store_true", help="leave other libraries out")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    os.environ.setdefault("TQDM_DISABLE", "1")  # netcal's bars
    warnings.filterwarnings("ignore", module="netcal|pyro|torch|gpytorch")
    build_all(given.problems, given.data, given.debian)
    scores, others = Scores(given.problems / "scores.json"), {} if given.no_peers else peers()
    scores.forget(given.again)
    about: dict[str, dict[str, Any]] = {}
    files = [
        file
        for file in sorted(given.problems.glob("*.npz"))
        if not given.data or file.stem in given.data
    ]
    for place in np.random.default_rng(0).permutation(len(files)):
        file = files[place]
        if (
            not all(name in scores.found for name, _ in read(file))
            and time.process_time() > 60 * given.minutes
        ):
            continue
        for name, parts in read(file):
            scores.add(name, parts, others)
        with np.load(file) as arrays:
            about[file.stem] = json.loads(str(arrays["about"]))
        print(f"{file.stem} is judged", file=sys.stderr, flush=True)
    if not about:
        raise SystemExit("No data set is judged yet. Allow more --minutes.")
    print(f"Wrote {write_page(scores, about, len(files), given.out)}")


if __name__ == "__main__":
    main()
