"""A comparison as a folder of files: one table for each kind of reader, and the report."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path

from recal.comparison import Comparison
from recal.files.atomic import replacing
from recal.reporting.page.html import report


def write_results(comparison: Comparison, folder: str | PathLike[str], command: str = "") -> tuple[Path, ...]:
    """Write comparison.md, .tex, .csv, .json and report.html, each whole or not at all."""
    target = Path(folder)
    marked = {"made_by": "recal", **comparison.to_dict()}
    texts = {
        "comparison.md": f"{comparison.to_markdown()}\n<!-- made by recal -->\n",
        "comparison.tex": f"% made by recal\n{comparison.to_latex()}",
        "comparison.csv": comparison.to_csv(),
        "comparison.json": json.dumps(marked, indent=2, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        with replacing(target / name) as file:
            file.write(text.encode("utf-8"))
    written = report(comparison, target / "report.html", command=command)
    return (*(target / name for name in texts), written)
