"""Signals of any form (data frame, mapping, array) as one array of numbers, in the columns of the
fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.errors import InputError

Vector = NDArray[np.float64]

GROUPS = "groups"
_RIGHT = {"true": 1.0, "yes": 1.0, "right": 1.0, "correct": 1.0, "1": 1.0, "1.0": 1.0}
_WRONG = {"false": 0.0, "no": 0.0, "wrong": 0.0, "incorrect": 0.0, "0": 0.0, "0.0": 0.0}


def read_correct(correct: ArrayLike, n_samples: int) -> Vector:
    """Return 1.0 for right and 0.0 for wrong answers; refuse anything else."""
    values = np.asarray(correct)
    if values.ndim != 1 or len(values) != n_samples:
        raise InputError(
            f"must hold one value per answer, {n_samples}, got the shape {values.shape}",
            argument="correct",
        )
    if values.dtype.kind in "OUS":
        words = {**_RIGHT, **_WRONG}
        numbers = np.array(
            [words.get(str(value).strip().lower(), np.nan) for value in values.tolist()]
        )
    else:
        numbers = values.astype(np.float64)
    if not np.isin(numbers, (0.0, 1.0)).all():
        odd = values[~np.isin(numbers, (0.0, 1.0))][0]
        raise InputError(
            f"must be True or False, 1 or 0, for each answer, got {odd!r}", argument="correct"
        )
    if numbers.min() == numbers.max():
        kind = "right" if numbers[0] else "wrong"
        raise InputError(
            f"All {n_samples} answers are graded as {kind}; right and wrong ones are both needed."
        )
    return numbers


@dataclass(frozen=True)
class SignalTable:
    """The columns of a fit: their names, and the levels of those that are categories.

    Attributes
    ----------
    names : the names of the columns, in order; the name of the groups, if there are any, comes last
    levels : the levels of each column in sorted order, empty for numbers
    named : whether the columns came with names, so that new data are matched by name
    grouped : whether the last column contains the groups
    """

    names: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    named: bool
    grouped: bool

    def __post_init__(self) -> None:
        texts = [*self.names, *(level for levels in self.levels for level in levels)]
        if (
            not self.names
            or len(self.names) != len(self.levels)
            or not all(isinstance(text, str) for text in texts)
        ):
            raise InputError("Signals need a name and a list of levels each.")

    @classmethod
    def of(cls, signals: Any, groups: Any = None) -> SignalTable:
        """Describe the columns of these signals."""
        columns, named = _columns(signals)
        if not columns:
            raise InputError("must have at least one column", argument="signals")
        levels = [_levels(column) for column in columns.values()]
        names = list(columns)
        if groups is not None:
            name, column = _named_groups(groups)
            if name in names:
                raise InputError(
                    f"The groups have the name of a signal, {name!r}. Leave that signal out."
                )
            names.append(name)
            levels.append(tuple(sorted(set(_texts(column)) - {""})))
        return cls(tuple(names), tuple(levels), named, groups is not None)

    @property
    def categories(self) -> tuple[int, ...]:
        """The indices of columns that contain categories."""
        grouped = {len(self.names) - 1} if self.grouped else set()
        return tuple(
            place for place, levels in enumerate(self.levels) if levels or place in grouped
        )

    def values(self, signals: Any, groups: Any = None) -> Vector:
        """Return the columns of the fit as numbers, (n_samples, n_signals);

        NaN if missing or not in the fit.
        """
        columns, named = _columns(signals)
        expected = self.names[: len(self.names) - self.grouped]
        if self.named and named:
            if absent := [name for name in expected if name not in columns]:
                raise InputError(
                    f"The signals lack the column {absent[0]!r} of the fit; they have {', '.join(columns)}."
                )
            picked = [columns[name] for name in expected]
        elif len(columns) != len(expected):
            raise InputError(
                f"must have the {len(expected)} columns of the fit ({', '.join(expected)}), got {len(columns)}",
                argument="signals",
            )
        else:
            picked = list(columns.values())
        if self.grouped:
            none = np.full(len(picked[0]), "", dtype=object)
            picked.append(none if groups is None else _named_groups(groups)[1])
        if len(sizes := {len(column) for column in picked}) != 1:
            raise InputError(
                f"Signals and groups must have one value per answer; their lengths are {sorted(sizes)}."
            )
        numbers = [
            _codes(column, levels) if place in self.categories else _numbers(column, name)
            for place, (column, levels, name) in enumerate(zip(picked, self.levels, self.names))
        ]
        return np.column_stack(numbers)

    def refuse_leaks(self, values: Vector, right: Vector) -> None:
        """Refuse a column that equals the grades: a confidence learned from it would mean nothing."""
        for place, name in enumerate(self.names):
            column = values[:, place]
            same, opposite = (column == right).all(), (column == 1.0 - right).all()
            if place not in self.categories and (same or opposite) and len(right) > 2:
                raise InputError(
                    f"The signal {name!r} equals the grades in every row, so it leaks the result. Leave it out."
                )


def _named_groups(groups: Any) -> tuple[str, NDArray[Any]]:
    """Return the name of the groups and one value per answer, from an array, a named column or
    {name: values}.
    """
    if isinstance(groups, Mapping):
        if len(groups) != 1:
            raise InputError(f"must hold one column, got {len(groups)}", argument="groups")
        ((name, values),) = groups.items()
        return str(name), _as_array(values)
    return str(getattr(groups, "name", None) or GROUPS), _as_array(groups)


def _as_array(column: Any) -> NDArray[Any]:
    """Return a column as an array; pandas' own missing values, which are not equal to themselves,
    become None.
    """
    if hasattr(column, "notna") and not isinstance(column.dtype, np.dtype):
        column = column.astype(object).where(column.notna(), None)
    return np.asarray(column)


def _columns(signals: Any) -> tuple[dict[str, NDArray[Any]], bool]:
    """Return the columns by name, and whether the names are the user's own."""
    if isinstance(signals, Mapping):
        return {str(name): _as_array(column) for name, column in signals.items()}, True
    if hasattr(signals, "columns") and hasattr(signals, "__getitem__"):  # pandas, polars
        names = [str(name) for name in signals.columns]
        if len(set(names)) != len(names):
            raise InputError(
                f"The columns of the signals must have distinct names, got {', '.join(names)}."
            )
        return {str(name): _as_array(signals[name]) for name in signals.columns}, True
    array = np.asarray(signals)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise InputError(
            f"must be a table of shape (n_samples, n_signals), got the shape {array.shape}",
            argument="signals",
        )
    return {f"signal {place}": array[:, place] for place in range(array.shape[1])}, False


def _levels(column: NDArray[Any]) -> tuple[str, ...]:
    """Return the sorted levels of a text column; empty for numbers."""
    numbers = bool | int | float | np.number | None
    if column.dtype.kind in "biuf" or all(isinstance(value, numbers) for value in column.tolist()):
        return ()
    return tuple(sorted(set(_texts(column)) - {""}))


def _texts(column: NDArray[Any]) -> list[str]:
    """Return each value as text, "" if it is missing."""
    return ["" if value is None or value != value else str(value) for value in column.tolist()]


def _codes(column: NDArray[Any], levels: tuple[str, ...]) -> Vector:
    place = {level: float(code) for code, level in enumerate(levels)}
    return np.array([place.get(text, np.nan) for text in _texts(column)], dtype=np.float64)


def _numbers(column: NDArray[Any], name: str) -> Vector:
    try:
        numbers = np.array(
            [np.nan if value is None else value for value in column.tolist()], dtype=np.float64
        )
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The signal {name!r} held numbers at the fit and holds other values now: {error}."
        ) from None
    numbers[np.isinf(numbers)] = np.nan
    return numbers
