"""The default next to temperature scaling and view stacking on networks: the first table of
docs/results/images.md.

    python -m benchmarks.default_study resnet8.npz resnet32.npz ... --halves 10 --out study

Each file of views is split into halves, one to fit and one to test, with the same seeds for all
methods. `--out` is a folder with one JSON file per network; an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arena.scores import MODES
from benchmarks.stacking_halves import halves, passes, scores, without_lossless
from recal import AutoCalibration, TemperatureScaling, ViewStacking, read_views
from recal.calibrators import CalibrationEnsemble
from recal.calibrators.base import Calibrator
from recal.comparison.tables import markdown_table

HEAD = (
    "network",
    "method",
    "halves",
    "NLL",
    "Brier",
    "AURC",
    "errors",
    "ECE, TS to method",
    "passes",
    "worst NLL",
)
LOSSY = "-lossy"
AUTO_HALVES = 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("study"))
    parser.add_argument("--halves", type=int, default=10)
    parser.add_argument("--size", type=int, default=10**9, help="fit on at most this many rows")
    parser.add_argument("--lossy", action="store_true", help="leave out mirror and shift")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.out.mkdir(exist_ok=True)
    rows = [
        [path.stem, *row]
        for path in options.files
        for row in table_rows(
            network(path, options.halves, options.size, options.lossy, options.out)
        )
    ]
    print("\n".join(markdown_table(HEAD, rows)))


def network(path: Path, count: int, size: int, lossy: bool, out: Path) -> dict[str, Any]:
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
    return found


def table_rows(found: dict[str, Any]) -> list[list[str]]:
    """Return one row per method: its changes against temperature scaling in per cent."""
    rows = []
    for name, results in found.items():
        seeds = sorted(set(results) & set(found["ts"]), key=int)
        if name == "ts" or not seeds:
            continue
        plain, own = (
            np.array([found[key][seed]["scores"] for seed in seeds]) for key in ("ts", name)
        )
        nll, brier, aurc, _, error = 100 * (own.mean(axis=0) / plain.mean(axis=0) - 1)
        worst = 100 * (own[:, 0] / plain[:, 0] - 1).max()
        cost = np.mean([results[seed]["passes"] for seed in seeds])
        changes = [f"{value:+.2f}" for value in (nll, brier, aurc, error)]
        rows.append([
            name, str(len(seeds)), *changes, f"{plain[:, 3].mean():.4f} to {own[:, 3].mean():.4f}", f"{cost:.2f}",
            f"{worst:+.2f}",
        ])  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
