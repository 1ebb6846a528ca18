"""Every calibrator on real views: random halves, one to fit and one to test, and a page with the table.

    python -m benchmarks.rivals_quality VIEWS.npz ... --halves 5 --out docs/results

Writes docs/results/methods-<file>.md for each file of views.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from recal import Views, read_views
from recal.calibrators import CALIBRATORS
from recal.calibrators.base import Calibrator
from recal.calibrators.machinery.probabilities import bounded_probs, softmax
from recal.calibrators.temperature import TemperatureScaling
from recal.comparison.tables import markdown_table
from recal.errors import FewSamplesWarning, RecalError
from recal.metrics import aurc, brier, classwise_ece, ece, error_rate, nll

METRICS = (("ECE", ece), ("classwise ECE", classwise_ece), ("Brier", brier), ("NLL", nll), ("AURC", aurc))
COLUMNS = (*(title for title, _ in METRICS), "error %", "fit s")
NLL, ERROR = COLUMNS.index("NLL"), COLUMNS.index("error %")


@dataclass
class Row:
    """One method: its figures, a row for each half, or why it has none."""

    name: str
    title: str
    keeps: str
    figures: list[list[float]] = field(default_factory=list)
    refused: str = ""
    warned: bool = False
    beta: list[float] = field(default_factory=list)  # of each half, where the method is one temperature

    def add(self, found: dict[str, Any]) -> None:
        self.figures.append(found["figures"])
        self.warned |= found["warned"]
        self.beta += found["beta"]

    def mean(self, column: int) -> float:
        return float(np.mean(self.figures, axis=0)[column])


def measure(probs: np.ndarray, labels: np.ndarray, seconds: float) -> list[float]:
    return [*(float(metric(probs, labels)) for _, metric in METRICS), 100 * float(error_rate(probs, labels)), seconds]


def make(method: type[Calibrator], seed: int) -> Calibrator:
    seeded = "random_state" in inspect.signature(method).parameters
    return method(random_state=seed) if seeded else method()


def run(views: Views, halves: int, only: set[str], kept: Path | None) -> list[Row]:
    """Fit and test every method on each half; the halves are the same for all. What `kept` holds is not run again."""
    plain = Row("-", "uncalibrated", "yes")
    rows = {m: Row(m.short_name, m.__name__, "yes" if m.keeps_accuracy else "no") for m in CALIBRATORS}
    rows = {m: row for m, row in rows.items() if not only or row.name in only}
    for half in range(halves):
        order = np.random.default_rng(half).permutation(len(views))
        fitting, testing = (views[np.sort(part)] for part in np.array_split(order, 2))
        truth = testing.labels
        assert truth is not None, "the views must hold labels"
        plain.figures.append(measure(bounded_probs(softmax(testing.logits)), truth, 0.0))
        for method, row in rows.items():
            if row.refused:
                continue
            file = kept / f"{row.name}-{half}.json" if kept else None
            if file and file.exists():
                row.add(json.loads(file.read_text()))
                continue
            try:
                row.add(found := trial(method, half, fitting, testing, truth))
            except RecalError as error:
                row.refused = str(error)
                continue
            if file:
                file.write_text(json.dumps(found))
            print(f"half {half + 1}  {row.name:<12} NLL {found['figures'][NLL]:.4f}", flush=True)
    return [plain, *rows.values()]


def trial(method: type[Calibrator], half: int, fitting: Views, testing: Views, truth: np.ndarray) -> dict[str, Any]:
    """Fit one method on one half and return what the page needs of it, as plain values."""
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = make(method, half).fit(fitting)
    seconds = time.process_time() - start
    return {
        "figures": measure(model.predict_proba(testing), truth, seconds),
        "warned": any(issubclass(w.category, FewSamplesWarning) for w in caught),
        "beta": [model.beta_] if isinstance(model, TemperatureScaling) else [],
    }


def page(stem: str, views: Views, rows: list[Row], halves: int) -> str:
    """Return the page: one table, the least NLL first, then why some methods do not gain and what was left out."""
    fitted = sorted((row for row in rows if row.figures), key=lambda row: row.mean(NLL))
    lines = [
        f"# Every method on `{stem}`",
        "",
        f"{views.n_samples:,} samples of {views.n_classes:,} classes in {halves} random halves: each method is fitted "
        "on one half with its default settings and tested on the other. Mean over the halves, with the standard "
        "deviation for ECE and NLL; `fit s` is CPU seconds, on a machine that others used too. The least NLL comes "
        "first.",
        "",
        f"Made by `python -m benchmarks.rivals_quality {stem}.npz --halves {halves}`.",
        "",
    ]
    body = []
    for row in fitted:
        mean, spread = np.mean(row.figures, axis=0), np.std(row.figures, axis=0)
        cells = [
            f"{mean[0]:.4f} ± {spread[0]:.4f}",
            *(f"{mean[column]:.{_decimals(rows[0].mean(column))}f}" for column in (1, 2)),
            f"{mean[NLL]:.4f} ± {spread[NLL]:.4f}",
            f"{mean[4]:.4f}",
            f"{mean[5]:.2f}",
            "" if row.name == "-" else f"{mean[6]:.2f}",
        ]
        name = row.title if row.name == "-" else f"{row.title} (`{row.name}`)"
        body.append([f"{name}{' ¹' if row.warned else ''}", *cells, row.keeps])
    head = ["method", *COLUMNS, "keeps accuracy"]
    lines += markdown_table(head, body, align="l" + "r" * len(COLUMNS))
    if any(row.warned for row in fitted):
        lines += ["", "¹ Warns at fit that there are too few samples for parameters of each class alone."]
    lines += explanation(views, fitted, raw=rows[0])
    lines += [f"\n`{row.name}` is not used here: {row.refused}" for row in rows if row.refused]
    missing = [f"`{m.short_name}`" for m in CALIBRATORS if m.short_name not in {row.name for row in rows}]
    lines += ["", "Left out of this run by `--only`: " + ", ".join(missing) + "."] if missing else []
    return "\n".join(lines) + "\n"


def explanation(views: Views, fitted: list[Row], raw: Row) -> list[str]:
    """Return, in Markdown, which methods do not improve the NLL of the uncalibrated model, and why."""
    worse = [row for row in fitted if row is not raw and row.mean(NLL) >= raw.mean(NLL)]
    lines = ["", "## Methods that do not improve the NLL of the uncalibrated model", ""]
    if not worse:
        return [*lines, "None."]
    averaging = [row for row in worse if row.name == "tta"]
    starved = [row for row in worse if row.warned]
    others = [row for row in worse if not row.warned and row.name != "tta"]
    if others:
        change = [100 * (row.mean(NLL) / raw.mean(NLL) - 1) for row in others]
        text = f"- {_listed(others)}: worse by {min(change):.2f} to {max(change):.2f} %."
        one_number = [row for row in fitted if row.name == "ts"]
        if one_number and one_number[0] in others:
            text += (
                f" The model is nearly calibrated as it is: temperature scaling finds {_range(one_number[0].beta)} for "
                "1/T, where 1 changes nothing, so there is little to gain, and what a method learns of one "
                f"half's chance costs more. (The uncalibrated NLL differs between halves by "
                f"{100 * np.std(raw.figures, axis=0)[NLL] / raw.mean(NLL):.1f} %.)"
            )
        lines += [text]
    if starved:
        each = views.n_samples // 2 / views.n_classes
        lines += [
            f"- {_listed(starved)}: they learn numbers of their own for every class, and here each class has "
            f"{each:.3g} sample{'s' if each != 1 else ''} on average to learn them from, and many have none. Each of "
            "them says so when it is fitted. That they run does not make them a choice at this size."
        ]
    if averaging:
        lines += [
            "- ViewAveraging: averaging over the views of the file, strong zooms and darkening among them, is known to "
            "do harm, and it changes predictions: most views lost what the model needs. "
            f"The error rises from {raw.mean(ERROR):.1f} to {averaging[0].mean(ERROR):.1f} %."
        ]
    return lines


def _decimals(value: float) -> int:
    """How many decimals show four digits of `value`: some scores are divided by the number of classes."""
    return 3 - math.floor(math.log10(value))


def _listed(rows: list[Row]) -> str:
    return ", ".join(row.title for row in rows)


def _range(values: list[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("views", nargs="+", type=Path)
    parser.add_argument("--halves", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="short names of the methods to run; all by default")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--keep", type=Path, help="a folder for what is done, so that a run can be stopped and resumed")
    settings = parser.parse_args()
    settings.out.mkdir(parents=True, exist_ok=True)
    for path in settings.views:
        views = read_views(path)
        kept = settings.keep / path.stem if settings.keep else None
        if kept:
            kept.mkdir(parents=True, exist_ok=True)
        rows = run(views, settings.halves, set(settings.only), kept)
        (settings.out / f"methods-{path.stem}.md").write_text(page(path.stem, views, rows, settings.halves))


if __name__ == "__main__":
    main()
