"""From a table of graded answers to automated answers: split, fit, decide, check, write; then apply
to new answers.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.signal_table import read_correct
from recal.calibrators.signals import SignalCalibration
from recal.checks import Floats, Vector
from recal.clusters import some_rows
from recal.decisions import profile
from recal.decisions.crossfit import crossfitted
from recal.errors import InputError
from recal.files.probabilities import Probabilities
from recal.files.tables import Table, read_table, write_with_columns
from recal.workflow.folder import ROWS_OF_TABLE
from recal.workflow.run import (
    HeldOut,
    Result,
    Settings,
    extend,
    finish,
    running,
    split,
    split_words,
)

# Columns that are never signals.
_NOT_SIGNALS = ("id", "custom_id", "doc_id", "question_id", "index", "confidence", "accepted")


def calibrate_table(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: Settings,
    *,
    correct: str,
    signals: Sequence[str] | None = None,
    group: str | None = None,
    cluster: str | None = None,
) -> Result:
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
    table = read_table(path)
    names = _signal_names(path, table, correct, signals, (group, cluster))
    named = {"correct": correct, "signals": names, "group": group, "cluster": cluster}
    # A column that is numeric here is a number in every later file; the others hold categories.
    named["numbers"] = [
        name for name in names if table.is_numeric(name) or not any(table[name].tolist())
    ]
    return calibrate_answers(table, Path(out), settings, named)


def calibrate_answers(
    table: Table,
    out: Path,
    settings: Settings,
    named: Mapping[str, Any],
    sizes_before: Sequence[int] | None = None,
) -> Result:
    """Calibrate the answers of a table, whose columns are `named`.

    With `sizes_before`, its first rows are those of an earlier run, in the order fit, decide,
    check.
    """
    seed, say, cross_fit = settings.random_state, settings.say, settings.cross_fit
    group, cluster, names = named["group"], named["cluster"], named["signals"]
    used = [named["correct"], *names, *(name for name in (group, cluster) if name is not None)]
    table.check(used)
    right = _grades(table.path, table, named["correct"])
    groups = None if group is None else table[group]
    clusters = table.clusters(cluster)
    if sizes_before is None:
        parts = split(len(right), seed, clusters, cross_fit)
    else:
        n_before = sum(sizes_before[1:] if cross_fit else sizes_before)
        parts = extend(sizes_before, len(right) - n_before, seed, clusters, cross_fit)
    fit, decide_on, check_on = parts
    numbers = named["numbers"]
    say(f"1/3  Read {len(right):,} graded answers; signals: {', '.join(names)}.")
    say(f"2/3  {split_words(parts, clusters, cross_fit)}")
    signals = {name: table.numbers(name) if name in numbers else table[name] for name in names}
    with running(out, settings, keep_previous=sizes_before is not None) as folder:
        some, of_rows, together = (some_rows(one, fit) for one in (signals, groups, clusters))
        named_groups = None if of_rows is None else {str(group): of_rows}
        calibrator = SignalCalibration(random_state=seed).fit(
            some, right[fit], named_groups, clusters=together
        )
        after = calibrator.predict_confidence(signals, groups)
        deciding: Floats = after[decide_on]
        if cross_fit:
            truth = (right[fit] > 0.5).astype(np.intp)
            deciding = crossfitted(
                calibrator, some, truth, of_rows, together, folds=5, random_state=seed
            )[1]
        unseen = np.concatenate([decide_on, check_on])  # in `deciding`, not by their own fit
        calibrator.profile_ = profile(
            np.concatenate([deciding, after[check_on]]),
            right[unseen] > 0.5,
            clusters=some_rows(clusters, unseen),
            signals=some_rows({name: signals[name] for name in numbers}, unseen) or None,
            random_state=seed,
        )
        before_name, before = _probability(calibrator, signals, right, fit)
        rows = np.concatenate((fit, check_on) if cross_fit else parts)
        answers = HeldOut(
            after,
            right > 0.5,
            None,
            groups=groups,
            clusters=clusters,
            before=before,
            # The row in the table, or in the one that is kept.
            ids=np.arange(len(right)) if sizes_before is None else np.argsort(rows),
        )
        say("3/3  Write the report.")
        if settings.keep_rows:
            columns = {name: signals[name] if name in signals else table[name] for name in used}
            write_rows(folder / ROWS_OF_TABLE, some_rows(columns, rows))
        importance = calibrator.signal_importance_
        matter = ", ".join(name for name, rise in importance.items() if rise > 0.0)
        return finish(
            calibrator,
            replace(answers[decide_on], probs=deciding),
            answers[check_on],
            settings,
            folder,
            by=str(group),
            columns=named,
            sizes=(len(fit), len(decide_on), len(check_on)),
            facts={"signals": list(calibrator.table_.names), "importance": importance},
            notes=[
                f"Signals that matter, most important first: {matter}." if matter else "",
                f"Before calibration: {before_name!r} as it is." if before_name else "",
            ],
        )


def write_rows(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write columns as CSV, texts as they are."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values())))


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
    shares = {name: np.clip(values[name], 0.0, 1.0) for name in calibrator.table_.shares}
    filled = {
        name: np.where(np.isnan(one), np.nanmean(one[rows]), one) for name, one in shares.items()
    }
    scores = {name: float(np.mean((one - right)[rows] ** 2)) for name, one in filled.items()}
    best = min(scores, key=lambda name: scores[name], default="")
    return best, filled.get(best)


def confidence_of(
    calibrator: SignalCalibration, table: Table
) -> tuple[Vector, NDArray[Any] | None]:
    """Return the confidence of the answers in a table, and their groups if the fit had some."""
    fitted = calibrator.table_
    table.check(fitted.names)
    group = fitted.names[-1] if fitted.grouped else None
    # The fit says which columns are numbers, whatever this file looks like.
    signals = {
        name: table[name] if levels else table.numbers(name)
        for name, levels in zip(fitted.names, fitted.levels)
        if name != group
    }
    groups = None if group is None else table[group]
    return calibrator.predict_confidence(signals, groups), groups


def graded_answers(
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
    if calibrator is None and "confidence" not in table:
        raise InputError(
            f"{path} has no column 'confidence', which recal apply adds. To measure a calibration, "
            "name it with --calibration FOLDER."
        )
    if calibrator is None:
        confidence, groups, fitted = table.numbers("confidence"), None, 0
    else:
        confidence, groups = confidence_of(calibrator, table)
        fitted = calibrator.fitted_rows(confidence)
    right = _grades(path, table, correct) > 0.5
    return Probabilities(confidence, right, None, None, fitted, groups, table.clusters(cluster))


def apply_table(
    calibrator: SignalCalibration, path: str | os.PathLike[str], out: str | os.PathLike[str]
) -> tuple[int, int | None]:
    """Write a copy of a table with the columns `confidence` and, if there is a rule, `accepted`.

    Returns the number of answers and of accepted answers; the latter is None if there is no rule.
    """
    table = read_table(path)
    confidences, groups = confidence_of(calibrator, table)
    added: dict[str, Any] = {"confidence": confidences}
    rule = getattr(calibrator, "decision_", None)
    if rule is not None:
        added["accepted"] = rule.accept(confidences, groups=groups if rule.groups else None)
    write_with_columns(table, out, added)
    return len(confidences), (None if rule is None else int(added["accepted"].sum()))
