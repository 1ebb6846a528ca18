"""Answers of several systems, their truth and their signals in any form, as the arrays of a panel.

Answers are compared after normalisation: case, spaces, punctuation and the way a number is written
do not matter (`normalised`). Missing answers are None, NaN or empty text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.signal_table import SignalTable, columns_of
from recal.checks import grades_of, is_missing
from recal.clusters import ByRow
from recal.errors import InputError
from recal.schema import Record

Match = Literal["text", "exact", "number"]
# The user's function, which says whether two answers are the same, takes the place of `Match`.
Same = Callable[[Any, Any], bool]
Objects = NDArray[Any]

_DIGITS = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
_MARKS = re.compile(r"""[.,;:!?"'`()\[\]{}*_“”‘’„«»¿¡]+""")


def normalised(answer: Any, match: Match = "text") -> str:
    """Return the text by which an answer is compared; "" if it is missing.

    Examples
    --------
    >>> from recal.calibrators.panel_answers import normalised
    >>> normalised(" The  Eiffel Tower. "), normalised("1,000.0"), normalised(1000)
    ('the eiffel tower', '1000', '1000')
    >>> normalised("The answer is 42.", "number"), normalised("C++"), normalised(None)
    ('42', 'c++', '')
    """
    if _is_absent(answer):
        return ""
    if match == "exact":
        return str(answer)
    text = unicodedata.normalize("NFKC", str(answer)).casefold().strip()
    found = _DIGITS.findall(text)
    whole = _DIGITS.fullmatch(text.strip("$€£%().:; "))
    if isinstance(answer, int | float | np.number) and not isinstance(answer, bool):
        number = float(answer)
    elif found and (match == "number" or whole):
        number = float((whole.group() if whole else found[-1]).replace(",", ""))
    else:
        return " ".join(_MARKS.sub(" ", text).split()) or text
    return f"{number + 0.0:.10g}"


@dataclass(frozen=True)
class PanelRows(ByRow):
    """What a panel reads of some questions.

    Attributes
    ----------
    raw : (n, n_answers) objects, the answers as given, None if missing
    slots : (n, n_answers), the place of the first answer that is the same; NaN if missing
    signals : (n, n_signals), as numbers; NaN if missing
    asked : (n,), how many systems were asked
    """

    raw: Objects
    slots: NDArray[np.float64]
    signals: NDArray[np.float64]
    asked: NDArray[np.float64]

    def encoded(self) -> NDArray[np.float64]:
        """Return the input of a `PanelMap`."""
        return np.concatenate([self.asked[:, None], self.slots, self.signals], axis=1)

    def digits(self) -> NDArray[np.float64]:
        """Return numbers that tell questions apart, for the hashes of `recal.copies`."""
        texts = [[crc32(str(one).encode()) for one in row] for row in self.raw.tolist()]
        return np.column_stack([self.slots, self.signals, np.array(texts, dtype=np.float64)])

    def __len__(self) -> int:
        return len(self.raw)


