"""The report: one HTML file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_logits
from recal.comparison import Comparison, compare_probs, recommend
from recal.decisions import Decision, Profile, RiskCurve
from recal.errors import InputError
from recal.files.atomic import replacing, write_together
from recal.metrics.rows import Classes
from recal.progress import track
from recal.reporting import sections
from recal.reporting.chart import style_sheet, svg
from recal.reporting.charts import percent, threshold_chart
from recal.reporting.damage import DamageStudy, damage_study
from recal.reporting.expected_errors import THRESHOLDS, Thresholds, threshold_table
from recal.reporting.verdict import (
    AnswerChange,
    Automation,
    advice,
    automates_less,
    automation,
    headline,
    shown_first,
    verdict,
)

# Rows of the table that stands in for the slider where no script runs.
_STEPS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 0.9999)


def report(
    results: Comparison | ArrayLike,
    path: str | PathLike[str],
    *,
    y: ArrayLike | None = None,
    before: ArrayLike | None = None,
    classes: Classes = None,
    bootstrap: int = 500,
    title: str = "Calibration report",
    about: Mapping[str, str] | None = None,
    rows: str = "",
    command: str = "",
    inputs: Any = None,
    columns: Mapping[str, ArrayLike] | None = None,
    groups: ArrayLike | Mapping[str, ArrayLike] | None = None,
    risk: float = 0.01,
    decisions: Mapping[str, Decision] | None = None,
    curves: Mapping[str, RiskCurve] | None = None,
    change: AnswerChange | None = None,
    profile: Profile | None = None,
    new: ArrayLike | None = None,
) -> Path:
    """Write the report on a comparison, or on probabilities of any origin: one HTML file that needs no network.

    Parameters
    ----------
    results : what `recal.compare` returned, or probabilities of shape (n_samples, n_classes) together with `y`
        A 1-D array is the confidence of each answer.
    path : name of the file, ending in .html
    y : labels of the probabilities; for a 1-D array, which answers are right
    before : the probabilities before calibration, shown beside the others, optional
    classes : the columns' names, optional
    bootstrap : number of resamples for the intervals of probabilities; a comparison brings its own
    title : shown at the top
    about : facts shown below the title, such as ``{"Model": "resnet.onnx", "Data": "photos/", "Date": "2026-01-31"}``
    rows : what the rows of the page are called, such as "checking inputs"; shown with their number
    command : how to make the report again, shown at its end
    inputs : indexable by the rows of the tested file, optional
        Arrays are shown as images, paths (`pathlib.Path`) are linked, strings are shown as texts.
        A string is a text and never a path.
    columns : mapping of name to one value per row of that file, optional
        Calibration is also judged by the values of each, such as ``{"camera": [...]}``.
    groups : one value per row of that file, or a mapping of a name to such values, optional
        Shows the errors among accepted answers in each group, worst first, and warns if one rule for all is broken.
    risk : the largest share of errors among automated answers
    decisions : mapping of method to a `Decision` that was made on other rows, optional
        By default the rule of each method is searched on the rows of the page.
    curves : mapping of method to what `recal.decisions.risk_curve` gave for these other rows, optional
    change : what changed answers would gain, where the caller knows it
    profile : what `recal.profile` returned, optional
        Adds a section on damaged inputs: what its views taught about temperature and accuracy.
    new : logits of new inputs of shape (n_samples, n_classes), optional
        With `profile`: shows their estimated temperature and accuracy.

    Returns
    -------
    The path of the file.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from recal import report
    >>> probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]] * 20)
    >>> report(probs, tempfile.mkdtemp() + "/report.html", y=[0, 1, 1] * 20, bootstrap=20).name
    'report.html'
    """
    if isinstance(results, Comparison):
        comparison = results
    elif y is None:
        raise InputError("A report on probabilities needs their labels: pass them as `y`.")
    else:
        named = {"given": results} if before is None else {"before": before, "after": results}
        comparison = compare_probs(named, y, classes=classes, bootstrap=bootstrap)
    if new is not None and profile is None:
        raise InputError("New inputs are judged by a profile: pass it as `profile`.")
    damage = None if profile is None else damage_study(profile, None if new is None else check_logits(new))
    options: dict[str, Any] = {"inputs": inputs, "columns": columns, "groups": groups, "risk": risk, "damage": damage}
    options |= {"about": about, "rows": rows, "decisions": decisions, "curves": curves, "change": change}
    text = page(comparison, title=title, command=command, **options)
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
    return Path(path)


def page(
    comparison: Comparison,
    *,
    title: str = "Calibration report",
    about: Mapping[str, str] | None = None,
    rows: str = "",
    command: str = "",
    inputs: Any = None,
    columns: Mapping[str, ArrayLike] | None = None,
    groups: ArrayLike | Mapping[str, ArrayLike] | None = None,
    risk: float = 0.01,
    decisions: Mapping[str, Decision] | None = None,
    curves: Mapping[str, RiskCurve] | None = None,
    change: AnswerChange | None = None,
    damage: DamageStudy | None = None,
) -> str:
    """Return the report as one string of HTML; see `report`."""
    before = comparison.methods[0] if len(comparison.methods) > 1 else None
    choice = recommend(comparison)
    shown = shown_first(comparison, choice)
    rules = dict(decisions or {})
    named_groups = groups if isinstance(groups, Mapping) else {} if groups is None else {"group": groups}
    by_group = {name: _test_values(comparison, name, values) for name, values in named_groups.items()}
    own = next(iter(by_group.values()), None)
    known = curves or {}
    automated = {
        name: automation(comparison, name, risk, decision=rules.get(name), curve=known.get(name), groups=own)
        for name in comparison.methods
    }
    stop = _opening(automated[shown])
    stops = sorted({*THRESHOLDS, stop})
    view = sections.Page(
        comparison=comparison,
        shown=shown,
        before=before,
        tables={name: threshold_table(scores, stops) for name, scores in comparison.samples.items()},
        verdicts={name: verdict(comparison, name, change) for name in comparison.methods if name != before},
        automated=automated,
        rows=f"{comparison.setup.n_test:,} {rows or ('test rows' if comparison.test is not None else 'samples')}",
        inputs=inputs,
        columns={name: _test_values(comparison, name, values) for name, values in (columns or {}).items()},
        groups=by_group,
        damage=damage,
    )
    told = advice(comparison, choice) if before is not None else ""
    lines = headline(comparison, choice, automated)
    less = choice.method != comparison.methods[0] and automates_less(
        automated[comparison.methods[0]], automated[choice.method]
    )
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            about=_about(view, about or {}),
            style=style_sheet() + "\n" + _template("page.css"),
            script=_template("page.js"),
            data=_data(view, stops),
            view=view,
            headline=lines,
            advice="" if told in lines or less else told,
            slider=_slider(view, stops.index(stop)),
            sections=list(track(tuple(sections.sections(view)), "section")),
            metrics=sections.metrics_table(comparison),
            facts=sections.facts(view, command),
        )
    )


def _opening(one: Automation) -> float:
    """Return the threshold at which the slider opens: that of the rule, or 0.9 where there is no single one."""
    rule = one.decision.rule
    single = len(rule.thresholds) == 1 and rule.thresholds[0] <= 1
    return float(rule.thresholds[0]) if single else 0.9


def _test_values(comparison: Comparison, name: str, values: ArrayLike) -> NDArray[Any]:
    """Return the values of a column for the test rows; the column may cover the whole file that they come from."""
    column, rows = np.asarray(values), comparison.test_rows
    if column.shape == (comparison.setup.n_test,):
        return column
    if rows is not None and column.ndim == 1 and len(column) > int(rows.max()):
        return column[rows]
    raise InputError(f"The column {name!r} must have one value for each row of the tested file; got {column.shape}.")


def _about(view: sections.Page, facts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the facts below the title: those of the caller, then rows and accuracy."""
    scores = view.comparison.samples
    accuracy = percent(float(scores[view.shown].correct.mean()))
    if view.before is not None and not np.array_equal(scores[view.before].correct, scores[view.shown].correct):
        accuracy = f"{percent(float(scores[view.before].correct.mean()))} → {accuracy}"
    return [*facts.items(), ("Accuracy", f"{accuracy} on {view.rows}")]


