"""A comparison as text, Markdown, LaTeX, CSV and plain values; and the one writer of Markdown tables."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from recal.comparison.results import MAIN_METRICS, Comparison, Row, check_metrics
from recal.metrics import LABELS

_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
_LATEX |= {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"}


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, align: str = "") -> list[str]:
    r"""Return the lines of a Markdown table. A bar inside a cell is escaped, and what would begin an HTML tag.

    Parameters
    ----------
    head, rows : the cells as text
    align : "l" or "r" for each column, as in LaTeX; where it is shorter than the table, the rest goes left

    Examples
    --------
    >>> from recal.comparison.tables import markdown_table
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


def number(value: float, digits: int = 4) -> str:
    """A metric with fixed decimals; a dash if it is undefined."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def signed(value: float, digits: int = 4) -> str:
    return "–" if math.isnan(value) else f"{value:+.{digits}f}".replace("-", "−")


def seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s" if value >= 0.001 else "0"


def passes(value: float) -> str:
    """Forward passes per answer: a whole number unless a gate spares some inputs their views."""
    return f"{value:.2f}".removesuffix(".00")


def passes_words(value: float) -> str:
    return f"{passes(value)} forward pass{'' if value == 1 else 'es'}"


def describe(comparison: Comparison) -> str:
    """One sentence on the data and on where the intervals come from."""
    setup = comparison.setup
    if setup.n_fit:
        sizes = f"fitted on {setup.n_fit:,} samples, tested on {setup.n_test:,}, {setup.n_classes:,} classes"
    else:  # probabilities from anywhere
        classes = "graded answers" if comparison.graded else f"samples, {setup.n_classes:,} classes"
        sizes = f"{setup.n_test:,} {classes}"
    if setup.splits > 1:
        return (
            f"Mean over {setup.splits} random splits, {sizes}; 95 % intervals by t with Nadeau and Bengio's "
            "correction for overlapping splits."
        )
    if setup.n_fit:
        sizes = f"One split, {sizes}"
    if setup.draws:
        return f"{sizes}; 95 % intervals from {setup.draws:,} bootstrap draws of the test rows."
    return f"{sizes}."


def as_text(comparison: Comparison, metrics: Sequence[str] = MAIN_METRICS) -> str:
    """Best marked with *, second best with +; ! where the difference to the baseline is real."""
    table = {metric: comparison.rows(metric) for metric in check_metrics(metrics)}
    header = ["method", *(LABELS[metric] for metric in metrics), "fit", "passes"]
    marks = {"best": "*", "second": "+", "": " "}
    lines = [header]
    for index, method in enumerate(comparison.methods):
        cells = [method]
        for metric in metrics:
            row = table[metric][index]
            cells.append(number(row.value, comparison.digits(metric)) + marks[row.mark] + ("!" if row.differs else " "))
        lines.append([*cells, seconds(comparison.fit_seconds[:, index].mean()), passes(comparison.passes[index])])
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = []
    for method, *rest in lines:
        text.append("  ".join([method.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip())
    text.insert(1, "-" * max(map(len, text)))
    text.append(f"* best, + second best, ! differs from {comparison.baseline}. {describe(comparison)}")
    text += [f"{method} was left out: {why}" for method, why in comparison.failures.items()]
    return "\n".join(text)


def as_markdown(comparison: Comparison, metrics: Sequence[str] = MAIN_METRICS) -> str:
    def mark(text: str, kind: str) -> str:
        return {"best": f"**{text}**", "second": f"*{text}*", "": text}[kind]

    header, body = _cells(comparison, check_metrics(metrics), mark, str)
    notes = [
        "",
        f"**Best**, *second best*; in brackets the difference to {comparison.baseline} where its interval "
        f"excludes zero. {describe(comparison)}",
    ]
    notes += [f"{method} was left out: {why}" for method, why in comparison.failures.items()]
    return "\n".join([*markdown_table(header, body), *notes]) + "\n"


def as_latex(comparison: Comparison, metrics: Sequence[str] = MAIN_METRICS) -> str:
    def mark(text: str, kind: str) -> str:
        return {"best": rf"\textbf{{{text}}}", "second": rf"\underline{{{text}}}", "": text}[kind]

    def escape(text: str) -> str:
        return "".join(_LATEX.get(character, character) for character in text).replace("−", "$-$").replace("–", "--")

    header, body = _cells(comparison, check_metrics(metrics), mark, escape)
    lines = [
        r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}",
        r"\toprule",
        " & ".join(header) + r" \\",
        r"\midrule",
    ]
    lines += [" & ".join(line) + r" \\" for line in body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", "% " + describe(comparison)]) + "\n"


def _cells(
    comparison: Comparison,
    metrics: Sequence[str],
    mark: Callable[[str, str], str],
    escape: Callable[[str], str],
) -> tuple[list[str], list[list[str]]]:
    table = {metric: comparison.rows(metric) for metric in metrics}
    header = ["method", *(LABELS[metric] for metric in metrics), "fit (CPU)", "passes"]
    body = []
    for index, method in enumerate(comparison.methods):
        line = [escape(method)]
        for metric in metrics:
            row, digits = table[metric][index], comparison.digits(metric)
            text = mark(escape(number(row.value, digits)), row.mark)
            line.append(text + (escape(f" ({signed(row.difference, digits)})") if row.differs else ""))
        body.append([*line, escape(seconds(comparison.fit_seconds[:, index].mean())), passes(comparison.passes[index])])
    return header, body


def as_csv(comparison: Comparison) -> str:
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(
        ["method", "metric", "value", "low", "high", "difference", "difference_low", "difference_high", "mark",
         "fit_cpu_seconds", "forward_passes"]
    )  # fmt: skip
    for metric in comparison.values:
        for index, row in enumerate(comparison.rows(metric)):
            cost = [comparison.fit_seconds[:, index].mean(), comparison.passes[index]]
            numbers = [row.value, *row.interval, row.difference, *row.difference_interval]
            writer.writerow([_no_formula(row.method), metric, *numbers, row.mark, *cost])
    return target.getvalue()


def _no_formula(name: str) -> str:
    """Quote a name that a spreadsheet would run as a formula."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name


def as_dict(comparison: Comparison) -> dict[str, Any]:
    setup = comparison.setup
    return {
        "baseline": comparison.baseline,
        "setup": {**vars(setup), "fingerprints": dict(setup.fingerprints), "versions": dict(setup.versions)},
        "methods": {
            method: {
                "fit_cpu_seconds": float(comparison.fit_seconds[:, index].mean()),
                "forward_passes": comparison.passes[index],
                "keeps_accuracy": comparison.keeps_accuracy[index],
                "metrics": {metric: _row(comparison.rows(metric)[index]) for metric in comparison.values},
            }
            for index, method in enumerate(comparison.methods)
        },
        "failures": dict(comparison.failures),
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "value": finite(row.value),
        "interval": [finite(bound) for bound in row.interval],
        "difference": finite(row.difference),
        "difference_interval": [finite(bound) for bound in row.difference_interval],
        "mark": row.mark,
    }


def finite(value: float) -> float | None:
    """None for numbers that JSON cannot hold."""
    return value if math.isfinite(value) else None
