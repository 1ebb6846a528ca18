"""Which answers of a panel are right: from the truth, or from grades."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.panel_answers import (
    Match,
    Objects,
    PanelRows,
    PanelTable,
    Same,
    codes_of,
    is_missing,
)
from recal.calibrators.signal_table import GRADES
from recal.errors import InputError


def right_answers(
    rows: PanelRows, table: PanelTable, truth: Any, match: Match, same: Same | None
) -> tuple[NDArray[np.float64], bool]:
    """Return which candidate is right, (n, n_answers + 1), and whether only the main one is graded.

    The last column is "none of these". If several candidates are right, they share the row.
    """
    n, n_answers = rows.raw.shape
    right = np.zeros((n, n_answers + 1))
    grades, merged = _grades(truth, table, rows)
    if grades is None:
        column = _truth_column(truth, n)
        equal = _equal_to_truth(rows.raw, column, match, same)
    elif merged:
        equal = grades & (rows.slots == main_places(rows.slots, table.samples[0])[:, None])
    else:
        equal = np.repeat(grades, table.samples, axis=1)
    equal &= ~np.isnan(rows.slots)
    places = np.where(equal, rows.slots, n_answers).astype(np.intp)
    np.put_along_axis(right, places, 1.0, axis=1)
    none = ~equal.any(axis=1)
    right[:, -1] = none
    return right / right.sum(axis=1, keepdims=True), merged


def main_places(slots: NDArray[np.float64], n_samples: int) -> NDArray[np.float64]:
    """Return the place of the main system's answer, the most frequent of its samples; NaN if none."""
    own = slots[:, :n_samples]
    counts = (own[:, :, None] == own[:, None, :]).sum(axis=2)
    return np.asarray(own[np.arange(len(own)), counts.argmax(axis=1)])


def _grade(value: Any) -> bool:
    """Read one grade; a missing one means that there is no right answer."""
    if is_missing(value):
        return False
    word = str(value).strip().lower()
    if word not in GRADES:
        raise InputError(f"must be graded True or False, got {value!r}", argument="truth")
    return GRADES[word] > 0.5


def _truth_column(truth: Any, n: int) -> Objects:
    values = truth.tolist() if hasattr(truth, "tolist") else list(truth)
    if len(values) != n:
        raise InputError(
            f"must hold the right answer of each of the {n} questions, got {len(values)}",
            argument="truth",
        )
    column = np.full((n, 1), None, dtype=object)
    for place, value in enumerate(values):
        if is_missing(value):
            raise InputError(f"is missing in row {place}", argument="truth")
        column[place, 0] = value
    return column


def _equal_to_truth(
    raw: Objects, column: Objects, match: Match, same: Same | None
) -> NDArray[np.bool_]:
    if same is None:
        codes = codes_of(np.concatenate([raw, column], axis=1), match)
        return np.asarray(codes[:, :-1] == codes[:, -1:])
    equal = np.zeros(raw.shape, dtype=bool)
    for row, answers in enumerate(raw.tolist()):
        for place, answer in enumerate(answers):
            missing = is_missing(answer)
            equal[row, place] = not missing and bool(same(answer, column[row, 0]))
    return equal


def _grades(truth: Any, table: PanelTable, rows: PanelRows) -> tuple[Any, bool]:
    """Return grades per system or of the main one, and whether they are only of the main one."""
    n, n_systems = len(rows), len(table.systems)
    if isinstance(truth, Mapping) or hasattr(truth, "columns"):
        names = [str(name) for name in (truth if isinstance(truth, Mapping) else truth.columns)]
        if set(names) != set(table.systems):
            raise InputError(
                f"must grade the systems {', '.join(table.systems)}, got {', '.join(names)}",
                argument="truth",
            )
        truth = np.column_stack([np.asarray(truth[name]) for name in table.systems])
    array = np.asarray(truth)
    if array.ndim == 2 and array.shape[1] > 1:
        if array.shape != (n, n_systems):
            raise InputError(
                f"must be right answers (n,), or grades of shape ({n}, {n_systems}), got the shape "
                f"{array.shape}",
                argument="truth",
            )
        return np.array([[_grade(one) for one in row] for row in array.tolist()]), False
    booleans = array.ndim == 1 and array.dtype == np.bool_ and len(array) == n
    answers = [one for one in rows.raw[:, 0].tolist() if one is not None]
    if booleans and not all(isinstance(one, bool) for one in answers):
        return array[:, None], True
    return None, False
