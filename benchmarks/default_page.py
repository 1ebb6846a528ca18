"""The page of the default: docs/results/default.md from what `benchmarks.default_study` kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arena.page import HEAD
from benchmarks.arena.page import _groups as by_group
from benchmarks.arena.scores import JUDGED, MODES, Scores
from benchmarks.arena.summary import BY_CLASSES, BY_MISTAKES, PANEL, Problem, summarise
from recal.comparison.tables import markdown_table

INTRO = """# The default beside every method

`AutoCalibration` (`auto`) is what `recal fit` does where no method is named; `CalibrationEnsemble` (`ensemble`) is what
it fits. This page shows both beside the other methods, on small real problems and on networks. Lower is better for
NLL, Brier score and AURC; every change is in per cent of the score of temperature scaling (TS) unless a table says
otherwise.

These commands make the figures; the files are not part of the project. Runs can be ended early: tables show the rows
and halves that were run.

```bash
python -m benchmarks.default_study arena arena.npz --rows 0 50 100 200 500 --out study
python -m benchmarks.default_study networks cifar10_resnet8.npz cifar10_resnet32.npz fashionmnist_cnn.npz --out study
python -m benchmarks.default_study networks cifar10_resnet32.npz --lossy --out study
python -m benchmarks.default_study networks imagenet_mobilenet.npz --out study
python -m benchmarks.default_study page --out study > docs/results/default.md
```

## What was looked at before which choice

- The rule for weights (pseudo-counts, a member alone) was chosen on every second data set of `arena.npz`, in
  alphabetical order, with all rows and with 100, answers kept. About 55 rules were compared there. The other data sets
  were looked at twice: once with six of these rules, which confirmed the choice, and once for the rule that a member
  needs half of the weight to be used alone. See [decision 22](../decisions/0022-weights-by-expected-loss.md).
- That last rule was made after ten halves of Fashion-MNIST had been seen, where `beta` alone had lost 2.3 % in one.
- The stack on top of the mixture takes the views that `ViewStacking` takes. That, and structured scaling instead of the
  mixture, was chosen on halves of the two CIFAR-10 networks, seven of which the table below shows too: its figures are
  somewhat optimistic. About ten variants were compared.
- Halves of one file are complements: what one half has too much of, the other lacks. A method that follows chance in
  the fitting half is punished twice, so a gain of zero shows as a small loss.
