"""A comparison as a folder of files: one table for each kind of reader, and the report."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path

from recal.comparison import Comparison
from recal.files.atomic import write_together
from recal.files.origin import MARK, digest_of
from recal.reporting.page.html import page


def write_results(comparison: Comparison, folder: str | PathLike[str], command: str = "") -> tuple[Path, ...]:
    """Write comparison.md, .tex, .csv, .json and report.html, all of them or none."""
    table = comparison.to_csv().encode("utf-8")
    # A .csv file has no place for a mark: the .json file beside it tells whether it is still ours.
    marked = {"made_by": MARK, "digests": {"comparison.csv": digest_of(table)}, **comparison.to_dict()}
    contents = {
        "comparison.md": f"{comparison.to_markdown()}\n<!-- {MARK} -->\n".encode(),
        "comparison.tex": f"% {MARK}\n{comparison.to_latex()}".encode(),
        "comparison.csv": table,
        "comparison.json": (json.dumps(marked, indent=2, allow_nan=False) + "\n").encode(),
        "report.html": page(comparison, command=command).encode("utf-8"),
    }
    return write_together(Path(folder), contents)
