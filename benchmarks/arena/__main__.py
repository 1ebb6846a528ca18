"""`make arena`: build the problems, judge every method on them, and write the page.

    python -m benchmarks.arena --problems FOLDER --out docs/results
    python -m benchmarks.arena --problems FOLDER --data digits,banana --out /tmp/page

Everything can be resumed: what FOLDER holds is neither built nor fitted again, except for methods
named by `--again`. All 39 data sets take about five CPU minutes.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arena.page import write_page
from benchmarks.arena.problems import build_all
from benchmarks.arena.scores import Scores, peers, read
from benchmarks.measuring import describe


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def main() -> None:
    parser = describe(__doc__)
    parser.add_argument("--problems", type=Path, required=True, help="folder of problems, scores")
    parser.add_argument("--data", type=names, default=(), help="only these data sets")
    parser.add_argument("--debian", type=Path, default=Path("/"), help="root of Debian's packages")
    parser.add_argument("--again", type=names, default=(), help="judge these methods again")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    os.environ.setdefault("TQDM_DISABLE", "1")  # netcal's bars
    warnings.filterwarnings("ignore", module="netcal|pyro|torch|gpytorch")
    build_all(given.problems, given.data, given.debian)
    scores, others = Scores(given.problems / "scores.json"), peers()
    scores.forget(given.again)
    about: dict[str, dict[str, Any]] = {}
    for file in sorted(given.problems.glob("*.npz")):
        if given.data and file.stem not in given.data:
            continue
        for name, parts in read(file):
            scores.add(name, parts, others)
        with np.load(file) as arrays:
            about[file.stem] = json.loads(str(arrays["about"]))
        print(f"{file.stem} is judged", file=sys.stderr, flush=True)
    print(f"Wrote {write_page(scores, about, given.out)}")


if __name__ == "__main__":
    main()
