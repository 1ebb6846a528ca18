"""What a calibration says about rows of JSON, whatever kind of calibration it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.panel import PanelCalibration
from recal.calibrators.signals import SignalCalibration
from recal.errors import InputError
from recal.views import Views

Row = dict[str, Any]


@dataclass(frozen=True)
class Scored:
    """The answer to each row.

    Attributes
    ----------
    answers : the predicted class or answer; None if the system's own answer is scored
    confidence, accepted : (n_rows,); nothing is accepted without a rule
    logits : what a watch compares with the fit, if there are logits
    """

    answers: list[Any]
    confidence: NDArray[np.float64]
    accepted: NDArray[np.bool_]
    logits: NDArray[Any] | None = None


class Scorer:
    """Reads rows of JSON in the form that a calibration needs, and scores them.

    Parameters
    ----------
    calibration : a fitted calibrator
    predict : function from inputs to `Predictions`, optional
        The model with its calibration, if rows hold inputs.
    """

    def __init__(self, calibration: Any, predict: Callable[[Any], Any] | None = None) -> None:
        self.calibration, self._predict = calibration, predict
        self.rule = getattr(calibration, "decision_", None)
        self.fields: tuple[str, ...]
        if isinstance(calibration, PanelCalibration):
            self.fields, self._score = ("answers", "signals"), self._panel
        elif isinstance(calibration, SignalCalibration):
            self.fields, self._score = ("signals",), self._signals
        elif predict is not None:
            self.fields, self._score = ("input",), self._inputs
        else:
            self.fields, self._score = ("logits", "views"), self._logits

    def __call__(self, rows: Sequence[Row]) -> Scored:
        """Score rows; an error names the first row that is wrong."""
        first, known = self.fields[0], {*self.fields, "group", "id"}
        for number, row in enumerate(rows):
            if not isinstance(row, dict) or first not in row:
                raise InputError(f"Row {number} must be an object with the field {first!r}.")
            if strange := sorted(set(row) - known):
                raise InputError(
                    f"Row {number} has the unknown field {strange[0]!r}; known are "
                    f"{', '.join(sorted(known))}."
                )
        groups = None
        if any("group" in row for row in rows):
            groups = np.array([str(row.get("group", "")) for row in rows])
        return self._score(rows, groups)

    def _accepted(
        self, confidence: NDArray[np.float64], probs: Any = None, groups: Any = None
    ) -> NDArray[np.bool_]:
        if self.rule is None:
            return np.zeros(len(confidence), dtype=bool)
        groups = groups if self.rule.groups else None
        if probs is None:
            return self.rule.accept(confidence, groups=groups)
        return self.rule.accept(probs, confidence, groups)

    def _signals(self, rows: Sequence[Row], groups: Any) -> Scored:
        names = list(dict.fromkeys(name for row in rows for name in row["signals"]))
        columns = {name: [row["signals"].get(name) for row in rows] for name in names}
        confidence = self.calibration.predict_confidence(_arrays(columns), groups)
        accepted = self._accepted(confidence, groups=groups)
        return Scored([None] * len(rows), confidence, accepted)

    def _panel(self, rows: Sequence[Row], groups: Any) -> Scored:
        systems = list(dict.fromkeys(name for row in rows for name in row["answers"]))
        answers = {name: [row["answers"].get(name) for row in rows] for name in systems}
        given = [row.get("signals") or {} for row in rows]
        signals: dict[str, Any] = {}
        for system in dict.fromkeys(name for one in given for name in one):
            names = dict.fromkeys(name for one in given for name in one.get(system) or {})
            signals[system] = _arrays(
                {name: [(one.get(system) or {}).get(name) for one in given] for name in names}
            )
        chosen, confidence = self.calibration.predict_both(answers, signals or None)
        accepted = self._accepted(confidence, groups=groups)
        return Scored(np.asarray(chosen, dtype=object).tolist(), confidence, accepted)

    def _logits(self, rows: Sequence[Row], groups: Any) -> Scored:
        specs = list(dict.fromkeys(spec for row in rows for spec in row.get("views") or {}))
        logits = _matrix([row["logits"] for row in rows])
        views = {spec: _matrix([(row.get("views") or {})[spec] for row in rows]) for spec in specs}
        samples = Views(logits, views)
        has_offsets = hasattr(self.calibration, "group_offsets_")
        if has_offsets and groups is None:
            raise InputError("This calibration was fitted with groups: every row needs `group`.")
        probs, confidence = self.calibration.predict_both(samples, groups if has_offsets else None)
        classes = self.calibration.classes_[probs.argmax(axis=1)].tolist()
        return Scored(classes, confidence, self._accepted(confidence, probs, groups), logits)

    def _inputs(self, rows: Sequence[Row], groups: Any) -> Scored:
        assert self._predict is not None
        found = self._predict([row["input"] for row in rows])
        probs, confidence = found.probs, found.confidences
        classes = self.calibration.classes_[probs.argmax(axis=1)].tolist()
        return Scored(classes, confidence, self._accepted(confidence, probs, groups), found.logits)


def _arrays(columns: dict[str, list[Any]]) -> dict[str, NDArray[Any]]:
    """Return columns of numbers with gaps as floats, and others as they are."""
    arrays = {}
    for name, values in columns.items():
        numeric = all(value is None or isinstance(value, int | float) for value in values)
        filled = [math.nan if value is None else value for value in values]
        arrays[name] = np.array(filled if numeric else values, dtype=float if numeric else object)
    return arrays


def _matrix(rows: list[Any]) -> NDArray[np.float64]:
    try:
        return np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("Logits must be lists of numbers of equal length.") from None
