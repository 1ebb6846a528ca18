"""The report: one HTML file that needs no network."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_logits
from recal.comparison import Comparison, compare_probs, recommend
from recal.decisions import Profile
from recal.errors import InputError
from recal.files.atomic import replacing
from recal.metrics.rows import Classes
from recal.progress import track
from recal.reporting.data.automation import automation
from recal.reporting.data.damage import DamageStudy, damage_study
from recal.reporting.data.headline import headline
from recal.reporting.data.thresholds import THRESHOLDS, threshold_table
from recal.reporting.data.verdict import advice, shown_first, verdict
from recal.reporting.page.automation_section import how_much_can_be_automated
from recal.reporting.page.damage_section import damaged_inputs
from recal.reporting.page.details_sections import all_metrics, how_it_was_made
from recal.reporting.page.part_sections import classes as class_section
from recal.reporting.page.part_sections import columns as column_sections
from recal.reporting.page.part_sections import how_many_labels, look_at_these
from recal.reporting.page.parts import Page
from recal.reporting.page.recal_sections import groups, recal_figures
from recal.reporting.page.sections import figures, method_table
from recal.reporting.page.slider import slider_card


def report(
    results: Comparison | ArrayLike,
    path: str | PathLike[str],
    *,
    y: ArrayLike | None = None,
    before: ArrayLike | None = None,
    classes: Classes = None,
    bootstrap: int = 500,
    title: str = "Calibration report",
    command: str = "",
    inputs: Any = None,
    columns: Mapping[str, ArrayLike] | None = None,
    risk: float = 0.01,
    profile: Profile | None = None,
    new: ArrayLike | None = None,
) -> Path:
    """Write the report on a comparison, or on probabilities from anywhere: one HTML file that needs no network.

    Parameters
    ----------
    results : what `recal.compare` returned, or probabilities of shape (n_samples, n_classes) together with `y`
    path : name of the file, ending in .html
    y : labels of the probabilities
    before : the probabilities before calibration, shown beside them, optional
    classes : the columns' names, optional
    bootstrap : how many resamplings the intervals of probabilities come from; a comparison brings its own
    title : shown above the verdict
    command : how the report can be made again, shown at its end
    inputs : indexable by the rows of the file that was tested on, optional
        Images as arrays, which are shown, paths (`pathlib.Path`), which are linked, or texts.
        A string is a text and never a path.
    columns : mapping of name to one value per row of that file, optional
        The answers are also judged by the values of each, such as ``{"camera": [...]}``.
    risk : the largest share of errors among automated answers, for the share that can be automated
    profile : what `recal.profile` returned, optional
        Adds a part on damaged inputs: what its views taught about temperature and accuracy.
    new : logits of new inputs of shape (n_samples, n_classes), optional
        With `profile`: their estimated temperature and accuracy are shown.

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
    more: dict[str, Any] = {"inputs": inputs, "columns": columns, "risk": risk, "damage": damage}
    text = page(comparison, title=title, command=command, **more)
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
    return Path(path)


def page(
    comparison: Comparison,
    *,
    title: str = "Calibration report",
    command: str = "",
    inputs: Any = None,
    columns: Mapping[str, ArrayLike] | None = None,
    risk: float = 0.01,
    damage: DamageStudy | None = None,
) -> str:
    """The report as one string of HTML."""
    before = comparison.methods[0] if len(comparison.methods) > 1 else None
    tables = {name: threshold_table(rows) for name, rows in comparison.samples.items()}
    found = recommend(comparison)
    verdicts = {name: verdict(comparison, name) for name in comparison.methods if name != before}
    told = advice(comparison, found) if before is not None else ""
    shown = shown_first(comparison, found)
    chosen = {name: _test_values(comparison, name, values) for name, values in (columns or {}).items()}
    automated = {name: automation(comparison, name, risk) for name in comparison.methods}
    lines = headline(comparison, found, automated)
    known = (comparison, shown, before, told, tables, verdicts, automated, lines)
    view = Page(*known, title, command, inputs, chosen, damage)
    sections = (
        _headline,
        _verdict,
        slider_card,
        how_much_can_be_automated,
        method_table,
        figures,
        column_sections,
        class_section,
        look_at_these,
        how_many_labels,
        damaged_inputs,
        recal_figures,
        groups,
        all_metrics,
        how_it_was_made,
    )
    body = [f"<h1>{escape(title)}</h1>", *(section(view) for section in track(sections, "section"))]
    parts = {
        "title": escape(title),
        "css": _template("page.css"),
        "body": "\n".join(part for part in body if part),
        "data": _data(view),
        "script": _template("page.js"),
    }
    # In one pass: what is put in is not looked into again.
    return re.sub("@(title|css|body|data|script)@", lambda found: parts[found[1]], _template("page.html"))


def _test_values(comparison: Comparison, name: str, values: ArrayLike) -> NDArray[Any]:
    """A column's values for the test rows, whether it holds those alone or the whole file they come from."""
    column, rows = np.asarray(values), comparison.test_rows
    if column.shape == (comparison.setup.n_test,):
        return column
    if rows is not None and column.ndim == 1 and len(column) > int(rows.max()):
        return column[rows]
    raise InputError(
        f"The column {name!r} must hold one value for each row of the file that is tested on; got shape {column.shape}."
    )


def _headline(view: Page) -> str:
    """The first screen: what to do, what it costs, what it brings."""
    lines = "".join(f"<p>{_words(line)}</p>" for line in view.headline)
    return f'<section class="card headline" id="headline">{lines}</section>'


def _verdict(view: Page) -> str:
    blocks = []
    for name in view.choices:
        hidden = "" if name == view.shown else " hidden"
        sentences = "".join(f"<p>{_words(sentence)}</p>" for sentence in view.verdicts[name].sentences)
        outcome = view.verdicts[name].outcome.replace(" ", "-")
        blocks.append(f'<div data-method="{escape(name)}" class="{outcome}"{hidden}>{sentences}</div>')
    told = f'<p class="advice">{_words(view.advice)}</p>' if view.advice and view.advice not in view.headline else ""
    card = f'<section class="card verdict" id="verdict">{told}{"".join(blocks)}</section>'
    if len(view.choices) < 2:
        return card
    options = "".join(
        f'<option value="{escape(name)}"{" selected" if name == view.shown else ""}>{escape(name)}</option>'
        for name in view.choices
    )
    return (
        f'{card}<div class="picker"><label for="method">Method shown:</label><select id="method">{options}</select>'
        '<noscript><span class="note">Without scripts, the page shows this method at one threshold only.</span>'
        "</noscript></div>"
    )


def _words(sentence: str) -> str:
    """A sentence as markup, in which numbers stay beside their signs."""
    return escape(sentence).replace(" %", "&nbsp;%")


def _data(view: Page) -> str:
    tables = {
        name: {
            "accepted": table.accepted.tolist(),
            "right": table.right.tolist(),
            "promised": [round(value, 3) for value in table.promised_errors.tolist()],
            "low": table.low.tolist(),
            "high": table.high.tolist(),
        }
        for name, table in view.tables.items()
    }
    value = {
        "thresholds": THRESHOLDS,
        "samples": view.comparison.setup.n_test,
        "shown": view.shown,
        "before": view.before,
        "tables": tables,
    }
    # A name such as "</script>" must not end the element.
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _template(name: str) -> str:
    return files("recal.reporting.page").joinpath("templates", name).read_text(encoding="utf-8")
