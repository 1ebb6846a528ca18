"""The one writer of Markdown tables: comparisons, the paper's tables and the benchmarks' pages use it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, align: str = "") -> list[str]:
    r"""Return the lines of a Markdown table. A bar inside a cell is escaped, and what would begin an HTML tag.

    Parameters
    ----------
    head, rows : the cells as text
    align : "l" or "r" for each column, as in LaTeX; where it is shorter than the table, the rest goes left

    Examples
    --------
    >>> from recal.comparison.markdown import markdown_table
    >>> print(*markdown_table(["method", "ECE"], [["ts", "0.012"], ["a|b", "0.020"]], align="lr"), sep="\n")
    | method | ECE |
    | --- | ---: |
    | ts | 0.012 |
    | a\|b | 0.020 |
    """
    rule = ["---:" if side == "r" else "---" for side in align.ljust(len(head), "l")]
    cells = ([re.sub(r"<(?=[A-Za-z/!?])", "&lt;", cell.replace("|", r"\|")) for cell in row] for row in (head, *rows))
    first, *rest = ("| " + " | ".join(row) + " |" for row in cells)
    return [first, "| " + " | ".join(rule) + " |", *rest]
