"""Writes the results of `benchmarks.run` as one short page; speed.json keeps every figure."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.ratios import Ratio
from recal.comparison.tables import markdown_table


def write_page(results: dict[str, Any], folder: Path) -> Path:
    """Write speed.md from the results and return its path."""
    machine, parts = results["machine"], results["parts"]
    ratios = [
        _ratio(record)
        for name, part in parts.items()
        if name not in ("growth", "disk")
        for record in part.get("records", [])
    ]
    lines = [
        "# Speed",
        "",
        "This page compares `recal` with other libraries and with the limit of the hardware. Each row is a ratio of "
        "CPU seconds measured in one run, contestants taking turns on one thread; below 1, `recal` is faster. "
        f"Python {machine['python']}, numpy {machine['numpy']}, {machine['cores']} cores. Every figure is in "
        '`speed.json`; `make bench VIEWS="a.npz b.npz"` repeats the run on your files of logits.',
        *(["", "**Trial run on small sizes; not representative.**"] if results["small"] else []),
        "",
        *markdown_table(
            ["work", "compared with", "cases", "ratio, lowest to highest", "slowest case"],
            _rows(ratios),
        ),
    ]
    if growth := parts.get("growth", {}).get("records"):
        lines += [
            "",
            "## Growth of the cost",
            "",
            "CPU seconds grow as a power of the size. The exponents are:",
            "",
        ]
        lines += markdown_table(["work", "samples", "classes", "views"], _growth_rows(growth))
    if disk := parts.get("disk", {}).get("records"):
        rows = [[r["what"], r["how"], f"{r['cpu']:.0f}", f"{r['peak_gb']:.1f}"] for r in disk]
        lines += ["", "## Views larger than memory", ""]
        lines += markdown_table(["fit", "views in", "CPU s", "peak memory, GB"], rows)
    absent = [f"- {name}: {part['left_out']}" for name, part in parts.items() if "left_out" in part]
    absent += sorted({f"- {line}" for part in parts.values() for line in part.get("missing", [])})
    lines += ["", "Not measured in this run:", "", *absent] if absent else []
    page = folder / "speed.md"
    page.write_text("\n".join(lines) + "\n")
    return page


def _rows(ratios: list[Ratio]) -> list[list[str]]:
    """Return one row for each part and contestant."""
    together: dict[tuple[str, str], list[Ratio]] = {}
    for ratio in ratios:
        beside = (
            "the forward passes needed" if "passes of the model" in ratio.beside else ratio.beside
        )
        together.setdefault((ratio.part, beside), []).append(ratio)
    rows = []
    for (part, beside), some in together.items():
        low, high = f"{min(r.ratio for r in some):.2g}", f"{max(r.ratio for r in some):.2g}"
        slowest = max(some, key=lambda ratio: ratio.ratio).what
        rows.append(
            [part, beside, str(len(some)), low if low == high else f"{low} to {high}", slowest]
        )
    return rows


def _growth_rows(records: list[dict[str, Any]]) -> list[list[str]]:
    exponents: dict[str, dict[str, float]] = {}
    for record in records:
        exponents.setdefault(record["who"], {})[record["axis"]] = record["exponent"]
    dimensions = ("samples", "classes", "views")
    return [
        [work, *(f"{axes[name]:.2f}" if name in axes else "" for name in dimensions)]
        for work, axes in exponents.items()
    ]


def _ratio(record: dict[str, Any]) -> Ratio:
    return Ratio(**{field.name: record[field.name] for field in fields(Ratio)})
