"""Write the results of `benchmarks.run` as a page with a picture."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.ratios import Ratio, table
from recal.comparison.tables import markdown_table


def write_page(results: dict[str, Any], folder: Path) -> Path:
    """Write speed.md and growth.png from the results, and return the page's path."""
    machine, parts = results["machine"], results["parts"]
    ratios = [
        _ratio(r) for name, part in parts.items() if name not in ("growth", "disk") for r in part.get("records", [])
    ]
    on_disk = parts.get("disk", {}).get("records", [])
    lines = [
        "# Speed",
        "",
        'Made by `make bench VIEWS="a.npz b.npz"`; the files hold real logits. '
        "CPU seconds on one thread, the least of several turns; contestants took turns in one process. "
        f"Python {machine['python']}, numpy {machine['numpy']}, {machine['cores']} cores. "
        "A ratio below 1 means that recal takes less. *Before* is release 1.0.0rc1, where it was measured.",
        *(["", "**A trial on small sizes: these figures say little.**"] if results["small"] else []),
        *_missed(ratios, on_disk),
        *_before_and_after(ratios),
        *table(ratios),
    ]
    if rows := parts.get("growth", {}).get("records"):
        draw_growth(rows, folder / "growth.png")
        lines += [
            "",
            "## How costs grow",
            "",
            "The exponent p of CPU seconds ~ size^p, by least squares in logarithms. The other dimensions are fixed: "
            "2,000 samples, 100 classes, 10 views, 50 iterations.",
            "",
            "![CPU seconds over samples, classes, views and iterations, both axes logarithmic](growth.png)",
            "",
            *markdown_table(["work", "dimension", "sizes", "CPU s", "exponent"], [_growth_row(r) for r in rows]),
        ]
    if on_disk:
        head = ["fit", "views in", "CPU s", "wall s", "peak memory, GB", "before", "target", "met"]
        lines += ["", "## Views that outgrow memory", "", *markdown_table(head, [_disk_row(r) for r in on_disk])]
    lines += ["", "## Parts of this run", ""]
    lines += markdown_table(
        ["part", "wall s"],
        [[name, str(part.get("seconds", f"left out: {part.get('left_out')}"))] for name, part in parts.items()],
    )
    missing = sorted({line for part in parts.values() for line in part.get("missing", [])})
    lines += ["", *[f"- {line}" for line in missing]] if missing else []
    notes = folder / "notes.md"
    if notes.exists():
        lines += ["", notes.read_text().strip()]
    page = folder / "speed.md"
    page.write_text("\n".join(lines) + "\n")
    return page


def _missed(ratios: list[Ratio], on_disk: list[dict[str, Any]]) -> list[str]:
    cells = [[r.part, r.what, r.beside, f"{r.ratio:.2f}", f"{r.target:.3g}"] for r in ratios if r.met is False]
    limited = [r for r in on_disk if r.get("target_gb")]
    cells += [
        ["Views that outgrow memory", r["what"], "peak memory, GB", f"{r['peak_gb']:.2f}", f"{r['target_gb']:g}"]
        for r in limited
        if r["peak_gb"] > r["target_gb"]
    ]
    count = sum(r.target is not None for r in ratios) + len(limited)
    head = ["part", "work", "beside", "ratio", "target"]
    return ["", "## Targets that are missed", "", f"{len(cells)} of {count}.", "", *markdown_table(head, cells)]


def _before_and_after(ratios: list[Ratio]) -> list[str]:
    """Return one line for each part and contestant that was measured before; the parts' own tables hold each ratio."""
    together: dict[tuple[str, str], list[Ratio]] = {}
    for ratio in ratios:
        if ratio.before is not None:
            beside = "the passes needed" if "passes of the model" in ratio.beside else ratio.beside
            together.setdefault((ratio.part, beside), []).append(ratio)
    cells = [
        [part, beside, str(len(some)), _range([r.before for r in some]), _range([r.ratio for r in some])]
        for (part, beside), some in together.items()
    ]
    head = ["part", "beside", "kinds of work", "release 1.0.0rc1", "now"]
    return ["", "## Before and after", "", "Ratios from the least to the largest.", "", *markdown_table(head, cells)]


def _range(values: list[Any]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"


def _disk_row(row: dict[str, Any]) -> list[str]:
    target, before = row.get("target_gb"), row.get("before_gb")
    met = "" if target is None else "yes" if row["peak_gb"] <= target else "**no**"
    figures = [f"{row['cpu']:.1f}", f"{row['wall']:.1f}", f"{row['peak_gb']:.2f}"]
    limits = ["" if value is None else f"{value:g}" for value in (before, target)]
    return [row["what"], row["how"], *figures, *limits, met]


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

    dimensions = list(dict.fromkeys(row["axis"] for row in rows))
    works = list(dict.fromkeys(row["who"] for row in rows))
    figure, axes = plt.subplots(1, len(dimensions), figsize=(3 * len(dimensions), 3.2), sharey=True)
    for axis, dimension in zip(axes, dimensions, strict=True):
        for row in (row for row in rows if row["axis"] == dimension):
            marker, colour = "osD^v"[works.index(row["who"]) % 5], f"C{works.index(row['who'])}"
            axis.loglog(row["sizes"], row["cpu"], f"{marker}-", color=colour, label=row["who"], markersize=4)
        longest = max((row["sizes"] for row in rows if row["axis"] == dimension), key=len)
        axis.set_xticks(longest, [f"{size:,}" for size in longest], fontsize=8)
        axis.set_title(dimension, fontsize=10)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.grid(True, which="both", alpha=0.3)
    axes[0].set_ylabel("CPU seconds")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=len(works), fontsize=8)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path, dpi=90)
    plt.close(figure)
