"""Writes the results of `benchmarks.run` as one short page; speed.json keeps every figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recal.comparison.results import markdown_table


def write_page(results: dict[str, Any], folder: Path) -> None:
    """Write speed.md from the results."""
    machine, parts = results["machine"], results["parts"]
    ratios = [
        record
        for name, part in parts.items()
        if name != "disk"
        for record in part.get("records", [])
    ]
    head = ["work", "compared with", "cases", "ratio, lowest to highest", "slowest case"]
    lines = [
        "# Speed",
        "",
        "This page compares `recal` with other libraries and with the limit of the hardware. Each "
        "row is a ratio of CPU seconds measured in one run, contestants taking turns on one "
        f"thread; below 1, `recal` is faster. Python {machine['python']}, numpy "
        f"{machine['numpy']}, {machine['cores']} cores. Every figure is in "
        '`speed.json`; `make bench VIEWS="a.npz b.npz"` repeats the run on your files of logits.',
        *(["", "**Trial run on small sizes; not representative.**"] if results["small"] else []),
        "",
        *markdown_table(head, _rows(ratios)),
    ]
    if disk := parts.get("disk", {}).get("records"):
        rows = [[r["what"], r["how"], f"{r['cpu']:.0f}", f"{r['peak_gb']:.1f}"] for r in disk]
        lines += ["", "## Views larger than memory", ""]
        lines += markdown_table(
            ["fit", "views in", "CPU s", "peak memory without mapped files, GB"], rows
        )
    absent = [f"- {name}: {part['left_out']}" for name, part in parts.items() if "left_out" in part]
    absent += sorted({f"- {line}" for part in parts.values() for line in part.get("missing", [])})
    if absent:
        lines += ["", "Not measured in this run:", "", *absent]
    (folder / "speed.md").write_text("\n".join(lines) + "\n")


def _rows(ratios: list[dict[str, Any]]) -> list[list[str]]:
    """Return one row for each part and contestant."""
    together: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in ratios:
        together.setdefault((one["part"], one["beside"]), []).append(one)
    rows = []
    for (part, beside), some in together.items():
        low, high = (f"{limit(one['ratio'] for one in some):.2g}" for limit in (min, max))
        slowest = max(some, key=lambda one: one["ratio"])["what"]
        span = low if low == high else f"{low} to {high}"
        rows.append([part, beside, str(len(some)), span, slowest])
    return rows
