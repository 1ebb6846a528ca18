"""Scores of rows of JSON: signals, answers of several systems, logits, or inputs of the model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.panel import PanelCalibration
from recal.calibrators.signals import SignalCalibration
from recal.decisions.cascade import CascadeRule
from recal.errors import InputError, UnseenValuesWarning
from recal.views import Views

JsonRow = dict[str, Any]


@dataclass(frozen=True)
class Scored:
    """The answer to each row.

    Attributes
    ----------
    confidence, accepted : (n_rows,); nothing is accepted without a rule
    answers : the predicted class or answer; None if the system's own answer is scored
    logits : what a watch compares with the fit, if there are logits
    next : for a cascade, "accept", "review" or the system to ask
    unlike : by row, the signals with values unlike those of the fit
    """

    confidence: NDArray[np.float64]
    accepted: NDArray[np.bool_]
    answers: list[Any] | None = None
    logits: NDArray[Any] | None = None
    next: list[str] | None = None
    unlike: Mapping[int, list[str]] = field(default_factory=dict)


class Scorer:
    """Reads rows of JSON in the form that a calibration needs, and scores them.

    Parameters
    ----------
    calibration : a fitted calibrator
    predict : function from inputs and groups to `Predictions`, optional
        The model with its calibration, if rows hold inputs.

    Attributes
    ----------
    fields : the fields of a row besides `id`; the first one is needed
    needs_group : bool
        Whether each row must have the field `group`.
    """

    fields: tuple[str, ...]

    def __init__(self, calibration: Any, predict: Callable[..., Any] | None = None) -> None:
        self.calibration, self._predict = calibration, predict
        self.rule: Any = getattr(calibration, "decision_", None)
        if isinstance(calibration, CascadeRule):
            self.rule, self._panel = calibration, calibration.panel
        elif isinstance(calibration, PanelCalibration):
            self._panel = calibration
        grouped = hasattr(calibration, "group_offsets_") or bool(self.rule and self.rule.groups)
        if hasattr(self, "_panel"):
            self.fields, self._score = ("answers", "signals"), self._score_panel
        elif isinstance(calibration, SignalCalibration):
            self.fields, self._score = ("signals",), self._score_signals
            grouped = calibration.table_.grouped
        elif predict is not None:
            self.fields, self._score = ("input",), self._score_inputs
        else:
            self.fields, self._score = ("logits", "views"), self._score_logits
        self.needs_group = grouped
        if grouped:
            self.fields += ("group",)

    def __call__(self, rows: Sequence[Any]) -> Scored:
        """Score rows; an error names the first row that is wrong."""
        needed = [self.fields[0], *(["group"] if self.needs_group else ())]
        for number, row in enumerate(rows):
            absent = [name for name in needed if not isinstance(row, dict) or name not in row]
            if absent:
                raise InputError(f"Row {number} must be an object with the field {absent[0]!r}.")
            for name, value in row.items():
                if name not in (*self.fields, "id"):
                    known = ", ".join((*self.fields, "id"))
                    raise InputError(
                        f"Row {number} has the unknown field {name!r}; known are {known}."
                    )
                kind, words = _KINDS.get(name, (object, ""))
                if not isinstance(value, kind):
                    raise InputError(f"Row {number}: the field {name!r} must be {words}.")
        groups = np.array([row["group"] for row in rows]) if self.needs_group else None
        return self._score(rows, groups)

    def _accepted(
        self, confidence: NDArray[np.float64], groups: Any, probs: Any = None
    ) -> NDArray[np.bool_]:
        if self.rule is None:
            return np.zeros(len(confidence), dtype=bool)
        groups = groups if self.rule.groups else None
        if probs is None:
            return np.asarray(self.rule.accept(confidence, groups=groups))
        return np.asarray(self.rule.accept(probs, confidence, groups))

    def _score_signals(self, rows: Sequence[JsonRow], groups: Any) -> Scored:
        table = self.calibration.table_
        names = table.names[: len(table.names) - table.grouped]
        signals = {name: _column(rows, ("signals", name)) for name in names}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnseenValuesWarning)  # told row by row
            confidence = self.calibration.predict_confidence(signals, groups)
        odd = table.unlike(table.values(signals, groups), signals, groups)
        return Scored(
            confidence,
            self._accepted(confidence, groups),
            unlike={
                row: [name for name, is_odd in zip((*names, "group"), odd[row]) if is_odd]
                for row in np.flatnonzero(odd.any(axis=1)).tolist()
            },
        )

    def _score_panel(self, rows: Sequence[JsonRow], groups: Any) -> Scored:
        table = self._panel.table_
        for number, row in enumerate(rows):
            for name in (*row["answers"], *row.get("signals", ())):
                if name not in table.systems:
                    raise InputError(
                        f"Row {number} names the system {name!r}; known are "
                        f"{', '.join(table.systems)}."
                    )
        answers = {
            name: [row["answers"].get(name) for row in rows]
            for name in table.systems
            if any(name in row["answers"] for row in rows)
        }
        signals: dict[str, dict[str, Any]] = {}
        for place, column in zip(table.owner, () if table.table is None else table.table.names):
            system = table.systems[place]
            name = column.removeprefix(f"{system}: ")
            if any(system in row.get("signals", ()) for row in rows):
                values = _column(rows, ("signals", system, name))
                signals.setdefault(system, {})[name] = values
        if isinstance(self.calibration, CascadeRule):
            by = groups if self.calibration.groups else None
            found = self.calibration.apply(answers, signals or None, by)
            steps = found.next.tolist()
            accepted = np.array([step == "accept" for step in steps])
            return Scored(found.confidence, accepted, found.answer.tolist(), next=steps)
        by = groups if hasattr(self._panel, "group_offsets_") else None
        chosen, confidence = self._panel.predict_both(answers, signals or None, by)
        return Scored(confidence, self._accepted(confidence, groups), chosen.tolist())

    def _score_logits(self, rows: Sequence[JsonRow], groups: Any) -> Scored:
        specs = sorted(set.intersection(*(set(row.get("views", ())) for row in rows)))
        views = Views(
            _matrix([row["logits"] for row in rows]),
            {spec: _matrix([row["views"][spec] for row in rows]) for spec in specs},
        )
        by = groups if hasattr(self.calibration, "group_offsets_") else None
        probs, confidence = self.calibration.predict_both(views, by)
        return self._scored(probs, confidence, views.logits, groups)

    def _score_inputs(self, rows: Sequence[JsonRow], groups: Any) -> Scored:
        assert self._predict is not None
        found = self._predict([row["input"] for row in rows], groups)
        return self._scored(found.probs, found.confidences, found.logits, groups)

    def _scored(self, probs: Any, confidence: Any, logits: Any, groups: Any) -> Scored:
        classes = self.calibration.classes_[probs.argmax(axis=1)].tolist()
        return Scored(confidence, self._accepted(confidence, groups, probs), classes, logits)


# What a field of a row must be.
_KINDS: dict[str, tuple[Any, str]] = {
    "signals": (dict, "an object of names and values"),
    "answers": (dict, "an object of systems and their answers"),
    "logits": (list, "a list of numbers"),
    "views": (dict, "an object of transformations and their logits"),
    "group": (str, "a text"),
    "id": (str, "a text"),
}


def _column(rows: Sequence[JsonRow], path: tuple[str, ...]) -> NDArray[Any]:
    """Return one value per row, floats if all are numbers; null is missing."""
    values = []
    for number, row in enumerate(rows):
        value: Any = row
        for name in path:
            if not isinstance(value, dict) or name not in value:
                if len(path) > 2 and path[1] not in row.get("signals", ()):
                    value = None  # a system that was not asked yet
                    break
                where = " of ".join(map(repr, reversed(path)))
                raise InputError(f"Row {number} lacks {where}; give null if it is missing.")
            value = value[name]
        if value is not None and not isinstance(value, str | int | float):
            where = " of ".join(map(repr, reversed(path)))
            raise InputError(f"Row {number}: {where} must be a number, a text or null.")
        values.append(value)
    if any(isinstance(value, str) for value in values):
        return np.array([*values, None], dtype=object)[:-1]
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def _matrix(rows: list[Any]) -> NDArray[np.float64]:
    try:
        matrix = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.zeros(0)
    if matrix.ndim != 2:
        raise InputError("Logits must be lists of numbers of equal length.")
    return matrix


def read_inputs(inputs: list[Any], stored: Any) -> Any:
    """Return inputs in the form that those of the fit had: texts, a table or an array.

    `stored` is the preprocessing of the calibration. Pixels from 0 to 255 and from 0 to 1 are not
    the same to a model, so numbers of another kind are refused.
    """
    if all(isinstance(one, str) for one in inputs):
        return inputs
    columns = getattr(stored, "columns", None)
    if columns is not None or all(isinstance(one, dict) for one in inputs):
        return _frame(inputs, columns)
    try:
        array = np.array(inputs)
    except ValueError:
        array = np.array(None)
    kind = np.dtype(getattr(stored, "dtype", None) or np.float32)
    shape = getattr(stored, "shape", None)
    if array.dtype.kind not in "biuf" or (shape is not None and array.shape[1:] != tuple(shape)):
        wanted = "numbers, all of one shape" if shape is None else f"numbers of the shape {shape}"
        raise InputError(f"Each input must be {wanted}, as at the fit.")
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        inside = (array >= limits.min) & (array <= limits.max)
        if array.dtype.kind not in "iu" or not inside.all():
            raise InputError(
                f"Inputs must be whole numbers from {limits.min} to {limits.max}, as at the fit "
                f"({kind})."
            )
    return array.astype(kind)


def _frame(inputs: list[Any], columns: Sequence[str] | None) -> Any:
    """Return a table with the columns of the fit."""
    import pandas as pd

    names = tuple(inputs[0]) if columns is None and isinstance(inputs[0], dict) else columns or ()
    for number, one in enumerate(inputs):
        if not isinstance(one, dict) or set(one) != set(names):
            raise InputError(
                f"Row {number}: the field 'input' must be an object with the columns "
                f"{', '.join(names)}."
            )
    return pd.DataFrame({name: [one[name] for one in inputs] for name in names})