def _slider(view: sections.Page, index: int) -> dict[str, Any]:
    """Return what the slider and its table show before a script runs."""
    pair = view.pair(view.shown)
    tables = {key: view.tables[name] for key, name in pair.items()}
    rows = [("Answers accepted", "coverage", "accepted"), ("Accuracy of accepted answers", "accuracy", "")]
    rows += [("Errors made", "errors", ""), ("Errors expected from its confidence", "expected", "range")]
    return {
        "value": index,
        "last": len(tables["after"].thresholds) - 1,
        "threshold": _stop_label(float(tables["after"].thresholds[index])),
        "spoken": _spoken(tables, pair, index),
        "names": pair,
        "rows": rows,
        "cells": {key: _cells(table, index) for key, table in tables.items()},
        "chart": threshold_chart(tables, index),
        "table": _threshold_table({name: view.tables[name] for name in pair.values()}),
    }


def _stop_label(threshold: float) -> str:
    return f"{threshold:.6g}"


def _cells(table: Thresholds, index: int) -> dict[str, str]:
    at = table.row(index)
    return {
        "coverage": percent(at.share),
        "accepted": f"{at.accepted:,} of {at.n_samples:,}",
        "accuracy": percent(at.accuracy),
        "errors": f"{at.errors:,}",
        "expected": f"{at.expected:,.0f}",
        "range": f"{at.low:,} to {at.high:,} if calibrated",
    }


