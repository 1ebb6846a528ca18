"""Write the results of `benchmarks.run` as a page with a picture."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.ratios import Ratio, table
from recal.comparison.markdown import markdown_table


def write_page(results: dict[str, Any], folder: Path) -> Path:
    """Write speed.md and growth.png from the results, and return the page's path."""
    machine, parts = results["machine"], results["parts"]
    ratios = [
        _ratio(r) for name, part in parts.items() if name not in ("growth", "disk") for r in part.get("records", [])
    ]
    lines = [
        "# Speed",
        "",
        f"Made by `make bench`; parts measured: {', '.join(parts)}. "
        "CPU seconds, the least of several turns; contestants took turns in one process. "
        f"Python {machine['python']}, numpy {machine['numpy']}, {machine['cores']} cores. "
        "A ratio below 1 means that recal takes less. *Before* is release 1.0.0rc1, where it was measured.",
        *(["", "**A trial on small sizes: these figures say little.**"] if results["small"] else []),
    ]
    missed = [r for r in ratios if r.met is False]
    with_target = sum(r.target is not None for r in ratios)
    lines += ["", "## Targets that are missed", "", f"{len(missed)} of {with_target}.", ""]
    head = ["part", "work", "beside", "ratio", "target"]
    lines += markdown_table(head, [[r.part, r.what, r.beside, f"{r.ratio:.2f}", f"{r.target:.3g}"] for r in missed])
    lines += table(ratios)
    if rows := parts.get("growth", {}).get("records"):
        draw_growth([r for r in rows if r["who"] == "ReCal"], folder / "growth.png")
        lines += [
            "",
            "## How costs grow",
            "",
            "The exponent p of CPU seconds ~ size^p, by least squares in logarithms; the other dimensions are fixed.",
            "",
            "![CPU seconds of ReCal over samples, classes, views and iterations](growth.png)",
            "",
            *markdown_table(["work", "dimension", "sizes", "CPU s", "exponent"], [_growth_row(r) for r in rows]),
        ]
    if rows := parts.get("disk", {}).get("records"):
        head = ["size", "views in", "CPU s", "wall s", "peak memory, GB"]
        cells = [[r["size"], r["how"], f"{r['cpu']:.1f}", f"{r['wall']:.1f}", f"{r['peak_gb']:.2f}"] for r in rows]
        lines += ["", "## Views that outgrow memory: 200 iterations of ReCal", "", *markdown_table(head, cells)]
    lines += ["", "## Parts of this run", ""]
    lines += markdown_table(
        ["part", "wall s"],
        [[name, str(part.get("seconds", f"left out: {part.get('left_out')}"))] for name, part in parts.items()],
    )
    notes = folder / "notes.md"
    if notes.exists():
        lines += ["", notes.read_text().strip()]
    page = folder / "speed.md"
    page.write_text("\n".join(lines) + "\n")
    return page


def _ratio(record: dict[str, Any]) -> Ratio:
    return Ratio(**{field.name: record[field.name] for field in fields(Ratio)})


def _growth_row(row: dict[str, Any]) -> list[str]:
    sizes, seconds = ", ".join(map(str, row["sizes"])), ", ".join(f"{cpu:.3g}" for cpu in row["cpu"])
    return [row["who"], row["axis"], sizes, seconds, f"{row['exponent']:.2f}"]


def draw_growth(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    figure, axes = plt.subplots(1, len(rows), figsize=(3 * len(rows), 2.8), sharey=True)
    for axis, row in zip(axes, rows, strict=True):
        axis.loglog(row["sizes"], row["cpu"], "o-", color="black")
        axis.set_title(f"{row['axis']}: exponent {row['exponent']:.2f}", fontsize=10)
        axis.set_xticks(row["sizes"], [f"{size:,}" for size in row["sizes"]], fontsize=8)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.grid(True, which="both", alpha=0.3)
    axes[0].set_ylabel("CPU seconds")
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)
