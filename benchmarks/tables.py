"""The paper's tables for views files: one row for each network, one column for each method.

    python -m benchmarks.tables VIEWS.npz ... --splits 10 --out docs/results

Each file is cut into random halves, the same for every method. ReCal is fitted once for each kind of transformation
that the file holds, and once with all. Group tables are of the whole file, after temperature scaling and with the
copy's own confidence, as in the paper's supplement.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from recal import ReCal, Views, read_views
from recal.comparison import Comparison, compare
from recal.comparison.tables import markdown_table, number, seconds, signed
from recal.metrics import LABELS
from recal.reporting.data.groups import GROUP_LABELS, group_study

METRICS = ("ece", "brier", "error_rate", "nll", "aurc")
# With so many classes a matrix of parameters is out of reach of a few thousand rows, and of patience.
MANY_CLASSES = 200
SLOW_WITH_MANY = ("ms-odir", "dir-odir")


def of_kind(views: Views, kind: str) -> Views:
    """The same rows with the transformations of one kind."""
    chosen = {t: views.transformed(t) for t in views.transforms if str(t).startswith(f"{kind}:")}
    return Views(views.logits, chosen, views.labels)


def compare_file(views: Views, methods: Sequence[str], splits: int) -> list[Comparison]:
    """One comparison for the methods that read logits, and one for ReCal with each pool; all on the same splits."""
    few = [m for m in methods if views.n_classes <= MANY_CLASSES or m not in SLOW_WITH_MANY]
    found = [compare(few, views, splits=splits)]
    kinds = list(dict.fromkeys(str(t).split(":")[0] for t in views.transforms))
    for kind in kinds:
        part = of_kind(views, kind)
        found.append(compare({f"recal ({kind}, {len(part.transforms)})": ReCal()}, part, splits=splits))
    if len(kinds) > 1:
        found.append(compare({"recal (all)": ReCal()}, views, splits=splits))
    return found


def cells(comparisons: Sequence[Comparison], metric: str) -> dict[str, str]:
    """Method to value, best in bold and second best in italics, with the difference to TS where it is real."""
    rows = {row.method: row for one in comparisons for row in one.rows(metric)}
    digits = comparisons[0].digits(metric)
    levels = sorted({round(row.value, digits) for row in rows.values() if np.isfinite(row.value)})
    texts = {}
    for method, row in rows.items():
        text, level = number(row.value, digits), round(row.value, digits)
        if len(levels) > 1 and level == levels[0]:
            text = f"**{text}**"
        elif len(levels) > 1 and level == levels[1]:
            text = f"*{text}*"
        texts[method] = text + (f" ({signed(row.difference, digits)})" if row.differs else "")
    return texts


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(markdown_table(head, rows)) + "\n"


def groups_of(views: Views, name: str) -> str:
    study = group_study(views, scaled=True, confidence_at="own")
    rows = []
    for spec, sizes, errors in study.lines():
        rows.append([spec, *(f"{number(error)} ({size:,})" for size, error in zip(sizes, errors))])
    ranks = [[label, *map(str, row)] for label, row in zip(GROUP_LABELS.values(), study.ranks.tolist())]
    return (
        f"### {name}: ECE (size) of each group\n\nTemperature {study.temperature:.3f}.\n\n"
        + table(["transformation", *GROUP_LABELS.values()], rows)
        + "\nHow often each group's ECE ranks so over the transformations:\n\n"
        + table(["group", "smallest", "second", "third", "largest"], ranks)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("views", type=Path, nargs="+")
    parser.add_argument("--methods", default="ts,vs,ms-odir,dir-odir,ets,svs,sms")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    loaded = {path.stem: read_views(path) for path in given.views}
    results = {}
    for name, views in loaded.items():
        print(f"{name}: {views}", file=sys.stderr, flush=True)
        results[name] = compare_file(views, given.methods.split(","), given.splits)
    methods = list(dict.fromkeys(m for found in results.values() for one in found for m in one.methods))
    command = shlex.join(
        ["python", "-m", "benchmarks.tables", *(p.name for p in given.views), *sys.argv[1 + len(given.views) :]]
    )
    lines = [
        "# Results on three real networks\n",
        f"Made by `{command}`.\n",
        f"Means over {given.splits} random halves, the same for every method. **Best**, *second best*; in brackets the "
        "paired difference to temperature scaling (ts) where its 95 % interval, by Nadeau and Bengio's correction, "
        "excludes zero. A dash: not run there, or not defined.\n",
        "Files: "
        + "; ".join(f"{name}, {views.n_samples:,} x {views.n_classes:,}" for name, views in loaded.items())
        + ".\n",
    ]
    for metric in METRICS:
        rows = []
        for name, found in results.items():
            texts = cells(found, metric)
            rows.append([name, *(texts.get(method, "–") for method in methods)])
        lines.append(f"## {LABELS[metric]}\n\n" + table(["network", *methods], rows))
    times, passes = [], []
    for name, found in results.items():
        took = {m: seconds(one.fit_seconds[:, i].mean()) for one in found for i, m in enumerate(one.methods)}
        need = {m: str(one.passes[i]) for one in found for i, m in enumerate(one.methods)}
        times.append([name, *(took.get(method, "–") for method in methods)])
        passes.append([name, *(need.get(method, "–") for method in methods)])
    lines.append("## Time to fit, CPU\n\n" + table(["network", *methods], times))
    lines.append("## Forward passes for one new input\n\n" + table(["network", *methods], passes))
    lines.append("## Groups\n\n" + "\n".join(groups_of(views, name) for name, views in loaded.items()))
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "tables.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