def _spoken(tables: Mapping[str, Thresholds], names: Mapping[str, str], index: int) -> str:
    """Return what a screen reader says about the slider, in the words that the script uses."""
    parts = [f"at least {_stop_label(float(tables['after'].thresholds[index]))} confidence"]
    for key, table in tables.items():
        at = table.row(index)
        parts.append(
            f"{names[key]}: {percent(at.share)} accepted, {percent(at.accuracy)} right, {at.errors:,} errors, "
            f"{at.expected:,.0f} expected"
        )
    return "; ".join(parts)


def _threshold_table(tables: Mapping[str, Thresholds]) -> sections.Table:
    head = ["confidence at least"]
    for name in tables:
        head += [f"{name}: accepted", "right", "errors", "expected", "if calibrated"]
    rows = []
    for step in _STEPS:
        cells = [f"{step:g}"]
        for table in tables.values():
            at = table.at(step)
            cells += [percent(at.share), percent(at.accuracy), f"{at.errors:,}", f"{at.expected:,.1f}"]
            cells.append(f"{at.low:,}–{at.high:,}")
        rows.append(cells)
    return sections.Table(head, rows, "Answers that reach a confidence")


def _data(view: sections.Page, stops: list[float]) -> str:
    """Return what the script reads, as JSON that cannot end the element it stands in."""
    tables = {
        name: {
            "accepted": table.accepted.tolist(),
            "right": table.correct.tolist(),
            "expected": [round(value, 3) for value in table.expected.tolist()],
            "low": table.low.tolist(),
            "high": table.high.tolist(),
        }
        for name, table in view.tables.items()
    }
    value = {
        "thresholds": stops,
        "labels": [_stop_label(stop) for stop in stops],
        "samples": view.comparison.setup.n_test,
        "shown": view.shown,
        "before": view.before,
        "tables": tables,
    }
    # A name such as "</script>" must not end the element.
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("recal.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = lambda chart, id="": Markup(svg(chart, id=id))
    # Keeps a number and its percent sign on one line.
    environment.filters["words"] = lambda text: text if isinstance(text, Markup) else text.replace(" %", "\u00a0%")
    return environment


def _template(name: str) -> str:
    return files("recal.reporting").joinpath("templates", name).read_text(encoding="utf-8")


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
