"""The report: one HTML file that needs no network."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray

from recal.comparison import Comparison, Recommendation, compare_probs, recommend
from recal.comparison.results import MAIN_METRICS, passes, seconds
from recal.decisions import Decision, RiskCurve
from recal.errors import InputError
from recal.files.paths import json_text, replacing
from recal.metrics import LABELS
from recal.metrics.evaluation import HIGHER_IS_BETTER
from recal.metrics.row_scores import Classes
from recal.reporting import charts, figure_data
from recal.reporting.chart import percent, render
from recal.reporting.figure_data import THRESHOLDS, Slices, Thresholds, slices_of, threshold_table
from recal.reporting.verdict import (
    Automation,
    Verdict,
    advice,
    automates_less,
    automation,
    headline,
    shown_first,
    verdict,
)

# The page shows this many parts, the worst ones, and counts the others.
_MOST_PARTS = 20


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
    groups: Mapping[str, ArrayLike] | None = None,
    risk: float = 0.01,
) -> Path:
    """Write the report on a comparison, or on probabilities of any origin: one HTML file that needs
    no network.

    Parameters
    ----------
    results : what `recal.compare` returned, or probabilities of shape (n_samples, n_classes)
        Probabilities need `y`. A 1-D array is the confidence of each answer.
    path : name of the file, ending in .html
    y : labels of the probabilities; for a 1-D array, which answers are right
    before : the probabilities before calibration, shown beside the others, optional
    classes : the columns' names, optional
    bootstrap : number of resamples for the intervals of probabilities; a comparison brings its own
    title : shown at the top
    command : how to make the report again, shown at its end
    inputs : indexable by the rows of the tested file, optional
        Arrays are shown as images, strings as texts.
    columns : mapping of name to one value per row of that file, optional
        Calibration is also judged by the values of each, such as ``{"camera": [...]}``.
    groups : mapping of name to one value per row of that file, optional
        Shows the errors among accepted answers in each group, worst first, and warns if one rule
        for all is broken.
    risk : the largest share of errors among automated answers

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
    page = Page(
        comparison,
        title=title,
        command=command,
        inputs=inputs,
        columns=columns or {},
        groups=groups or {},
        risk=risk,
    )
    return page.write(path)


def write_results(
    comparison: Comparison, folder: str | PathLike[str], command: str = ""
) -> tuple[Path, ...]:
    """Write comparison.md, .tex, .csv, .json and report.html, all of them or none."""
    contents = {
        "comparison.md": f"{comparison.to_markdown()}\n".encode(),
        "comparison.tex": comparison.to_latex().encode(),
        "comparison.csv": comparison.to_csv().encode(),
        "comparison.json": json_text(comparison.to_dict()).encode(),
        "report.html": Page(comparison, command=command).html().encode(),
    }
    paths = {name: Path(folder) / name for name in contents}
    with ExitStack() as files:
        for name, content in contents.items():
            file = files.enter_context(replacing(paths[name]))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a full disk is noticed before the first file is replaced
    return tuple(paths.values())


