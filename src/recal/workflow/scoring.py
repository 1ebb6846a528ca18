"""A calibration applied to new rows: their confidence, and which of them its rule accepts.

A calibration reads the signals of an answer, the answers of several systems, or logits. What it
says about a row is the same, whether the rows come from a table, from a request or from views.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.panel import PanelCalibration
from recal.calibrators.signals import SignalCalibration
from recal.checks import Flags, Floats, Vector
from recal.decisions.cascade import CascadeRule
from recal.errors import InputError
from recal.files.probabilities import Probabilities
from recal.files.tables import Table, read_table, write_with_columns, written_name
from recal.views import Views
from recal.workflow.auditing import audited_rule
from recal.workflow.graded import read_grades
from recal.workflow.panels import is_right, read_questions

Systems = PanelCalibration | CascadeRule


@dataclass(frozen=True)
class Scored:
    """What a calibration says about some rows.

    Attributes
    ----------
    confidence : (n_rows,)
    accepted : (n_rows,); nothing is accepted without a rule
    answers : the predicted class or answer; None if the system's own answer is scored
    next : for a cascade, "accept", "review" or the system to ask
    unlike : the signals of each row whose values are unlike those of the fit
    watched : logits, or confidences and signals, which `recal.watch` compares with those of the fit
    """

    confidence: Vector
    accepted: Flags
    answers: NDArray[Any] | None = None
    next: NDArray[Any] | None = None
    unlike: list[list[str]] | None = None
    watched: Floats | None = None


def panel_of(calibration: Systems) -> PanelCalibration:
    """Return the panel of several systems, which a cascade asks one by one."""
    return calibration.panel if isinstance(calibration, CascadeRule) else calibration


def score_signals(calibrator: SignalCalibration, signals: Any, groups: Any) -> Scored:
    """Score graded answers by their signals."""
    confidence = calibrator.predict_confidence(signals, groups)
    return Scored(confidence, _accepted(calibrator, confidence, None, groups))


def score_views(calibrator: Any, views: Views, groups: Any) -> Scored:
    """Score the predictions of a model by its logits."""
    by = groups if hasattr(calibrator, "group_offsets_") else None
    probs, confidence = calibrator.predict_both(views, by)
    return score_probs(calibrator, probs, confidence, groups)


def score_probs(calibrator: Any, probs: Any, confidence: Any, groups: Any) -> Scored:
    """Score the predictions of a model by their calibrated probabilities."""
    accepted = _accepted(calibrator, probs, confidence, groups)
    return Scored(confidence, accepted, calibrator.classes_[probs.argmax(axis=1)])


def score_systems(
    calibration: Systems, answers: Any, signals: Any, groups: Any, asked: Any = None
) -> Scored:
    """Score the answers of several systems, and with a cascade find the next step of each row."""
    if isinstance(calibration, CascadeRule):
        found = calibration.apply(answers, signals, groups, asked=asked)
        return Scored(found.confidence, found.next == "accept", found.answer, found.next)
    offsets = groups if hasattr(calibration, "group_offsets_") else None
    chosen, confidence = calibration.predict_both(answers, signals, offsets)
    return Scored(confidence, _accepted(calibration, confidence, None, groups), chosen)


def _accepted(calibrator: Any, probs: Vector, confidence: Any, groups: Any) -> Flags:
    rule = getattr(calibrator, "decision_", None)
    if rule is None:
        return np.zeros(len(probs), dtype=bool)
    return np.asarray(rule.accept(probs, confidence, groups))


def apply_to_table(
    calibration: SignalCalibration | Systems,
    folder: Path,
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
) -> dict[str, Any]:
    """Write a copy of a table with the columns `confidence` and, if there is a rule, `accepted`.

    For several systems, `answer` comes before them; with a cascade `next` comes last: "accept",
    "review" or "ask NAME". Rows may lack the systems that were not asked yet.

    Returns the number of answers, of accepted ones (None without a rule), and of each next step.
    """
    table = read_table(path)
    if isinstance(calibration, SignalCalibration):
        found = score_signals(calibration, *read_signals(calibration, table))
    else:
        found = _score_questions(calibration, folder, table)[0]
    has_rule = audited_rule(calibration) is not None
    added: dict[str, Any] = {"confidence": found.confidence}
    if found.answers is not None:
        texts = ["" if one is None else str(one) for one in found.answers]
        added = {"answer": texts, **added}
    if has_rule:
        added["accepted"] = found.accepted
    steps = np.where(found.accepted, "accept", "review").tolist()
    if found.next is not None:
        steps = [one if one in ("accept", "review") else f"ask {one}" for one in found.next]
        added["next"] = steps
    write_with_columns(table, out, added)
    accepted = int(found.accepted.sum()) if has_rule else None
    facts: dict[str, Any] = {"answers": table.n_rows, "accepted": accepted}
    return facts if found.answers is None else {**facts, "next": dict(Counter(steps))}


def grade_answers(
    path: Path,
    correct: str,
    calibrator: SignalCalibration | None = None,
    *,
    cluster: str | None = None,
) -> Probabilities:
    """Return the confidence of graded answers in a table, and which of them are right; without a
    calibrator, the confidence is in the column `confidence`.
    """
    table = read_table(path)
    table.check([correct])
    groups, fitted = None, 0
    if calibrator is not None:
        signals, groups = read_signals(calibrator, table)
        confidence = calibrator.predict_confidence(signals, groups)
        fitted = calibrator.fitted_rows(confidence)
    elif (name := written_name(table, "confidence")) in table:
        confidence = table.numbers(name)
    else:
        raise InputError(
            f"{path} has no column 'confidence', which recal apply adds. To measure a calibration, "
            "name it with --calibration FOLDER."
        )
    right = read_grades(table, correct) > 0.5
    return Probabilities(confidence, right, None, None, fitted, groups, table.clusters(cluster))


def grade_systems(
    calibration: Systems, folder: Path, path: Path, truth: str, cluster: str | None = None
) -> tuple[Flags, Probabilities]:
    """Return which answers to labelled questions are accepted, and which are right.

    `truth` names the column of right answers.
    """
    table = read_table(path)
    table.check([truth])
    key, clusters = table.filled(truth), table.clusters(cluster)
    found, fitted = _score_questions(calibration, folder, table)
    assert found.answers is not None
    right = is_right(found.answers, key, panel_of(calibration).match)
    graded = Probabilities(found.confidence, right, None, None, fitted, clusters=clusters)
    return found.accepted, graded


def read_signals(
    calibrator: SignalCalibration, table: Table
) -> tuple[dict[str, NDArray[Any]], NDArray[Any] | None]:
    """Return the signals of the answers in a table, and their groups if the fit had some."""
    fitted = calibrator.table_
    table.check(fitted.names)
    group = fitted.names[-1] if fitted.grouped else None
    # The fit says which columns are numbers, whatever this file looks like.
    signals = {
        name: table[name] if levels else table.numbers(name)
        for name, levels in zip(fitted.names, fitted.levels)
        if name != group
    }
    return signals, None if group is None else table[group]


def _score_questions(calibration: Systems, folder: Path, table: Table) -> tuple[Scored, int]:
    """Score the questions in a table, and count those that the panel was fitted on."""
    panel = panel_of(calibration)
    answers, signals, groups = read_questions(panel, folder, table)
    rows = panel.read(answers, signals)
    asked = rows.asked
    if (step := written_name(table, "next")) in table:
        # A system refused if an earlier run named it, and it has answered other questions only.
        order = {f"ask {name}": place for place, name in enumerate(panel.table_.systems, 1)}
        done = dict.fromkeys(("accept", "review"), len(order))
        told = np.array([(order | done).get(one, 0) for one in table[step].tolist()])
        asked = np.maximum(asked, np.minimum(told, asked.max(initial=0)))
        refused = (asked > rows.asked) & np.isin(table[step].astype(str), list(order))
        if refused.any():
            warnings.warn(
                f"Rows without an answer of the system that `{step}` names count as refusals: "
                f"{refused.sum():,}. If it was not asked yet, clear the cell and apply again.",
                UserWarning,
                stacklevel=2,
            )
    found = score_systems(calibration, answers, signals, groups, asked)
    return found, panel.fitted_questions(rows)
