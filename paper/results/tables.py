"""Results as the paper lays them out: a row per network, a column per method, the paper's own row
beneath.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paper.results.groups import ranks
from paper.results.paper import COMPARED, paper_groups, printed
from recal.comparison.results import markdown_table

# network -> protocol -> method -> what `fits.judge` returned
Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
PAPER_SPLIT = "paper"


@dataclass(frozen=True)
class Metric:
    """How one of the paper's tables is printed."""

    key: str  # in our results
    title: str
    scale: float
    digits: int


METRICS: dict[str, Metric] = {
    "ece": Metric("ece", "ECE (15 bins)", 1.0, 5),
    "brier": Metric("brier", "Brier score / number of classes", 1.0, 6),
    "error": Metric("error_rate", "Error rate, %", 100.0, 2),
    "time": Metric("seconds", "Learning time, s (ours: CPU seconds of one process)", 1.0, 3),
}
# What the paper does not print: it needs no bins, and tells the methods apart better than ECE.
BEYOND: dict[str, Metric] = {
    "nll": Metric("nll", "Negative log-likelihood (not in the paper)", 1.0, 5),
    "aurc": Metric("aurc", "Area under the risk-coverage curve (not in the paper)", 1.0, 5),
}


@dataclass(frozen=True)
class Table:
    """Cells of text under a title; `note` says what a reader must know."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", *markdown_table(self.columns, self.rows)]
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([cell.replace("**", "") for cell in row] for row in self.rows)
        return text.getvalue()


def paper_table(name: str, dataset: str, results: Results) -> Table:
    """One of the paper's tables, or one in their layout: learnt from held-out images, judged on the
    test images.
    """
    metric = (METRICS | BEYOND)[name]
    rows = []
    for network, protocols in results.items():
        found = protocols[PAPER_SPLIT]
        rows.append(
            [
                f"{dataset} {network}",
                *_cells({m: _value(r, metric) for m, r in found.items()}, metric),
            ]
        )
        if metric.key != "seconds":
            rows.append(
                ["95 % interval", *(_interval(found.get(m.name), metric) for m in COMPARED)]
            )
        theirs = printed(name, dataset, network)
        if theirs is not None:
            digits = 2 if name in ("time", "error") else metric.digits
            shown = Metric(metric.key, metric.title, 1.0, digits)
            rows.append([f"paper: {theirs[0].replace('/', ' ')}", *_cells(theirs[1], shown)])
    note = (
        "Bold: the least of the row. Intervals: bootstrap over the test images."
        if name != "time"
        else ""
    )
    return Table(metric.title, ["", *(method.name for method in COMPARED)], rows, note)


def halves_table(name: str, dataset: str, results: Results) -> Table | None:
    """The same over random halves of the test images: mean, range, paired difference to TS."""
    metric = (METRICS | BEYOND)[name]
    rows = []
    count = 0
    for network, protocols in results.items():
        halves = {p: found for p, found in protocols.items() if p != PAPER_SPLIT}
        if not halves:
            continue
        count = len(halves)
        values = {
            method.name: np.array(
                [_value(found[method.name], metric) for found in halves.values()], dtype=float
            )
            for method in COMPARED
        }
        means = {m: None if np.isnan(v).any() else float(v.mean()) for m, v in values.items()}
        rows.append([f"{dataset} {network}: mean", *_cells(means, metric)])
        rows.append(["lowest to highest", *(_range(values[m.name], metric) for m in COMPARED)])
        if name != "time":
            against = {m: v - values["TS"] for m, v in values.items()}
            rows.append(["minus TS: mean", *(_signed(against[m.name], metric) for m in COMPARED)])
            below = [
                f"{int((against[m.name] < 0).sum())} of {count}" if m.name != "TS" else ""
                for m in COMPARED
            ]
            rows.append(["below TS in", *below])
    if not rows:
        return None
    columns = ["", *(method.name for method in COMPARED)]
    return Table(f"{metric.title}: {count} random halves of the test images", columns, rows)


def group_table(network: str, kind: str, found: Mapping[str, Any]) -> Table:
    """The paper's table of the groups' ECE and sizes for one kind of transformation, beside the
    paper's ResNet152.
    """
    columns = [kind, *(f"ECE {g}" for g in "1234"), *(f"samples {g}" for g in "1234")]
    columns += ["paper, ImageNet ResNet152: ECE", "samples"]
    theirs = paper_groups()[kind]
    rows = []
    for strength, row in found["kinds"][kind].items():
        errors = {g: row["ece"][g] for g in "1234"}
        least = min((value for value in errors.values() if value is not None), default=None)
        cells = [
            "-" if e is None else f"**{e:.4f}**" if e == least else f"{e:.4f}"
            for e in errors.values()
        ]
        sizes = [f"{row['count'][g]:,}" for g in "1234"]
        paper_errors = " / ".join(f"{theirs[strength]['ece'][g]:.4f}" for g in "1234")
        paper_sizes = " / ".join(f"{theirs[strength]['count'][g]:,}" for g in "1234")
        rows.append([strength, *cells, *sizes, paper_errors, paper_sizes])
    note = (
        f"After one temperature ({found['temperature']:.3f}); ECE of all test images "
        f"{found['ece']:.4f}. Groups: 1 changed and rose, 2 changed and did not rise, 3 kept and "
        "rose, 4 kept and did not rise."
    )
    return Table(f"{network}: groups by {kind}", columns, rows, note)


def rank_table(network: str, found: Mapping[str, Any]) -> Table:
    """How often each group has the least, second, third and largest ECE, beside the paper's
    ResNet152.
    """
    rows = []
    theirs = paper_groups()
    for kind, table in found["kinds"].items():
        for group, counts in ranks(table).items():
            paper = ranks(theirs[kind])[group]
            rows.append([f"{kind}, group {group}", *map(str, counts), " / ".join(map(str, paper))])
    columns = ["", "least ECE", "second", "third", "largest", "paper, ImageNet ResNet152"]
    note = (
        "Groups of fewer than 20 images are not ranked, here and in the paper's column, where that "
        "leaves out group 3 at zoom 0.1 (3 images)."
    )
    return Table(f"{network}: ranks of the groups by ECE", columns, rows, note)


def _value(result: Mapping[str, Any], metric: Metric) -> float | None:
    value = result["seconds"] if metric.key == "seconds" else result["metrics"][metric.key]
    return None if value is None else value * metric.scale


def _cells(values: Mapping[str, float | None], metric: Metric) -> list[str]:
    known = [value for value in values.values() if value is not None]
    least = min(known, default=None)
    cells = []
    for method in COMPARED:
        value = values.get(method.name)
        text = "" if value is None else f"{value:.{metric.digits}f}"
        cells.append(f"**{text}**" if value is not None and value == least else text)
    return cells


def _interval(result: Mapping[str, Any] | None, metric: Metric) -> str:
    if result is None:
        return ""
    low, high = (bound * metric.scale for bound in result["intervals"][metric.key])
    return f"{low:.{metric.digits - 1}f} to {high:.{metric.digits - 1}f}"


def _range(values: Any, metric: Metric) -> str:
    if np.isnan(values).any():
        return ""
    return f"{values.min():.{metric.digits - 1}f} to {values.max():.{metric.digits - 1}f}"


def _signed(values: Any, metric: Metric) -> str:
    return "" if not values.any() else f"{values.mean():+.{metric.digits}f}"
