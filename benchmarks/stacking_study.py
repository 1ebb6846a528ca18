"""What stacking gains, and what it costs: the tables behind docs/stacking.md.

    python -m benchmarks.stacking_study PART --views VIEWS.npz ... --halves 10 --store study.json
    python -m benchmarks.stacking_study damage --views FOLDER ... --store study.json
    python -m benchmarks.stacking_study write --store study.json --out docs/results/images.md

PART is methods, views, gate, size or kinds; each splits a file into random halves, the same for all
methods, fits on one and tests on the other. damage reads folders that `benchmarks.stacking_views`
wrote: it fits on fit.npz and tests on clean.npz and on every damaged set. Results are added to the
store, and stored results are not computed again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal import ReCal, TemperatureScaling, Views, ViewStacking, metrics, read_views
from recal.calibrators import StructuredMatrixScaling, ViewAveraging
from recal.calibrators.base import Calibrator

Results = dict[str, list[float]]
SCORES: dict[str, Callable[..., float]] = {
    name: getattr(metrics, name) for name in ("nll", "brier", "aurc", "ece", "error_rate")
}
RISKS = (0.01, 0.02, 0.05)
# Sets of candidates, from few to many; () means all views.
POOLS: dict[str, tuple[str, ...]] = {
    "mirror": ("flip",),
    "mirror, shifts": ("flip", "shift"),
    "loses nothing": ("flip", "shift", "crop", "zoomin"),
    "zoom": ("zoom",),
    "zoom, brightness": ("zoom", "brightness"),
    "loses nothing, zoom": ("flip", "shift", "crop", "zoomin", "zoom"),
    "loses nothing, zoom, brightness": ("flip", "shift", "crop", "zoomin", "zoom", "brightness"),
    "all": (),
}


def methods() -> dict[str, Calibrator]:
    """Every method that stands in the tables; each is given all views of a file."""
    return {
        "ts": TemperatureScaling(),
        "recal": ReCal(random_state=0),
        "sms": StructuredMatrixScaling(),
        "sms, kept": StructuredMatrixScaling(answers="kept"),
        "tta": ViewAveraging(),
        "tta, temperature": ViewAveraging(temperature=True),
        "stack": ViewStacking(),
        "stack, free": ViewStacking(answers="free"),
    }


def coverage(probs: NDArray[np.float64], y: NDArray[np.intp], risk: float) -> float:
    """Return the largest share of answers, the surest first, among which at most `risk` are wrong."""
    wrong = (probs.argmax(axis=1) != y)[np.argsort(-probs.max(axis=1), kind="stable")]
    shares = np.cumsum(wrong) / np.arange(1, len(y) + 1)
    return float((np.flatnonzero(shares <= risk)[-1:] + 1).sum() / len(y))


def passes(calibrator: Calibrator, views: Views) -> float:
    """Return the forward passes of an answer beyond the first, on average."""
    plan = getattr(calibrator, "plan_", None)
    share = 1.0 if plan is None else float(plan.needs_views(views.logits).mean())
    return share * len(calibrator.needed_transforms())


def scores(calibrator: Calibrator, views: Views) -> dict[str, float]:
    probs, y = calibrator.predict_proba(views), views.labels
    assert y is not None
    found = {name: float(score(probs, y)) for name, score in SCORES.items()}
    found |= {f"coverage at {risk:g}": coverage(probs, y, risk) for risk in RISKS}
    return {**found, "passes": passes(calibrator, views)}


def only(views: Views, kept: Iterable[Any]) -> Views:
    """Return the same samples with some of the views."""
    return Views(
        views.logits, {transform: views.transformed(transform) for transform in kept}, views.labels
    )


def halves(views: Views, count: int, size: int | None = None) -> Iterable[tuple[Views, Views]]:
    for seed in range(count):
        order = np.random.default_rng(seed).permutation(len(views))
        middle = len(views) // 2
        yield views[order[: min(size or middle, middle)]], views[order[middle:]]


class Study:
    """The store: {part: {file: {row: {score: one value per half}}}}."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, dict[str, dict[str, Results]]] = (
            json.loads(path.read_text()) if path.exists() else {}
        )

    def run(
        self,
        part: str,
        file: str,
        row: str,
        calibrator: Calibrator,
        pairs: Iterable[tuple[Views, Views]],
    ) -> None:
        rows = self.found.setdefault(part, {}).setdefault(file, {})
        if row in rows:
            return
        results: Results = {}
        chosen: list[str] = []
        for fitting, testing in pairs:
            fitted = calibrator.fit(fitting)
            for name, value in scores(fitted, testing).items():
                results.setdefault(name, []).append(value)
            if getattr(fitted, "plan_", None) is not None:
                chosen += [str(transform) for transform in fitted.needed_transforms()]
        if part != "methods" or row.startswith("stack"):
            counts = {name: chosen.count(name) for name in dict.fromkeys(chosen)}
            rows_chosen: Any = rows.setdefault("_chosen", {})
            rows_chosen[row] = counts
        rows[row] = results
        self.path.write_text(json.dumps(self.found, indent=1))
        print(part, file, row, f"nll {np.mean(results['nll']):.4f}", flush=True)


