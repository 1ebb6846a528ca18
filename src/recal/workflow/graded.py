"""From a table of graded answers to automated answers: split, fit, decide, check, write; then apply to new answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.answers.tables import Columns, read_table, write_with_columns
from recal.calibrators.signal_table import read_correct
from recal.calibrators.signals import SignalCalibration
from recal.comparison import compare_probs
from recal.decisions import Decision, decide, risk_curve
from recal.decisions.rule import check_share
from recal.errors import InputError
from recal.files.atomic import replacing
from recal.files.saved import save
from recal.maps.signals import LOG_ODDS
from recal.metrics import Evaluation, evaluate
from recal.reporting import report
from recal.reporting.verdict import RISKS
from recal.workflow.job import split, today
from recal.workflow.result import CALIBRATION, PAGE, SUMMARY, broken_groups, broken_line, group_lines

Vector = NDArray[np.float64]

_DRAWS = 200
# Columns that are no signals, whatever they hold.
_NOT_SIGNALS = ("id", "custom_id", "doc_id", "question_id", "index", "confidence", "accepted")


@dataclass(frozen=True)
class GradedResult:
    """What a calibration of graded answers found.

    Attributes
    ----------
    calibrator : SignalCalibration, with the rule as its `decision_`
    decision : Decision, made on answers that the fit has not seen
    before, after : Evaluation of the checking answers; `before` is None if no signal is a probability
    before_name : the signal that `before` reads
    sizes : answers to fit, to decide and to check on
    n_accepted, n_errors : accepted answers among those to check on, and the mistakes among them
    broken_groups : groups in which one rule for all makes clearly more mistakes than its risk
    folder : Path
    """

    calibrator: SignalCalibration
    decision: Decision
    before: Evaluation | None
    after: Evaluation
    before_name: str
    sizes: tuple[int, int, int]
    n_accepted: int
    n_errors: int
    broken_groups: tuple[str, ...]
    folder: Path

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = ("nll", "ece", "brier", "auroc")
        scores = {
            name: {each: evaluation[each] for each in names}
            for name, evaluation in (("before", self.before), ("after", self.after))
            if evaluation is not None
        }
        return {
            "reason": self.calibrator.reason_,
            "signals": list(self.calibrator.table_.names),
            "importance": self.calibrator.signal_importance_,
            "parts": dict(zip(("fit", "decide", "check"), self.sizes)),
            **scores,
            "decision": self.decision.to_dict(),
            "checked": {"accepted": self.n_accepted, "errors": self.n_errors},
            "broken_groups": list(self.broken_groups),
        }

    def lines(self) -> list[str]:
        """What a person wants to know."""
        after, n_checked = self.after, self.sizes[2]
        was = "" if self.before is None else f" ({self.before_name!r} as it is: {self.before['ece']:.3f})"
        important = [name for name, rise in self.calibrator.signal_importance_.items() if rise > 0.0]
        lines = [
            self.calibrator.reason_,
            f"Checked on {n_checked:,} other answers: NLL {after['nll']:.3f}, ECE {after['ece']:.3f}{was}.",
        ]
        if important:
            lines.append(f"Signals that matter, most important first: {', '.join(important)}.")
        risk = f"{100 * self.decision.risk:g} %"
        if self.decision.possible:
            lines.append(
                f"{self.n_accepted / n_checked:.1%} of the answers can be automated with at most {risk} errors: "
                f"{self.n_accepted:,} of the {n_checked:,} checking answers accepted, {self.n_errors:,} wrong. The "
                f"threshold was chosen on {self.sizes[1]:,} other answers."
            )
        else:
            lines.append(str(self.decision))
        lines += group_lines(self.decision, self.sizes[1] / sum(self.sizes))
        return [line for line in (*lines, broken_line(self.broken_groups, self.decision.risk)) if line]


def calibrate_table(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    correct: str,
    signals: Sequence[str] | None = None,
    group: str | None = None,
    one_rule: bool = False,
    cluster: str | None = None,
    risk: float = 0.01,
    confidence: float = 0.95,
    random_state: int = 0,
    title: str = "Calibration report",
    command: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> GradedResult:
    """Learn the confidence of graded answers from their signals, and which answers can be automated.

    Parameters
    ----------
    path : a table of answers: .csv, .tsv, .parquet or .jsonl
    out : path of the folder for calibration, report and summary
    correct : the column that says which answers are right
    signals : the columns to learn from; by default all numeric columns
    group : the column of groups, each of which gets an offset, a threshold and a guarantee
    one_rule : whether one threshold is used for all groups
    cluster : the column of rows that belong together, such as answers about one document
    risk, confidence : as in `recal.decide`
    """
    check_share(risk, "risk")
    check_share(confidence, "confidence")
    if one_rule and group is None:
        raise InputError("--one-rule is one threshold for all groups: name their column with --group COLUMN.")
    columns = read_table(path)
    right = _grades(path, columns, correct)
    names = _signal_names(path, columns, correct, signals, (group, cluster))
    values = {name: columns[name] for name in names}
    groups = None if group is None else _texts(columns[group])
    clusters = None if cluster is None else _texts(columns[cluster])
    parts = split(len(right), random_state, clusters)
    together = [None if clusters is None else clusters[rows] for rows in parts]
    sizes = (len(parts[0]), len(parts[1]), len(parts[2]))
    say(f"1/3  Read {len(right):,} graded answers; signals: {', '.join(names)}.")
    say(f"2/3  Fit on {sizes[0]:,} answers, choose the threshold on {sizes[1]:,}, check on {sizes[2]:,}.")
    named = None if groups is None else {str(group): groups}
    calibrator = SignalCalibration(random_state).fit(
        _rows(values, parts[0]),
        right[parts[0]],
        None if named is None else _rows(named, parts[0]),
        clusters=together[0],
    )
    sure = calibrator.predict_confidence(values, named)
    own = None if one_rule else groups
    limits: dict[str, Any] = {"groups": None if own is None else own[parts[1]], "clusters": together[1]}
    decision = decide(sure[parts[1]], right[parts[1]] > 0.5, risk, confidence, **limits)
    calibrator.decision_ = decision.rule
    say("3/3  Write the report.")
    checked, graded = parts[2], right[parts[2]] > 0.5
    accepted = decision.accept(sure[checked], groups=None if own is None else own[checked])
    before_name, before = _stated(calibrator, values, right, parts[0])
    drawn: dict[str, Any] = {"clusters": together[2], "random_state": random_state}
    result = GradedResult(
        calibrator,
        decision,
        None if before is None else evaluate(before[checked], graded, _DRAWS, **drawn),
        evaluate(sure[checked], graded, _DRAWS, **drawn),
        before_name,
        sizes,
        int(accepted.sum()),
        int((accepted & ~graded).sum()),
        broken_groups(decision, sure[parts[1]], right[parts[1]] > 0.5, None if groups is None else groups[parts[1]]),
        Path(out),
    )
    # The page applies the rules of the deciding answers to the checking answers, as the lines above do.
    chosen_on = {"after": sure} if before is None else {"before": before, "after": sure}
    truth = right[parts[1]] > 0.5
    decisions = {
        name: decision if name == "after" else decide(values[parts[1]], truth, risk, confidence, **limits)
        for name, values in chosen_on.items()
    }
    curves = {name: risk_curve(values[parts[1]], truth, RISKS, confidence) for name, values in chosen_on.items()}
    report(
        compare_probs({name: values[checked] for name, values in chosen_on.items()}, graded, **drawn),
        _prepared(result.folder) / PAGE,
        title=title,
        about={"Data": os.fspath(path), "Date": today()},
        rows="checking answers",
        command=command,
        risk=risk,
        decisions=decisions,
        curves=curves,
        groups=None if groups is None else {str(group): groups[checked]},
    )
    _write(result)
    return result


def _prepared(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _grades(path: Any, columns: Columns, correct: str) -> Vector:
    _check_columns(path, columns, [correct])
    try:
        return read_correct(columns[correct], len(columns[correct]))
    except InputError as error:
        raise InputError(f"{path}, column {correct!r}: {error}") from None


def _check_columns(path: Any, columns: Columns, names: Sequence[str]) -> None:
    if absent := [name for name in names if name not in columns]:
        raise InputError(f"{path} has no column {absent[0]!r}; it has {', '.join(columns)}.")


def _signal_names(
    path: Any, columns: Columns, correct: str, signals: Sequence[str] | None, others: Sequence[str | None]
) -> list[str]:
    """Return the columns to learn from, without groups and clusters; refuse the grades themselves."""
    _check_columns(path, columns, [name for name in others if name is not None])
    if signals is not None:
        _check_columns(path, columns, signals)
        if correct in signals:
            raise InputError(f"The column {correct!r} holds the grades and cannot be a signal.")
        return [name for name in signals if name not in others]
    left_out = {correct, *others, *_NOT_SIGNALS}
    names = [name for name, values in columns.items() if name not in left_out and values.dtype.kind == "f"]
    if not names:
        raise InputError(f"{path} has no numeric column besides {correct!r}; name the signals with --signals.")
    return names


def _rows(columns: Mapping[str, NDArray[Any]], rows: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
    return {name: values[rows] for name, values in columns.items()}


def _texts(values: NDArray[Any]) -> NDArray[Any]:
    """Return groups as texts; 3.0 is written 3."""
    return np.array([str(int(one)) if isinstance(one, float) and one.is_integer() else str(one) for one in values])


def _stated(
    calibrator: SignalCalibration, values: Columns, right: Vector, rows: NDArray[np.intp]
) -> tuple[str, Vector | None]:
    """Return the signal that is a probability and fits best as it is, with the mean of the fit where it is missing."""
    best: tuple[float, str, Vector] | None = None
    for name, kind in zip(calibrator.table_.names, calibrator.map_.scale.kind):
        if kind != LOG_ODDS or name not in values:
            continue
        share = np.clip(np.asarray(values[name], dtype=np.float64), 0.0, 1.0)
        share = np.where(np.isnan(share), np.nanmean(share[rows]), share)
        score = float(np.mean((share[rows] - right[rows]) ** 2))
        if best is None or score < best[0]:
            best = score, name, share
    return ("", None) if best is None else best[1:]


def _write(result: GradedResult) -> None:
    """Write the summary, and the calibration last: a folder that has it is complete."""
    with replacing(result.folder / SUMMARY) as file:
        file.write((json.dumps(result.to_dict(), indent=2) + "\n").encode())
    save(result.calibrator, result.folder / CALIBRATION)


@dataclass(frozen=True)
class AppliedTable:
    """How many answers got a confidence, and how many of them are accepted; None if there is no rule."""

    n_answers: int
    n_accepted: int | None


def apply_table(
    calibrator: SignalCalibration, path: str | os.PathLike[str], out: str | os.PathLike[str]
) -> AppliedTable:
    """Write a copy of a table with the columns `confidence` and, if there is a rule, `accepted`."""
    columns, table = read_table(path), calibrator.table_
    _check_columns(path, columns, table.names)
    group = table.names[-1] if table.grouped else None
    signals = {name: columns[name] for name in table.names if name != group}
    groups = None if group is None else _texts(columns[group])
    sure = calibrator.predict_confidence(signals, groups)
    added: dict[str, Any] = {"confidence": sure}
    rule = getattr(calibrator, "decision_", None)
    if rule is not None:
        added["accepted"] = rule.accept(sure, groups=groups if rule.groups else None)
    write_with_columns(path, out, added)
    return AppliedTable(len(sure), None if rule is None else int(added["accepted"].sum()))
