"""The page of the arena: every method, the default by number of mistakes, and a picture."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arena.scores import JUDGED, Scores
from benchmarks.arena.summary import PANEL, Problem, summarise, win_rates_chart
from recal.comparison.results import markdown_table
from recal.reporting.chart import svg

PACKAGES = (
    "numpy", "scikit-learn", "probmetrics", "netcal", "mlxtend", "aeon", "river", "pydataset",
    "rdata",
)  # fmt: skip


def write_page(scores: Scores, about: dict[str, dict[str, Any]], folder: Path) -> Path:
    """Write arena.md and arena.svg; `about` says which data sets count."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = {name: entry for name, entry in scores.found.items() if name.split("/")[0] in about}
    everything = {
        mode: [p for p in scores.problems(mode) if p.data in about] for mode in ("kept", "free")
    }
    names = _names(entries)
    unseen = [p for p in everything["kept"] if not about[p.data]["known"]]
    lines = [
        "# Small real problems (arena)",
        "",
        f"This study compares the methods on {len(entries)} calibration problems: {len(about)} "
        "public data sets with four scikit-learn classifiers each. Half of the rows train the "
        "classifier, a fifth calibrate it, the rest test it. `make arena` repeats the study; it "
        "downloads packages only.",
        "",
        f"Python {platform.python_version()}, {_versions()}.",
        "",
        "- **Win %** is the share of comparisons won against a fixed panel: the uncalibrated model "
        f"and {len(PANEL) - 1} methods ({', '.join(PANEL[1:])}). A tie counts half.",
        "- **Intervals** resample data sets, because classifiers of one data set share its "
        "difficulties.",
        "- **Answers kept**: the same guard keeps the predictions of every method. "
        "**Answers free**: methods may change predictions.",
        "- All methods read the same log-probabilities, with a floor of 1e-12.",
        "- The rules of `ensemble` and `auto` were chosen on other problems. "
        f"{_unseen(unseen, everything['kept'])}",
        "",
        "![Win rates with intervals](arena.svg)",
        "",
        "## Answers kept",
        "",
        *_table(everything["kept"], names, entries),
        "",
        "## Answers free",
        "",
        *_table(
            everything["free"],
            [name for name in names if name in (*JUDGED, *PANEL) or " " in name],
            entries,
        )[:14],
        "",
        *_failures(entries),
    ]
    short = [n for n in ("ts", "auto", "sms", "probmetrics logistic-mix") if n in names]
    lines += _by_mistakes(everything["kept"], short)
    lines += ["## Data sets", "", *_data_sets(about), ""]
    draw(everything["kept"], names, folder / "arena.svg")
    path = folder / "arena.md"
    path.write_text("\n".join(lines))
    return path


def _unseen(unseen: Sequence[Problem], everything: Sequence[Problem]) -> str:
    """Return the result on the data sets that no choice was made on."""
    if not 0 < len(unseen) < len(everything):
        return ""
    line = summarise(unseen, "auto")
    return (
        f"Some of those used the data sets with an asterisk below. Without these, {len(unseen)} "
        f"problems remain: `auto` wins {_with(line.wins, line.wins_interval, '{:.1f}')} % and "
        f"changes the NLL by {line.mean:+.1f} % on average."
    )


def _names(entries: dict[str, Any]) -> list[str]:
    """Return the methods that every problem has: ours, the panel, peers."""
    common = set.intersection(*(set(entry["nll"]["kept"]) for entry in entries.values()))
    first = [*JUDGED, *PANEL]
    return first + sorted(common - set(first))


def _table(problems: Sequence[Problem], names: Sequence[str], entries: dict[str, Any]) -> list[str]:
    rows = []
    for name in sorted(names, key=lambda name: -summarise(problems, name).wins):
        line = summarise(problems, name)
        seconds = np.mean([entries[problem.name]["seconds"][name] for problem in problems])
        rows.append([
            name, _with(line.wins, line.wins_interval, "{:.1f}"),
            _with(line.mean, line.mean_interval, "{:+.1f}"), f"{line.median:+.1f}",
            f"{line.worst:+.1f}", f"{line.worse} of {len(problems)}", f"{seconds:.2f}",
        ])  # fmt: skip
    head = ["method", "win % [95 %]", "NLL against TS, mean % [95 %]", "median", "worst"]
    return markdown_table([*head, "> 1 % worse", "CPU s per fit"], rows)


def _by_mistakes(problems: list[Problem], names: Sequence[str]) -> list[str]:
    rows = []
    for label, low, high in (
        ("below 20", 0, 20),
        ("20 to 59", 20, 60),
        ("60 and more", 60, np.inf),
    ):
        part = [problem for problem in problems if low <= problem.mistakes < high]
        for name in names if part else ():
            line = summarise(part, name)
            rows.append([
                label, str(len(part)), name, f"{line.wins:.1f}", f"{line.mean:+.1f}",
                f"{line.median:+.1f}", f"{line.worst:+.1f}", str(line.worse),
            ])  # fmt: skip
    title = "mistakes in the calibration set"
    head = [title, "problems", "method", "win %", "NLL against TS, mean %", "median", "worst"]
    table = markdown_table([*head, "> 1 % worse"], rows)
    return [f"## By {title} (answers kept)", "", *table, ""]


def _with(value: float, interval: tuple[float, float], form: str) -> str:
    return f"{form.format(value)} [{form.format(interval[0])}, {form.format(interval[1])}]"


def _failures(entries: dict[str, Any]) -> list[str]:
    failed = [word for entry in entries.values() for word in entry["failed"]]
    if not failed:
        return []
    counts = ", ".join(f"{word} ({failed.count(word)})" for word in sorted(set(failed)))
    return [f"Fits that failed and count as uncalibrated: {counts}.", ""]


def _data_sets(about: dict[str, dict[str, Any]]) -> list[str]:
    """Return one line per source, each data set with its number of classes."""
    sources: dict[str, list[str]] = {}
    for name, one in sorted(about.items()):
        star = r"\*" if one["known"] else ""
        sources.setdefault(one["origin"].rsplit(" ", 1)[0], []).append(
            f"{name}{star} ({one['classes']})"
        )
    return [f"- {source}: {', '.join(names)}" for source, names in sources.items()]


def _versions() -> str:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def draw(problems: list[Problem], names: Sequence[str], path: Path, most: int = 14) -> None:
    """Draw win rates with their intervals, predictions kept: the best methods, temperature scaling
    and the model.
    """
    lines = {name: summarise(problems, name) for name in names}
    order = sorted(names, key=lambda name: -lines[name].wins)
    shown = [name for place, name in enumerate(order) if place < most or name in ("ts", "none")]
    chart = win_rates_chart(
        [(name, lines[name].wins, *lines[name].wins_interval) for name in shown]
    )
    path.write_text(svg(chart, alone=True) + "\n", encoding="utf-8")
