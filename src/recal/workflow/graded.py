"""From a table of graded answers to automated answers: split, fit, decide, check, write."""

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
from recal.copies import refuse_known
from recal.decisions import profile
from recal.decisions.crossfit import crossfitted
from recal.errors import InputError
from recal.files.tables import Table, read_table
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
    right = read_grades(table, named["correct"])
    groups = None if group is None else table[group]
    clusters = table.clusters(cluster)
    if sizes_before is None:
        parts = split(len(right), seed, clusters, cross_fit)
    else:
        n_before = sum(sizes_before[1:] if cross_fit else sizes_before)
        parts = extend(sizes_before, len(right) - n_before, seed, clusters, cross_fit)
    fit, decide_on, check_on = parts
    numbers = named["numbers"]
    kinds = {"numbers": numbers, "categories": [name for name in names if name not in numbers]}
    words = [f"{kind}: {', '.join(some)}" for kind, some in kinds.items() if some]
    say(f"1/3  Read {len(right):,} graded answers; {'; '.join(words)}.")
    say(f"2/3  {split_words(parts, clusters, cross_fit, 'graded answers')}")
    signals = {name: table.numbers(name) if name in numbers else table[name] for name in names}
    if sizes_before is not None:
        _refuse_known([*signals.values(), right, groups, clusters], n_before, out)
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


def _refuse_known(columns: Sequence[NDArray[Any] | None], n_before: int, out: Path) -> None:
    """Refuse new rows that equal rows of an earlier run in every column."""
    given = [column.tolist() for column in columns if column is not None]
    _, codes = np.unique([repr(row) for row in zip(*given)], return_inverse=True)
    refuse_known(codes[n_before:, None], codes[:n_before, None], out)


def write_rows(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write columns as CSV, texts as they are."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values())))


def read_grades(table: Table, correct: str) -> Vector:
    """Return 1.0 for right and 0.0 for wrong answers."""
    try:
        return read_correct(table[correct], table.n_rows)
    except InputError as error:
        raise InputError(f"{table.path}, column {correct!r}: {error}") from None


def _signal_names(
    path: Any,
    columns: Table,
    correct: str,
    signals: Sequence[str] | None,
    others: Sequence[str | None],
) -> list[str]:
    """Return the columns to learn from, without groups, clusters and grades."""
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
