"""The default on many small problems and on networks: makes the figures of docs/results/default.md.

    python -m benchmarks.default_study arena arena.npz --rows 0 50 100 200 500 --out study
    python -m benchmarks.default_study networks resnet8.npz resnet32.npz ... --halves 10 --out study
    python -m benchmarks.default_study page --out study > docs/results/default.md

`--out` is a folder of JSON files, one for each number of rows and each network; runs can be resumed. Every method is
fitted to the calibration part, or to so many rows of it at random, and judged on the test part: as it is ("free"), and
with the model's own answers kept by the same guard ("kept"). Networks are cut into halves by the seeds of
`benchmarks.stacking_halves`, the same for all methods.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arena.scores import MODES, Parts, Scores, read
from benchmarks.stacking_halves import halves, passes, scores, without_lossless
from recal import AutoCalibration, TemperatureScaling, ViewStacking, read_views
from recal.calibrators import CalibrationEnsemble
from recal.calibrators.base import Calibrator

LOSSY = "-lossy"
AUTO_HALVES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["arena", "networks", "page"])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=Path("study"))
    parser.add_argument("--rows", type=int, nargs="+", default=[0])
    parser.add_argument("--halves", type=int, default=10)
    parser.add_argument("--size", type=int, default=10**9, help="at most so many rows of the fitting half")
    parser.add_argument("--lossy", action="store_true", help="leave out mirror and shift")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    given.out.mkdir(exist_ok=True)
    if given.part == "page":
        from benchmarks.default_page import page

        print(page(given.out))
        return
    for path in given.files:
        if given.part == "arena":
            for rows in given.rows:
                arena(path, rows, given.out)
        else:
            network(path, given.halves, given.size, given.lossy, given.out)


def arena(path: Path, rows: int, out: Path) -> None:
    kept = Scores(out / f"{path.stem}-{rows or 'all'}.json")
    for name, parts in read(path):
        if name not in kept.found:
            kept.add(name, _some(parts, rows), {})


def _some(parts: Parts, rows: int) -> Parts:
    logits, labels, test, truth = parts
    if not 0 < rows < len(labels):
        return parts
    chosen = np.random.default_rng(0).permutation(len(labels))[:rows]
    return logits[chosen], labels[chosen], test, truth


def network(path: Path, count: int, size: int, lossy: bool, out: Path) -> None:
    views = read_views(path)
    views = without_lossless(views) if lossy else views
    few = f"-{size}" if size < len(views) // 2 else ""
    file = out / f"network-{path.stem}{LOSSY if lossy else ''}{few}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for seed, (fit, test) in enumerate(halves(views, size, count)):
        methods: dict[str, Calibrator] = {"ts": TemperatureScaling()}
        for mode in MODES:
            methods[f"stack {mode}"] = ViewStacking(answers=mode)
            methods[f"ensemble {mode}"] = CalibrationEnsemble(answers=mode)
        if seed < AUTO_HALVES:
            methods["auto kept"] = AutoCalibration()
        for name, method in methods.items():
            if str(seed) in found.setdefault(name, {}):
                continue
            method.fit(fit)
            found[name][str(seed)] = {
                "scores": scores(method, test),
                "passes": passes(method, test),
                "views": [str(transform) for transform in method.needed_transforms()],
                "says": getattr(method, "reason_", ""),
            }
        file.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
