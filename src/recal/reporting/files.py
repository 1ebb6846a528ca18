"""A comparison as a folder of files: one table for each kind of reader, and the report."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path

from recal.comparison import Comparison
from recal.files.atomic import write_together
from recal.reporting.page.html import page


def write_results(comparison: Comparison, folder: str | PathLike[str], command: str = "") -> tuple[Path, ...]:
    """Write comparison.md, .tex, .csv, .json and report.html, all of them or none."""
    contents = {
        "comparison.md": f"{comparison.to_markdown()}\n".encode(),
        "comparison.tex": comparison.to_latex().encode(),
        "comparison.csv": comparison.to_csv().encode(),
        "comparison.json": (json.dumps(comparison.to_dict(), indent=2, allow_nan=False) + "\n").encode(),
        "report.html": page(comparison, command=command).encode("utf-8"),
    }
    return write_together(Path(folder), contents)