- ImageNet was looked at for nothing.
"""


def page(folder: Path) -> str:
    lines = [INTRO]
    arenas = sorted(folder.glob("arena-*.json"), key=lambda file: (file.stem != "arena-all", len(file.stem), file.stem))
    for file in arenas[:1]:
        lines += _whole_arena(Scores(file))
    lines += _by_rows(arenas)
    lines += _networks(sorted(folder.glob("network-*.json")))
    return "\n".join(lines).rstrip() + "\n"


def _whole_arena(kept: Scores) -> list[str]:
    names = (*JUDGED, *PANEL)
    problems = {mode: kept.problems(mode) for mode in MODES}
    data = len({problem.data for problem in problems["kept"]})
    lines = [
        f"## {len(kept.found)} small problems",
        "",
        f"{data} data sets, four classifiers on each, 305 to 3,200 calibration rows. A method wins a comparison where "
        f"its NLL is lower than that of a method of the panel (the model as it is and {len(PANEL) - 1} methods), "
        "without itself; a tie counts half. Intervals come from drawing data sets anew.",
        "",
    ]
    for mode in MODES:
        lines += [f"### Answers {mode}", "", *_methods(problems[mode], names), ""]
    short = ("ts", *JUDGED, "ets", "svs", "sms", "beta", "isotonic")
    lines += by_group("classes", BY_CLASSES, problems["kept"], short)
    lines += by_group("mistakes in the calibration set", BY_MISTAKES, problems["kept"], short)
    return lines


def _methods(problems: Sequence[Problem], names: Sequence[str]) -> list[str]:
    rows = []
    for name in sorted(names, key=lambda name: -summarise(problems, name).wins):
        line, raw = summarise(problems, name), summarise(problems, name, "none")
        (low, high), (least, most) = line.wins_interval, line.mean_interval
        rows.append([
            name, f"{line.wins:.1f} [{low:.1f}, {high:.1f}]", f"{line.mean:+.1f} [{least:+.1f}, {most:+.1f}]",
            f"{line.median:+.1f}", f"{line.worst:+.1f}", f"{line.worse} of {len(problems)}", f"{raw.mean:+.1f}",
            f"{raw.median:+.1f}", f"{raw.worst:+.1f}",
        ])  # fmt: skip
    return list(markdown_table(HEAD[:-1], rows))


def _by_rows(files: list[Path]) -> list[str]:
    rows = []
    for file in files:
        kept = Scores(file)
        for mode in MODES:
            problems = kept.problems(mode)
            for name in (*JUDGED, "ets", "svs", "sms", "ts"):
                line, raw = summarise(problems, name), summarise(problems, name, "none")
                rows.append([
                    file.stem.split("-")[1], mode, name, f"{line.wins:.1f}", f"{line.mean:+.1f}", f"{line.median:+.1f}",
                    f"{line.worst:+.1f}", f"{line.worse} of {len(problems)}", f"{raw.mean:+.1f}", f"{raw.worst:+.1f}",
                ])  # fmt: skip
    head = (
        "calibration rows", "answers", "method", "win %", "NLL against TS, mean %", "median", "worst", "> 1 % worse",
        "against uncalibrated, mean %", "worst",
    )  # fmt: skip
    return ["## By calibration rows", "", *markdown_table(head, rows), ""]


def _networks(files: list[Path]) -> list[str]:
    rows = []
    for file in files:
        found: dict[str, dict[str, Any]] = json.loads(file.read_text())
        for mode in MODES:
            for name in (f"stack {mode}", f"ensemble {mode}", f"auto {mode}"):
                if found.get(name):
                    rows.append([file.stem.removeprefix("network-"), *_network(name, found, f"stack {mode}")])
    head = (
        "network", "method", "halves", "NLL", "Brier", "AURC", "error", "ECE of TS", "ECE", "passes",
        "beyond stack: NLL", "Brier", "AURC", "NLL lower in", "worst NLL", "views",
    )  # fmt: skip
    return [
        "## Networks",
        "",
        "Fitted to one random half, judged on the other. `stack` is `ViewStacking`. Passes are forward passes per "
        'answer beyond the first. "Beyond stack" is the paired difference to `stack`, in per cent of the score of TS.',
        "",
        *markdown_table(head, rows),
        "",
    ]


def _network(name: str, found: dict[str, dict[str, Any]], beside: str) -> list[str]:
    seeds = sorted(set(found[name]) & set(found["ts"]) & set(found[beside]), key=int)
    plain, own, other = (np.array([found[key][seed]["scores"] for seed in seeds]) for key in ("ts", name, beside))
    change = 100 * (own.mean(axis=0) / plain.mean(axis=0) - 1)
    beyond = 100 * (own - other).mean(axis=0) / plain.mean(axis=0)
    worst = 100 * (own[:, 0] / plain[:, 0] - 1).max()
    passes = np.mean([found[name][seed]["passes"] for seed in seeds])
    picked = Counter("+".join(found[name][seed]["views"]) or "none" for seed in seeds).most_common(2)
    nll, brier, aurc, _, error = change
    paired = [f"{beyond[place]:+.2f}" for place in range(3)] + [f"{int((own[:, 0] < other[:, 0]).sum())}"]
    return [
        name, str(len(seeds)), f"{nll:+.2f}", f"{brier:+.2f}", f"{aurc:+.2f}", f"{error:+.2f}",
        f"{plain[:, 3].mean():.4f}", f"{own[:, 3].mean():.4f}", f"{passes:.2f}",
        *(["", "", "", ""] if name == beside else paired), f"{worst:+.2f}",
        ", ".join(f"{views} ({count})" for views, count in picked),
    ]  # fmt: skip