def run_methods(study: Study, file: Path, views: Views, count: int) -> None:
    for name, calibrator in methods().items():
        study.run("methods", file.stem, name, calibrator, halves(views, count))
    used = study.found["methods"][file.stem].get("_chosen", {}).get("stack", {})
    if used:  # give rivals only the views that stacking chose, because strong transformations harm an average
        best = only(views, used)
        name = "tta, temperature"
        study.run(
            "methods", file.stem, f"{name}, stack's views", methods()[name], halves(best, count)
        )


def run_views(study: Study, file: Path, views: Views, count: int) -> None:
    lossy = only(views, [t for t in views.transforms if not getattr(t, "keeps_information", False)])
    for pool, held in (("any", views), ("lossy", lossy)):
        if pool == "lossy" and len(held.transforms) == len(views.transforms):
            continue
        for most in range(5):
            calibrator = ViewStacking(max_views=most, gate=None, worth=0.0)
            study.run(
                "views", file.stem, f"{pool}: at most {most}", calibrator, halves(held, count)
            )
    study.run("views", file.stem, "ts", TemperatureScaling(), halves(views, count))


def run_gate(study: Study, file: Path, views: Views, count: int) -> None:
    for gate in (None, 0.999, 0.99, 0.98, 0.95, 0.9, 0.8, "auto"):
        study.run("gate", file.stem, f"gate {gate}", ViewStacking(gate=gate), halves(views, count))  # type: ignore[arg-type]
    study.run("gate", file.stem, "ts", TemperatureScaling(), halves(views, count))


def run_size(study: Study, file: Path, views: Views, count: int) -> None:
    for size in (300, 500, 1000, 2500, 5000):
        if size <= len(views) // 2:
            study.run(
                "size",
                file.stem,
                f"ts, n = {size}",
                TemperatureScaling(),
                halves(views, count, size),
            )
            study.run(
                "size", file.stem, f"stack, n = {size}", ViewStacking(), halves(views, count, size)
            )


def run_kinds(study: Study, file: Path, views: Views, count: int) -> None:
    study.run("kinds", file.stem, "ts", TemperatureScaling(), halves(views, count))
    for kind in dict.fromkeys(str(transform).split(":")[0] for transform in views.transforms):
        held = only(views, [t for t in views.transforms if str(t).split(":")[0] == kind])
        calibrator = ViewStacking(max_views=1, gate=None, no_harm=False, worth=0.0)
        study.run(
            "kinds", file.stem, f"{kind} ({len(held.transforms)})", calibrator, halves(held, count)
        )


def run_pools(study: Study, path: Path, count: int) -> None:
    """Which kinds to offer: sets of candidates, on a file's halves or on a folder's fit.npz and
    clean.npz.
    """
    views = read_views(path / "fit.npz" if path.is_dir() else path)

    def pairs(kept: list[Any]) -> list[tuple[Views, Views]]:
        if path.is_dir():
            return [(only(views, kept), only(read_views(path / "clean.npz"), kept))]
        return list(halves(only(views, kept), count))

    study.run("pools", path.stem, "ts", TemperatureScaling(), pairs([]))
    for name, kinds in POOLS.items():
        held = [t for t in views.transforms if not kinds or str(t).split(":")[0] in kinds]
        if held:
            row = f"{name} ({len(held)})"
            study.run("pools", path.stem, row, ViewStacking(), pairs(held))


def run_damage(study: Study, folder: Path) -> None:
    fitting = read_views(folder / "fit.npz")
    lossless = [t for t in fitting.transforms if getattr(t, "keeps_information", False)]
    rows: dict[str, tuple[Calibrator, list[Any]]] = {
        "ts": (TemperatureScaling(), []),
        "sms": (StructuredMatrixScaling(), []),
        "recal": (ReCal(random_state=0), list(fitting.transforms)),
        "tta, temperature": (ViewAveraging(temperature=True), list(fitting.transforms)),
        "stack": (ViewStacking(), list(fitting.transforms)),
        "stack, views that lose nothing": (ViewStacking(), lossless),
        "stack, free": (ViewStacking(answers="free"), list(fitting.transforms)),
    }
    sets = {
        path.stem: read_views(path) for path in sorted(folder.glob("*.npz")) if path.stem != "fit"
    }
    for name, (calibrator, kept) in rows.items():
        fitted = calibrator.fit(only(fitting, kept))
        for damage, testing in sets.items():
            found = study.found.setdefault("damage", {}).setdefault(f"{folder.name}/{damage}", {})
            found[name] = {score: [value] for score, value in scores(fitted, testing).items()}
            if name.startswith("stack"):
                chosen: Any = found.setdefault("_chosen", {})
                chosen[name] = {str(transform): 1 for transform in fitted.needed_transforms()}
        print("damage", folder.name, name, flush=True)
    study.path.write_text(json.dumps(study.found, indent=1))


PARTS = {
    "methods": run_methods,
    "views": run_views,
    "gate": run_gate,
    "size": run_size,
    "kinds": run_kinds,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=[*PARTS, "pools", "damage", "write"])
    parser.add_argument("--views", type=Path, nargs="*", default=[])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--halves", type=int, default=10)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figures", type=Path)
    arguments = parser.parse_args()
    study = Study(arguments.store)
    for path in arguments.views:
        if arguments.part == "damage":
            run_damage(study, path)
        elif arguments.part == "pools":
            run_pools(study, path, arguments.halves)
        else:
            PARTS[arguments.part](study, path, read_views(path), arguments.halves)
    if arguments.part == "write":
        from benchmarks.stacking_tables import write

        write(study.found, arguments.out, arguments.figures)


if __name__ == "__main__":
    main()