class PanelTable(Record):
    """The systems of a fit, in order, and the columns of their signals.

    Attributes
    ----------
    systems : names of the systems; the first is the main one
    samples : how many answers each system gives
    table : the signals of all systems, named "system: column"; None if there are none
    owner : the system of each signal
    """

    systems: tuple[str, ...]
    samples: tuple[int, ...]
    owner: tuple[int, ...]
    named: bool
    table: Any = None

    def check(self) -> None:
        known = self.table is None or isinstance(self.table, SignalTable)
        names = all(isinstance(name, str) for name in self.systems)
        counts = all(isinstance(count, int) and count > 0 for count in self.samples)
        width = 1 if self.table is None else len(self.table.names)
        if not (known and names and counts and len(self.owner) == width):
            raise InputError("A panel's table needs a name and a number of answers per system.")

    @classmethod
    def of(cls, answers: Any, signals: Any = None) -> PanelTable:
        """Describe the systems of these answers and signals."""
        columns, named = _answer_columns(answers)
        samples = tuple(column.shape[1] for column in columns.values())
        flat, owner = _signal_columns(signals, tuple(columns))
        table = SignalTable.of(flat) if flat else None
        return cls(tuple(columns), samples, owner or (0,), named, table)

    def rows(self, answers: Any, signals: Any, match: Match | Same, asked: Any = None) -> PanelRows:
        """Read new answers and signals; systems that are absent were not asked."""
        columns, named = _answer_columns(answers)
        if not (named and self.named) and len(columns) <= len(self.systems):
            columns = dict(zip(self.systems, columns.values()))
        _refuse_unknown(columns, self.systems, "answers")
        if self.systems[0] not in columns:
            raise InputError(f"lack the main system {self.systems[0]!r}", argument="answers")
        n = len(columns[self.systems[0]])
        raw = np.full((n, sum(self.samples)), None, dtype=object)
        for name, width, end in zip(self.systems, self.samples, np.cumsum(self.samples).tolist()):
            own = columns.get(name, raw[:, :0])
            if own.shape[1] > width:
                raise InputError(
                    f"of {name!r} must be at most {width} samples as in the fit, got "
                    f"{own.shape[1]}",
                    argument="answers",
                )
            raw[:, end - width : end - width + own.shape[1]] = own
        codes = codes_of(raw, match)
        first = (codes[:, :, None] == codes[:, None, :]).argmax(axis=2)
        slots = np.where(codes >= 0, first, np.nan)
        numbers = self._signals(signals, n)
        return PanelRows(raw, slots, numbers, self._asked(slots, numbers, asked))

    @property
    def n_levels(self) -> NDArray[np.intp]:
        """The number of levels of each signal, 0 for numbers."""
        return np.zeros(1, np.intp) if self.table is None else self.table.n_levels

    def _signals(self, signals: Any, n: int) -> NDArray[np.float64]:
        flat, given = _signal_columns(signals, self.systems)
        if self.table is None:
            if flat:
                raise InputError(
                    "were given, and the panel was fitted without them", argument="signals"
                )
            return np.full((n, 1), np.nan)
        absent = [name for name, one in zip(self.table.names, self.owner) if one not in given]
        flat |= dict.fromkeys(absent, np.full(n, np.nan))
        values = self.table.values(flat)
        if len(values) != n:
            raise InputError(
                f"must have one value for each of the {n} questions, got {len(values)}",
                argument="signals",
            )
        return np.where(np.isinf(values), np.nan, values)

    def _asked(
        self, slots: NDArray[np.float64], numbers: NDArray[np.float64], asked: Any
    ) -> NDArray[np.float64]:
        """Return how many systems were asked: up to the last that gave an answer or a signal."""
        n_systems = len(self.systems)
        if asked is not None:
            counts = np.broadcast_to(np.asarray(asked, dtype=np.float64), (len(slots),)).copy()
            if not np.isin(counts, np.arange(n_systems + 1)).all():
                raise InputError(f"must be whole numbers from 0 to {n_systems}", argument="asked")
            return counts
        system = np.append(np.repeat(np.arange(n_systems), self.samples), self.owner)
        present = ~np.isnan(np.concatenate([slots, numbers], axis=1))
        return np.where(present, system + 1.0, 0.0).max(axis=1)


def codes_of(raw: Objects, match: Match | Same) -> NDArray[np.int64]:
    """Return numbers that are equal for equal answers of a row, -1 for missing ones."""
    if callable(match):
        return np.array([_codes_by_function(row, match) for row in raw.tolist()])
    known: dict[Any, int] = {}
    texts: dict[str, int] = {"": -1}
    codes = np.empty(raw.size, dtype=np.int64)
    for place, answer in enumerate(raw.ravel().tolist()):
        key = (type(answer), answer)
        try:
            code = known.get(key)
        except TypeError:
            raise InputError(
                f"must be text, numbers or None, got a {type(answer).__name__}",
                argument="answers",
                remedy="For other answers pass same=, a function that compares two of them",
            ) from None
        if code is None:
            text = normalised(answer, match)
            code = known[key] = texts.setdefault(text, len(texts) - 1)
        codes[place] = code
    return codes.reshape(raw.shape)


def _codes_by_function(answers: Sequence[Any], same: Same) -> list[int]:
    """Return the place of the first answer that is the same; -1 for missing answers."""
    codes: list[int] = []
    for place, answer in enumerate(answers):
        firsts = (one for one in range(place) if codes[one] == one and same(answers[one], answer))
        codes.append(-1 if answer is None else next(firsts, place))
    return codes


def _is_absent(answer: Any) -> bool:
    return is_missing(answer) or (isinstance(answer, str) and not answer.strip())


def _answer_columns(answers: Any) -> tuple[dict[str, Objects], bool]:
    """Return each system's answers as (n, n_samples) objects, and whether systems have names."""
    columns, named = columns_of(answers, _answer_samples, argument="answers", dtype=object)
    if not columns:
        raise InputError("must hold at least one system", argument="answers")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(
            f"must have one answer of each system per question, got {lengths}", argument="answers"
        )
    return columns, named


def _answer_samples(column: Any) -> Objects:
    """Return one system's answers as (n, n_samples) objects; lists are several samples.

    A single answer stands for one question.
    """
    if isinstance(column, str | bytes) or not hasattr(column, "__len__"):
        column = [column]
    values = column.tolist() if hasattr(column, "tolist") else list(column)
    rows = [list(value) if isinstance(value, list | tuple) else [value] for value in values]
    width = max((len(row) for row in rows), default=1)
    result = np.full((len(rows), max(width, 1)), None, dtype=object)
    for place, row in enumerate(rows):
        for number, answer in enumerate(row):
            result[place, number] = None if _is_absent(answer) else answer
    return result


