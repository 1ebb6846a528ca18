"""Signals of any form (frame, mapping, array) as one array, in the columns of the fit."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Vector, as_array, as_column, grades_of, text_of
from recal.errors import InputError, UnseenValuesWarning
from recal.schema import Flag, FloatArray, Levels, Record, Texts

GROUPS = "groups"


def read_correct(correct: ArrayLike, n_samples: int) -> Vector:
    """Return 1.0 for right and 0.0 for wrong answers; refuse anything else."""
    values = as_array(correct, "correct")
    numbers = grades_of(values)
    if values.shape != (n_samples,) or set(numbers.tolist()) != {0.0, 1.0}:
        odd = [one for one, known in zip(values, ~np.isnan(numbers)) if not np.all(known)]
        raise InputError(
            f"must be True or False, 1 or 0, for each of the {n_samples} answers, with some right "
            f"and some wrong; got {repr(odd[0]) if odd else f'the shape {values.shape}'}",
            argument="correct",
        )
    return numbers


class SignalTable(Record):
    """The columns of a fit: their names, kinds, levels and ranges, which hold for all later data.

    Attributes
    ----------
    names : the names of the columns, in order; the name of the groups, if there are any, comes last
    levels : the levels of each column in sorted order, empty for numbers
    lows, highs : the range of each column of numbers, 0 for categories
    named : whether the columns came with names, so that new data are matched by name
    grouped : whether the last column contains the groups
    """

    names: Texts
    levels: Levels
    lows: Annotated[Vector, FloatArray("S")]
    highs: Annotated[Vector, FloatArray("S")]
    named: Annotated[bool, Flag()]
    grouped: Annotated[bool, Flag()]

    def check(self) -> None:
        if not len(self.names) == len(self.levels) == len(self.lows):
            raise InputError("must have one entry per signal", argument="levels")

    @classmethod
    def of(cls, signals: Any, groups: Any = None) -> SignalTable:
        """Describe the columns of these signals."""
        columns, named = columns_of(signals)
        if groups is not None:
            name, column = named_groups(groups)
            if name in columns:
                raise InputError(
                    f"The groups have the name of a signal, {name!r}. Leave that signal out."
                )
            columns[name] = np.array(_texts(column), dtype=object)
        if len(columns) == (groups is not None):
            raise InputError("must have at least one column", argument="signals")
        levels, lows, highs = [], np.zeros(len(columns)), np.zeros(len(columns))
        for place, (name, column) in enumerate(columns.items()):
            levels.append(_text_levels(column, name))
            if not levels[-1]:
                numbers = _numbers(column, name)
                finite = np.clip(numbers[np.isfinite(numbers)], -1e100, 1e100)
                if len(finite):
                    lows[place], highs[place] = finite.min(), finite.max()
        return cls(tuple(columns), tuple(levels), lows, highs, named, groups is not None)

    @cached_property
    def n_levels(self) -> NDArray[np.intp]:
        """The number of levels of each column, 0 for numbers."""
        return np.array([len(levels) for levels in self.levels], dtype=np.intp)

    @property
    def shares(self) -> tuple[str, ...]:
        """The names of the columns whose numbers differ and all lie in [0, 1]."""
        inside = (self.lows >= 0.0) & (self.highs <= 1.0) & (self.lows < self.highs)
        return tuple(name for name, share in zip(self.names, inside.tolist()) if share)

    def values(self, signals: Any, groups: Any = None) -> Vector:
        """Return the columns of the fit as numbers, (n_samples, n_signals).

        Categories become the positions of their levels. Missing values and levels that were not in
        the fit become NaN.
        """
        picked = self._picked(signals, groups)
        sizes = {len(column) for column in picked}
        if len(sizes) != 1:
            raise InputError(f"Signals and groups differ in length: {sorted(sizes)}.")
        values = np.empty((sizes.pop(), len(picked)))
        for place, (column, codes, name) in enumerate(zip(picked, self._codes, self.names)):
            if codes:
                values[:, place] = [codes.get(text, np.nan) for text in _texts(column)]
            else:
                values[:, place] = _numbers(column, name)
        return values

    @cached_property
    def _codes(self) -> list[dict[str, float]]:
        return [{level: float(code) for code, level in enumerate(one)} for one in self.levels]

    def _picked(self, signals: Any, groups: Any) -> list[NDArray[Any]]:
        columns, named = columns_of(signals)
        expected = self.names[: len(self.names) - self.grouped]
        names = expected if self.named and named else tuple(columns)
        if len(names) != len(expected) or any(name not in columns for name in names):
            raise InputError(
                f"must have the columns of the fit ({', '.join(expected)}), got "
                f"{', '.join(columns)}",
                argument="signals",
            )
        if self.grouped and groups is None:
            raise InputError("The fit had groups, and these answers come without. Pass groups=.")
        if groups is not None and not self.grouped:
            raise InputError("The fit had no groups, and these answers do. Leave out groups=.")
        picked = [columns[name] for name in names]
        return [*picked, named_groups(groups)[1]] if self.grouped else picked

    @cached_property
    def _bounds(self) -> tuple[Vector, Vector]:
        """The values beyond which a number is far outside the range of the fit."""
        share, category = (self.lows >= 0.0) & (self.highs <= 1.0), self.n_levels > 0
        width = np.where(share, 0.0, 5.0 * (self.highs - self.lows))
        lows = np.where(share, 0.0, self.lows - width)
        highs = np.where(share, 1.0, self.highs + width)
        return np.where(category, -np.inf, lows), np.where(category, np.inf, highs)

    def unlike(self, values: Vector, signals: Any, groups: Any = None) -> NDArray[np.bool_]:
        """Return which values are levels that were not in the fit, or numbers far outside its
        range, (n_samples, n_signals).

        Far outside means below or above the range by more than five times its width; for a signal
        in [0, 1], it means outside [0, 1].
        """
        lows, highs = self._bounds
        far = np.isfinite(values) & ((values < lows) | (values > highs))
        unknown = np.isnan(values) & (self.n_levels > 0)
        for place in np.flatnonzero(unknown.any(axis=0)):
            texts = _texts(self._picked(signals, groups)[place])
            unknown[:, place] &= np.array(texts, dtype=object) != ""
        return far | unknown

    def warn_of_unlike(self, values: Vector, signals: Any, groups: Any = None) -> None:
        """Warn of values unlike those of the fit."""
        odd, told = self.unlike(values, signals, groups), []
        for place in np.flatnonzero(odd.any(axis=0)):
            rows, name = odd[:, place], self.names[place]
            if self.levels[place]:
                text = min(_texts(self._picked(signals, groups)[place][rows]))
                told.append(f"{name!r} is {reprlib.repr(text)}, which was not in the fit")
            else:
                usual = f"{self.lows[place]:g} to {self.highs[place]:g}"
                told.append(f"{name!r} is {values[rows, place][0]:g}, and {usual} in the fit")
        if told:
            warnings.warn(
                f"Values unlike those of the fit: {'; '.join(told)}. Their confidence may be "
                "wrong.",
                UnseenValuesWarning,
                stacklevel=3,
            )

    def refuse_leaks(self, values: Vector, right: Vector) -> None:
        """Refuse a column that tells the grades: a confidence learned from it means nothing.

        A column tells the grades if it equals them, or if a threshold or a few distinct values
        separate right from wrong in every row, with at least 10 rows of each.
        """
        rarer = min(right.sum(), len(right) - right.sum())
        for place, name in enumerate(self.names):
            column = np.where(np.isnan(values[:, place]), -np.inf, values[:, place])
            equal = (column == right).all() or (column == 1.0 - right).all()
            if (equal and len(right) > 2) or (rarer >= 10 and _separates(column, right)):
                raise InputError(
                    f"The signal {name!r} separates right from wrong answers in every row, so it "
                    "leaks the grades. Leave it out."
                )


def _separates(column: Vector, right: Vector) -> bool:
    good, bad = column[right > 0.5], column[right < 0.5]
    if good.min() > bad.max() or bad.min() > good.max():
        return True
    distinct, index, count = np.unique(column, return_inverse=True, return_counts=True)
    shares = np.bincount(index, right) / count
    return bool(len(distinct) ** 2 <= len(column) and np.isin(shares, (0.0, 1.0)).all())


def named_groups(groups: Any) -> tuple[str, NDArray[Any]]:
    """Return the name of the groups and one value per answer, from a single value, an array, a
    named column or {name: values}.
    """
    if isinstance(groups, Mapping):
        if len(groups) != 1:
            raise InputError(f"must hold one column, got {len(groups)}", argument="groups")
        ((name, values),) = groups.items()
        return str(name), as_column(values)
    return str(getattr(groups, "name", None) or GROUPS), as_column(groups)


def columns_of(
    table: Any,
    read: Callable[[Any], NDArray[Any]] = as_column,
    *,
    argument: str = "signals",
    dtype: type | None = None,
) -> tuple[dict[str, NDArray[Any]], bool]:
    """Return the columns of a mapping, data frame or array by name, and whether the names are the
    user's own.
    """
    keys = table if isinstance(table, Mapping) else getattr(table, "columns", None)
    if keys is not None:  # a mapping, or a data frame of pandas or polars
        names = [str(key) for key in keys]
        if len(set(names)) != len(names):
            raise InputError(
                f"must have columns with distinct names, got {', '.join(names)}", argument=argument
            )
        return {str(key): read(table[key]) for key in keys}, True
    array = as_array(table, argument, dtype)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise InputError(
            "must be a mapping of names to columns, a data frame, or an array of shape (n, "
            f"n_{argument}), got the shape {array.shape}",
            argument=argument,
        )
    one = "signal" if argument == "signals" else "system"
    return {f"{one} {place}": read(array[:, place]) for place in range(array.shape[1])}, False


def _text_levels(column: NDArray[Any], name: str) -> tuple[str, ...]:
    """Return the sorted levels of a text column; empty for numbers."""
    if column.dtype.kind in "biuf":
        return ()
    values = column.tolist()
    for value in values:
        if not (isinstance(value, str) or _is_number(value)):
            raise InputError(f"The signal {name!r} must hold numbers or texts, got {value!r:.80}.")
    if not any(isinstance(value, str) for value in values):
        return ()
    return tuple(sorted(set(_texts(column)) - {""}))


def _is_number(value: Any) -> bool:
    return value is None or (hasattr(value, "__float__") and not isinstance(value, np.ndarray))


def _texts(column: NDArray[Any]) -> list[str]:
    """Return each value as text, "" if it is missing."""
    return [text_of(value) for value in column.tolist()]


def _numbers(column: NDArray[Any], name: str) -> Vector:
    if column.dtype.kind in "biuf":
        return column.astype(np.float64)
    filled = [np.nan if value in (None, "") else value for value in column.tolist()]
    try:
        return np.array(filled, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The signal {name!r} held numbers at the fit and holds other values now: {error}."
        ) from None
