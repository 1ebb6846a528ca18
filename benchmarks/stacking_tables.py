"""The tables and figures of `benchmarks.stacking_study`, from its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from recal.comparison.tables import markdown_table

Rows = dict[str, Any]
Store = dict[str, dict[str, Rows]]
RELATIVE = ("nll", "brier", "aurc")
HEADS = ["NLL", "Brier", "AURC", "ECE", "errors", "automated at 1 / 2 / 5 % errors", "passes"]
DAMAGED = (
    "ts",
    "recal",
    "sms",
    "tta, temperature",
    "stack",
    "stack, views that lose nothing",
    "stack, free",
)


def change(row: Rows, base: Rows, score: str) -> tuple[float, float]:
    """Return the mean paired difference to the base in per cent of its mean, and its standard
    error.
    """
    count = len(row[score])
    value, reference = np.array(row[score]), np.array(base[score][:count])
    difference = 100 * (value - reference) / reference.mean()
    error = difference.std(ddof=1) / np.sqrt(count) if count > 1 else np.nan
    return float(difference.mean()), float(error)


def signed(row: Rows, base: Rows, score: str) -> str:
    mean, error = change(row, base, score)
    return f"{mean:+.1f}" if np.isnan(error) else f"{mean:+.1f} ± {1.96 * error:.1f}"


def cells(row: Rows, base: Rows) -> list[str]:
    parts = [
        f"{np.mean(row[score]):.4f}" if row is base else signed(row, base, score)
        for score in RELATIVE
    ]
    covered = " / ".join(
        f"{100 * np.mean(row[f'coverage at {risk}']):.1f}" for risk in ("0.01", "0.02", "0.05")
    )
    rest = [f"{np.mean(row['ece']):.4f}", f"{100 * np.mean(row['error_rate']):.2f} %", covered]
    return [*parts, *rest, f"{np.mean(row['passes']):.2f}"]


def rows_of(rows: Rows) -> dict[str, Rows]:
    return {name: row for name, row in rows.items() if not name.startswith("_")}


def section(title: str, words: str, store: Store, part: str) -> list[str]:
    lines = [f"## {title}", "", words, ""]
    for file, rows in store.get(part, {}).items():
        named, chosen = rows_of(rows), rows.get("_chosen", {})
        base = named.get("ts")
        table = []
        for name, row in named.items():
            against = base if base is not None else named[name.replace("stack", "ts")]
            picked = ", ".join(
                f"{view} {count}x" for view, count in list(chosen.get(name, {}).items())[:4]
            )
            table.append([name, *cells(row, against), picked])
        lines += [f"**{file}**", "", *markdown_table(["", *HEADS, "views used"], table), ""]
    return lines


def damage(store: Store) -> list[str]:
    lines = [
        "## Under damage",
        "",
        "Fitted on clean held-out images, tested on damaged ones. Accuracy, NLL and ECE of temperature scaling; then "
        "the change of NLL / AURC in per cent, and the ECE.",
        "",
    ]
    folders = dict.fromkeys(name.split("/")[0] for name in store.get("damage", {}))
    for folder in folders:
        table = []
        for name, rows in store["damage"].items():
            if name.split("/")[0] != folder:
                continue
            base = rows["ts"]
            text = f"{1 - base['error_rate'][0]:.3f} / {base['nll'][0]:.3f} / {base['ece'][0]:.3f}"
            others = [rows[method] for method in DAMAGED[1:]]
            table.append([name.split("/")[1], text, *(_damage_cell(row, base) for row in others)])
        lines += [f"**{folder}**", "", *markdown_table(["images", "ts", *DAMAGED[1:]], table), ""]
        used = next(
            iter(rows for name, rows in store["damage"].items() if name.startswith(folder))
        )["_chosen"]
        lines += [
            f"Views used by {name}: {', '.join(views) or 'none'}." for name, views in used.items()
        ] + [""]
    return lines


def _damage_cell(row: Rows, base: Rows) -> str:
    changes = " / ".join(f"{change(row, base, score)[0]:+.1f}" for score in ("nll", "aurc"))
    return f"{changes}, {row['ece'][0]:.3f}"


def write(store: Store, out: Path, figures: Path | None) -> None:
    against = "Change against temperature scaling in per cent; the row `ts` has its values. ± is a 95 % interval."
    lines = ["# Views of images: the tables", ""]
    lines += section("Methods", against, store, "methods")
    lines += section("Number of views", "Without a gate.", store, "views")
    lines += section("Gate", "At most three views.", store, "gate")
    lines += section(
        "Fitting samples",
        "Each size against temperature scaling on the same samples.",
        store,
        "size",
    )
    lines += damage(store)
    out.write_text("\n".join(lines).rstrip() + "\n")
    if figures is not None:
        draw(store, figures)


def draw(store: Store, folder: Path) -> None:
    """Draw NLL against the number of views, against passes, and against n."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "recal", "svg.fonttype": "none", "font.size": 9}
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.0), layout="constrained")
    for file, rows in store.get("views", {}).items():
        named = rows_of(rows)
        for pool, style in (("any", "-"), ("lossy", "--")):
            points = [
                (int(name[-1]), change(row, named["ts"], "nll")[0])
                for name, row in named.items()
                if name.startswith(pool)
            ]
            if points:
                axes[0].plot(*zip(*points), style, marker="o", ms=3, label=f"{file}, {pool} views")
    for file, rows in store.get("gate", {}).items():
        named = rows_of(rows)
        points = sorted(
            (float(np.mean(row["passes"])), change(row, named["ts"], "nll")[0])
            for name, row in named.items()
            if name != "gate auto"
        )
        axes[1].plot(*zip(*points), marker="o", ms=3, label=file)
    for file, rows in store.get("size", {}).items():
        named = rows_of(rows)
        points = [
            (int(name.split("= ")[1]), change(row, named[name.replace("stack", "ts")], "nll")[0])
            for name, row in named.items()
            if name.startswith("stack")
        ]
        axes[2].plot(*zip(*points), marker="o", ms=3, label=file)
    axes[2].set_xscale("log")
    axes[2].set_xticks([300, 1000, 5000], labels=["300", "1,000", "5,000"])
    axes[2].minorticks_off()
    for axis, words in zip(
        axes, ("views, at most", "extra passes per answer", "fitting samples"), strict=True
    ):
        axis.axhline(0, color="0.6", lw=0.8)
        axis.set(xlabel=words, ylabel="NLL against temperature scaling, %")
        axis.legend(fontsize=6, frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "views.svg", metadata={"Date": None})
