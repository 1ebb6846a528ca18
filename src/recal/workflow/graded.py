"""From a table of graded answers to automated answers: split, fit, decide, check, write; then apply
to new answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.signal_table import read_correct
from recal.calibrators.signals import SignalCalibration
from recal.errors import InputError
from recal.files.tables import Table, read_table, write_with_columns
from recal.workflow.job import split
from recal.workflow.result import Answers, Result, Settings, broken_line, group_lines, recording

Vector = NDArray[np.float64]

# Columns that are never signals.
_NOT_SIGNALS = ("id", "custom_id", "doc_id", "question_id", "index", "confidence", "accepted")


@dataclass(frozen=True, kw_only=True)
class GradedResult(Result):
    """The result for graded answers; the calibrator is a `SignalCalibration`.

    `before` evaluates the signal `before_name`, if one of the signals is a probability.
    """

    before_name: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "reason": self.calibrator.reason_,
            "signals": list(self.calibrator.table_.names),
            "importance": self.calibrator.signal_importance_,
            "parts": dict(zip(("fit", "decide", "check"), self.sizes)),
            **self._scores("nll", "ece", "brier", "auroc"),
            "decision": self.decision.to_dict(),
            "checked": {"accepted": self.n_accepted, "errors": self.n_errors},
            "broken_groups": list(self.broken_groups),
        }

    def lines(self) -> list[str]:
        """Return a summary for people."""
        after = self.after
        was = (
            ""
            if self.before is None
            else f" ({self.before_name!r} as it is: {self.before['ece']:.3f})"
        )
        important = [
            name for name, rise in self.calibrator.signal_importance_.items() if rise > 0.0
        ]
        lines = [
            self.calibrator.reason_,
            f"Checked on {self.sizes[2]:,} other answers: NLL {after['nll']:.3f}, ECE {after['ece']:.3f}{was}.",
        ]
        if important:
            lines.append(f"Signals that matter, most important first: {', '.join(important)}.")
        lines.append(self._automated() if self.decision.possible else str(self.decision))
        lines += group_lines(self.decision, self.sizes[1] / sum(self.sizes))
        return [
            line for line in (*lines, broken_line(self.broken_groups, self.decision.risk)) if line
        ]


@recording
def calibrate_table(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: Settings,
    *,
    correct: str,
    signals: Sequence[str] | None = None,
    group: str | None = None,
    cluster: str | None = None,
) -> GradedResult:
    """Learn the confidence of graded answers from their signals, and decide which answers can be
    automated.

    Parameters
    ----------
    path : a table of answers: .csv, .tsv, .parquet or .jsonl
    out : the path of the folder for calibration, report and summary
    correct : the column that says which answers are right
    signals : the columns to learn from; by default all numeric columns
    group : the column of groups, each of which gets an offset, a threshold and a guarantee
    cluster : the column of rows that belong together, such as answers about one document
    """
    seed, say = settings.random_state, settings.say
    if settings.one_rule and group is None:
        raise InputError(
            "--one-rule is one threshold for all groups: name their column with --group COLUMN."
        )
    columns = read_table(path)
    right = _grades(path, columns, correct)
    names = _signal_names(path, columns, correct, signals, (group, cluster))
    # A column that is numeric here is a number in every later file; the others hold categories.
    values = {
        name: columns.numbers(name) if columns.is_numeric(name) else columns[name] for name in names
    }
    groups = None if group is None else columns[group]
    clusters = None if cluster is None else columns[cluster]
    fit, decide_on, check_on = split(len(right), seed, clusters)
    sizes = len(fit), len(decide_on), len(check_on)
    say(f"1/3  Read {len(right):,} graded answers; signals: {', '.join(names)}.")
    say(
        f"2/3  Fit on {sizes[0]:,} answers, choose the threshold on {sizes[1]:,}, check on {sizes[2]:,}."
    )
    calibrator = SignalCalibration(seed).fit(
        {name: column[fit] for name, column in values.items()},
        right[fit],
        None if groups is None else {str(group): groups[fit]},
        clusters=None if clusters is None else clusters[fit],
    )
    after = calibrator.predict_confidence(values, None if groups is None else {str(group): groups})
    before_name, before = _probability(calibrator, values, right, fit)
    answers = Answers(before, after, right > 0.5, None, groups, clusters, by=str(group))
    say("3/3  Write the report.")
    own: dict[str, Any] = {"sizes": sizes, "folder": Path(out), "before_name": before_name}
    return GradedResult.of(
        calibrator, answers.take(decide_on), answers.take(check_on), settings, **own
    )


def _grades(path: Any, columns: Table, correct: str) -> Vector:
    try:
        return read_correct(columns[correct], len(columns[correct]))
    except InputError as error:
        raise InputError(f"{path}, column {correct!r}: {error}") from None


def _signal_names(
    path: Any,
    columns: Table,
    correct: str,
    signals: Sequence[str] | None,
    others: Sequence[str | None],
) -> list[str]:
    """Return the columns to learn from, without groups and clusters; refuse the column of grades."""
    columns.check(name for name in others if name is not None)
    if signals is not None:
        columns.check(signals)
        if correct in signals:
            raise InputError(f"The column {correct!r} holds the grades and cannot be a signal.")
        return [name for name in signals if name not in others]
    left_out = {correct, *others, *_NOT_SIGNALS}
    names = [name for name in columns if name not in left_out and columns.is_numeric(name)]
    if not names:
        raise InputError(
            f"{path} has no numeric column besides {correct!r}; name the signals with --signals."
        )
    return names


def _probability(
    calibrator: SignalCalibration,
    values: Mapping[str, NDArray[Any]],
    right: Vector,
    rows: NDArray[np.intp],
) -> tuple[str, Vector | None]:
    """Return the best signal that is itself a probability; the mean of the fit replaces its missing
    values.
    """
    best: tuple[float, str, Vector] | None = None
    for name in calibrator.table_.shares:
        if name not in values:
            continue
        share = np.clip(np.asarray(values[name], dtype=np.float64), 0.0, 1.0)
        share = np.where(np.isnan(share), np.nanmean(share[rows]), share)
        score = float(np.mean((share[rows] - right[rows]) ** 2))
        if best is None or score < best[0]:
            best = score, name, share
    return ("", None) if best is None else best[1:]


def apply_table(
    calibrator: SignalCalibration, path: str | os.PathLike[str], out: str | os.PathLike[str]
) -> tuple[int, int | None]:
    """Write a copy of a table with the columns `confidence` and, if there is a rule, `accepted`.

    Returns the number of answers and of accepted answers; the latter is None if there is no rule.
    """
    columns, table = read_table(path), calibrator.table_
    columns.check(table.names)
    group = table.names[-1] if table.grouped else None
    # The fit says which columns are numbers, whatever this file looks like.
    signals = {
        name: columns[name] if levels else columns.numbers(name)
        for name, levels in zip(table.names, table.levels)
        if name != group
    }
    groups = None if group is None else columns[group]
    confidences = calibrator.predict_confidence(signals, groups)
    added: dict[str, Any] = {"confidence": confidences}
    rule = getattr(calibrator, "decision_", None)
    if rule is not None:
        added["accepted"] = rule.accept(confidences, groups=groups if rule.groups else None)
    write_with_columns(path, out, added)
    return len(confidences), (None if rule is None else int(added["accepted"].sum()))