@dataclass(frozen=True)
class Page:
    """What `report` was given, and everything that the templates read.

    Attributes
    ----------
    about : facts shown below the title, such as ``{"Model": "resnet.onnx", "Data": "photos/"}``
    rows : what the rows of the page are called, such as "checking inputs"; shown with their number
    decisions, curves : by method, made on other rows; by default they are searched on these rows
    warnings : shown at the top, with the warnings of the comparison
    """

    comparison: Comparison
    title: str = "Calibration report"
    about: Mapping[str, str] = field(default_factory=dict)
    rows: str = ""
    command: str = ""
    inputs: Any = None
    columns: Mapping[str, ArrayLike] = field(default_factory=dict)
    groups: Mapping[str, ArrayLike] = field(default_factory=dict)
    risk: float = 0.01
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    curves: Mapping[str, RiskCurve] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    def write(self, path: str | PathLike[str]) -> Path:
        with replacing(path) as file:
            file.write(self.html().encode())
        return Path(path)

    def html(self) -> str:
        names = {
            "charts": charts,
            "figure_data": figure_data,
            "passes": passes,
            "seconds": seconds,
            "LABELS": LABELS,
            "metrics": {metric: LABELS[metric] for metric in MAIN_METRICS},
            "HIGHER_IS_BETTER": HIGHER_IS_BETTER,
            "MOST_PARTS": _MOST_PARTS,
        }
        return str(render("page.html", page=self, **names))

    @property
    def before(self) -> str | None:
        """The model before calibration; None if there is only one set of probabilities."""
        return self.comparison.methods[0] if len(self.comparison.methods) > 1 else None

    @property
    def choices(self) -> list[str]:
        """The methods that can be compared with the model before."""
        return [name for name in self.comparison.methods if name != self.before]

    def pair(self, name: str) -> dict[str, str]:
        """Methods by "before" and "after"."""
        return {**({} if self.before is None else {"before": self.before}), "after": name}

    @cached_property
    def choice(self) -> Recommendation:
        return recommend(self.comparison)

    @cached_property
    def shown(self) -> str:
        """The method that the page opens with."""
        return shown_first(self.comparison, self.choice)

    @property
    def rows_name(self) -> str:
        """What the rows of the page are called, with their number."""
        name = self.rows or ("test rows" if self.comparison.setup.n_fit else "samples")
        return f"{self.comparison.setup.n_test:,} {name}"

    @property
    def accuracy(self) -> str:
        """That of the model, and that of the calibrated answers if they differ."""
        scores = self.comparison.samples
        before, after = (scores[name].correct for name in (self.before or self.shown, self.shown))
        new = f"{percent(float(after.mean()))}"
        if not np.array_equal(before, after):
            new = f"{percent(float(before.mean()))} (model) → {new} (calibrated answers)"
        return f"{new} on {self.rows_name}"

    @cached_property
    def automated(self) -> dict[str, Automation]:
        groups = next(iter(self.test_values(self.groups).values()), None)
        return {
            name: automation(
                self.comparison,
                name,
                self.risk,
                decision=self.decisions.get(name),
                curve=self.curves.get(name),
                groups=groups,
            )
            for name in self.comparison.methods
        }

    @property
    def all_warnings(self) -> list[str]:
        """Each warning once, those of the caller first."""
        return list(dict.fromkeys((*self.warnings, *self.comparison.warnings)))

    @cached_property
    def headline(self) -> tuple[str, ...]:
        return headline(self.comparison, self.choice, self.automated)

    @property
    def advice(self) -> str:
        """Why this method, unless the headline says so or advises against it."""
        first, method = self.comparison.methods[0], self.choice.method
        if self.before is None or (
            method != first and automates_less(self.automated[first], self.automated[method])
        ):
            return ""
        words = advice(self.comparison, self.choice)
        return "" if words in self.headline else words

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        return {name: verdict(self.comparison, name) for name in self.choices}

    @cached_property
    def stop(self) -> float:
        """The threshold at which the slider opens: that of the rule, or 0.9 where there is no
        single one.
        """
        thresholds = self.automated[self.shown].decision.rule.thresholds
        return float(thresholds[0]) if len(thresholds) == 1 and thresholds[0] <= 1 else 0.9

    @cached_property
    def stops(self) -> list[float]:
        return sorted({*THRESHOLDS, self.stop})

    @cached_property
    def tables(self) -> dict[str, Thresholds]:
        return {
            name: threshold_table(scores, self.stops)
            for name, scores in self.comparison.samples.items()
        }

    @property
    def slider_tables(self) -> dict[str, Thresholds]:
        return {key: self.tables[name] for key, name in self.pair(self.shown).items()}

    @property
    def data(self) -> Markup:
        """What the script reads, as JSON that cannot end the element it stands in."""
        columns = ("accepted", "errors", "expected", "low", "high")
        tables = {
            name: {key: [round(getattr(one, key), 3) for one in table.values()] for key in columns}
            for name, table in self.tables.items()
        }
        value = {
            "thresholds": self.stops,
            "labels": [f"{stop:.6g}" for stop in self.stops],
            "samples": self.comparison.setup.n_test,
            "shown": self.shown,
            "before": self.before,
            "tables": tables,
        }
        # A name such as "</script>" must not end the element.
        return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))

    def risk_curves(self, name: str) -> dict[str, tuple[str, RiskCurve]]:
        """Return methods and curves by "before" and "after"; empty if one of them is unknown."""
        pair = {key: self.automated[method] for key, method in self.pair(name).items()}
        curves = {key: (one.name, one.curve) for key, one in pair.items() if one.curve is not None}
        return curves if len(curves) == len(pair) else {}

    def test_values(self, columns: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return the values of columns for the test rows; a column may cover the whole file that
        they come from.
        """
        rows, values = self.comparison.test_rows, {}
        for name, whole in columns.items():
            column = np.asarray(whole)
            if rows is not None and column.ndim == 1 and len(column) > rows.max():
                column = column[rows]
            if column.shape != (self.comparison.setup.n_test,):
                raise InputError(
                    f"The column {name!r} must have one value for each row of the tested file; "
                    f"got {column.shape}."
                )
            values[name] = column
        return values

    def parts(
        self, name: str, by: str, values: NDArray[Any] | None
    ) -> tuple[str, dict[str, Slices]]:
        """Return a finding, and the worst parts by "before" and "after".

        A part has the same value of a column; without `values`, the same predicted class.
        """
        slices = {}
        for key, method in self.pair(name).items():
            rows, answers = self.comparison.samples[method], self.comparison.answers[method]
            classes = self.comparison.classes if values is None else None
            slices[key] = slices_of(rows, answers if values is None else values, by, classes)
        names = slices["after"].names
        # A method that changes answers may never predict a class that was predicted before, and the
        # other way round.
        shared = set(names).intersection(*(one.names for one in slices.values()))
        worst = [part for part in names[:_MOST_PARTS] if part in shared]
        words = slices["after"].words
        if len(worst) < len(names):
            words += f" The {len(worst)} worst of {len(names):,} are shown."
        return words, {key: one.of(worst) for key, one in slices.items()} if worst else {}

    @cached_property
    def examples(self) -> dict[str, list[Example]]:
        return {name: examples(self.comparison, name) for name in self.choices}

    def picture(self, row: int) -> Markup:
        return Markup() if self.inputs is None else shown_input(self.inputs, row)


class Example(NamedTuple):
    """One input of the test rows.

    Attributes
    ----------
    row : its row in the tested file, from 0
    id : what traces it to its input: a file name, or its row
    before, after : the confidence in the prediction
    """

    row: int
    id: str
    answer: str
    truth: str
    before: float
    after: float


def examples(comparison: Comparison, method: str, most: int = 8) -> list[Example]:
    """Return the most confident mistakes of a method, as samples that a person should look at."""
    confidence = comparison.samples[method].confidence
    before = comparison.samples[comparison.methods[0]].confidence
    names = comparison.classes
    wrong = np.flatnonzero(~comparison.samples[method].correct)
    found = []
    for index in wrong[np.argsort(-confidence[wrong], kind="stable")[:most]].tolist():
        columns = (comparison.answers[method], comparison.test_labels)
        labels = (one[index] for one in columns)
        answer, truth = (str(label if names is None else names[label]) for label in labels)
        row = index if comparison.test_rows is None else int(comparison.test_rows[index])
        name = str(row if comparison.ids is None else comparison.ids[index])
        name = f"row {name}" if name.isdigit() else name
        found.append(
            Example(row, name, answer, truth, float(before[index]), float(confidence[index]))
        )
    return found


def shown_input(inputs: Any, row: int) -> Markup:
    """Return markup for one input: a picture, the beginning of a text, or nothing."""
    value = inputs[row]
    if isinstance(value, str):
        return Markup("<q>{}{}</q>").format(value[:300], "…" if len(value) > 300 else "")
    image = _as_pixels(np.asarray(value))
    return Markup() if image is None else _picture(image, f"input {row}")


def _picture(pixels: NDArray[np.uint8], words: str) -> Markup:
    from PIL import Image

    image = Image.fromarray(pixels)
    factor = 112 / max(image.size)
    # Small images are enlarged pixel by pixel, so that people see what the model sees.
    how = Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BILINEAR
    width, height = (max(round(side * factor), 1) for side in image.size)
    image = image.resize((width, height), how)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    code = base64.b64encode(buffer.getvalue()).decode("ascii")
    element = '<img alt="{}" width="{}" height="{}" src="data:image/png;base64,{}">'
    return Markup(element).format(words, width, height, code)


def _as_pixels(array: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Return an array as an image, grey or colour, channels last or first, or None."""
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[-1] not in (1, 3):
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[-1] == 3):
        return None
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    values = array.astype(np.float64)
    # Normalised images have any range, so they are stretched to the visible one.
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return np.clip(255 * (values - low) / ((high - low) or 1.0), 0, 255).astype(np.uint8)