def _signal_columns(signals: Any, systems: Sequence[str]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the columns of all systems' signals, named "system: column", and the place of the
    system that each belongs to.
    """
    if signals is None:
        return {}, ()
    if not isinstance(signals, Mapping):
        raise InputError(
            f"must be {{system: columns}}, got {type(signals).__name__}", argument="signals"
        )
    _refuse_unknown(signals, systems, "signals")
    flat: dict[str, Any] = {}
    owner: list[int] = []
    for place, system in enumerate(systems):
        if signals.get(system) is not None:
            # `SignalTable` reads the values.
            own = columns_of(signals[system], lambda column: column)[0]
            flat |= {f"{system}: {name}": column for name, column in own.items()}
            owner += [place] * len(own)
    return flat, tuple(owner)


def _refuse_unknown(given: Mapping[Any, Any], systems: Sequence[str], argument: str) -> None:
    if unknown := [str(name) for name in given if str(name) not in systems]:
        raise InputError(
            f"must be of the systems {', '.join(systems)}, got {unknown[0]!r}", argument=argument
        )


def right_answers(
    rows: PanelRows, table: PanelTable, truth: Any, match: Match | Same
) -> tuple[NDArray[np.float64], bool]:
    """Return which candidate is right, (n, n_answers + 1), and whether only the main one is graded.

    The last column is "none of these". If several candidates are right, they share the row.
    """
    n, n_answers = rows.raw.shape
    columns, named = columns_of(truth, argument="truth", dtype=object)
    if named and table.named and len(columns) > 1:
        _refuse_unknown(columns, table.systems, "truth")
        columns = {name: columns[name] for name in table.systems if name in columns}
    column = np.array(list(columns.values()), dtype=object).T
    if column.shape not in ((n, 1), (n, len(table.systems))):
        raise InputError(
            f"must be right answers ({n},), or grades of shape ({n}, {len(table.systems)}), got "
            f"the shape {column.shape}",
            argument="truth",
        )
    missing = np.array([[_is_absent(one) for one in row] for row in column.tolist()])
    main = main_places(rows.slots, table.samples[0])
    known = [one for one in column[~missing].tolist() if not isinstance(one, bool)]
    answers = [one for one in rows.raw[:, 0].tolist() if one is not None]
    merged = column.shape[1] == 1 and not (
        known or missing.all() or all(isinstance(one, bool) for one in answers)
    )
    if merged:
        grades = _read_grades(column, missing, ~np.isnan(main)[:, None], table.systems)
        equal = grades & (rows.slots == main[:, None])
    elif column.shape[1] > 1:
        starts = np.r_[0, np.cumsum(table.samples)[:-1]]
        given = np.logical_or.reduceat(~np.isnan(rows.slots), starts, axis=1)
        grades = _read_grades(column, missing, given, table.systems)
        equal = np.repeat(grades, table.samples, axis=1)
    else:
        if missing.any():
            raise InputError(f"is missing in row {missing[:, 0].argmax()}", argument="truth")
        codes = codes_of(np.concatenate([column, rows.raw], axis=1), match)
        equal = codes[:, 1:] == codes[:, :1]
    equal &= ~np.isnan(rows.slots)
    right = np.zeros((n, n_answers + 1))
    places = np.where(equal, rows.slots, n_answers).astype(np.intp)
    np.put_along_axis(right, places, 1.0, axis=1)
    right[:, -1] = ~equal.any(axis=1)
    return right / right.sum(axis=1, keepdims=True), merged


def main_places(slots: NDArray[np.float64], n_samples: int) -> NDArray[np.float64]:
    """Return the place of the main system's most frequent answer; NaN if there is none."""
    own = slots[:, :n_samples]
    counts = (own[:, :, None] == own[:, None, :]).sum(axis=2)
    return np.asarray(own[np.arange(len(own)), counts.argmax(axis=1)])


def _read_grades(
    grades: Objects, missing: NDArray[np.bool_], given: NDArray[np.bool_], systems: Sequence[str]
) -> NDArray[np.bool_]:
    """Read grades, which only missing answers may lack."""
    if (missing & given).any():
        row, place = np.argwhere(missing & given)[0].tolist()
        raise InputError(f"lacks the grade of {systems[place]!r} in row {row}", argument="truth")
    read = grades_of(grades)
    if odd := grades[~missing & np.isnan(read)].tolist():
        raise InputError(f"must be graded True or False, got {odd[0]!r}", argument="truth")
    return np.asarray(read == 1.0)
