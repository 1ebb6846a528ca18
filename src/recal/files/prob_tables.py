"""Probabilities in a table, one row for each sample: recal's own Parquet files, and CSV or Parquet from anywhere.

From anywhere: one column, named `label` unless said otherwise, holds the true classes; every other column is a class,
and its name is the class's name. Labels are names of columns, or, where they are whole numbers and the columns are
named otherwise, the columns' numbers from 0.

recal's own: `input` where inputs have names, `answer`, `confidence`, `accepted` where the calibration holds a rule,
`passes` where forward passes were counted, `label` where it is known, and, in Parquet, for every class a column named
``p_`` and the class. They are written and read here, so that what one command writes the others read. A CSV file is for
people and spreadsheets: it holds the answers without the probabilities of every class.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import Labels, check_confidences, check_labels, check_probs
from recal.errors import FileError, InputError, Remedy
from recal.files.atomic import replacing
from recal.files.parquet import column_values, pyarrow_for, read_parquet
from recal.files.probs import Probabilities, write_probs

_FITTED = b"recal.fitted_rows"
SUFFIXES = (".csv", ".parquet")
_ORIGIN = b"recal_origin"
_LABEL = "label"
# The columns of recal's own tables beside the classes'.
_ANSWER, _BESIDE, _PREFIX = ("answer", "confidence"), ("accepted", "passes", "input"), "p_"
# What they were called before 1.0.
_RENAMED = {"prediction": "answer", "accept": "accepted"}
WRITTEN = (".npz", ".parquet", ".csv")


def check_prob_name(path: Path) -> None:
    """Refuse a name that will not do, before the work begins."""
    if path.suffix not in WRITTEN:
        raise InputError(f"Answers are written to a name ending in .npz, .parquet or .csv, got {path.name!r}.")
    if path.suffix == ".parquet":
        pyarrow_for("Writing a .parquet table")


def write_prob_file(
    path: Path,
    probs: NDArray[np.float64],
    labels: Labels | None = None,
    classes: NDArray[Any] | None = None,
    *,
    confidence: NDArray[np.float64] | None = None,
    accepted: NDArray[np.bool_] | None = None,
    passes: NDArray[np.int64] | None = None,
    inputs: Sequence[str] | None = None,
    origin: Mapping[str, Any] | None = None,
    fitted_rows: int = 0,
) -> Path:
    """Write answers to an .npz file, a Parquet table or a CSV table, as the name says, whole or not at all.

    The confidence in the answers is each row's largest probability where it is not given. A Parquet table
    keeps in its metadata what it was made from, `origin`, which `read_origin` returns.
    """
    check_prob_name(path)
    names = np.arange(probs.shape[1]) if classes is None else classes
    answer = names[probs.argmax(axis=1)]
    if path.suffix == ".npz":
        beside = {"answer": answer} | ({} if accepted is None else {"accepted": accepted})
        return write_probs(path, probs, labels, classes, confidence, fitted_rows, **beside)
    sure = probs.max(axis=1) if confidence is None else confidence
    columns: dict[str, Any] = {} if inputs is None else {"input": list(inputs)}
    columns |= {_ANSWER[0]: answer, _ANSWER[1]: sure}
    columns |= {name: values for name, values in zip(_BESIDE, (accepted, passes)) if values is not None}
    if labels is not None:
        columns["label"] = names[labels]
    if path.suffix == ".csv":
        return _write_csv(path, columns)
    arrow, parquet = pyarrow_for("Writing a .parquet table")
    for place, name in enumerate(names.tolist()):
        columns[f"{_PREFIX}{name}"] = np.ascontiguousarray(probs[:, place])
    table = arrow.table(columns)
    metadata = {_FITTED: str(fitted_rows).encode()} if fitted_rows else {}
    metadata |= {} if origin is None else {_ORIGIN: json.dumps(origin).encode()}
    table = table.replace_schema_metadata(metadata)
    # A dictionary of probabilities holds nearly as many as there are rows: a sixth more bytes, and twice the time.
    repeating = [name for name in columns if name != _ANSWER[1] and not name.startswith(_PREFIX)]
    with replacing(path) as file:
        parquet.write_table(table, file, use_dictionary=repeating)
    return path


def _write_csv(path: Path, columns: dict[str, Any]) -> Path:
    """Write the table as text: numbers to six digits, and no cell that a spreadsheet would run as a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    shown = [_csv_cells(np.asarray(values)) for values in columns.values()]
    writer.writerows(zip(*shown))
    with replacing(path) as file:
        file.write(text.getvalue().encode("utf-8"))
    return path


def _csv_cells(values: NDArray[Any]) -> list[str]:
    if values.dtype.kind == "f":
        return [f"{value:.6g}" for value in values.tolist()]
    if values.dtype.kind == "b":
        return ["true" if value else "false" for value in values.tolist()]
    texts = [str(value) for value in values.tolist()]
    return [f"'{text}" if text[:1] in "=+-@\t\r" and text and not _is_number(text) else text for text in texts]


def read_origin(path: Path) -> dict[str, Any] | None:
    """Return what a table says it was made from; None where it says nothing."""
    _, parquet = pyarrow_for("Reading Parquet files")
    try:
        with path.open("rb") as file:
            held = json.loads((parquet.read_metadata(file).metadata or {})[_ORIGIN])
    except Exception:  # no such table, no such metadata, or a damaged one
        return None
    return held if isinstance(held, dict) else None


def read_columns(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read every column of a .csv or .parquet file by its name."""
    source = Path(path)
    if source.suffix not in SUFFIXES:
        raise FileError(f"{source} must end in .csv or .parquet to be read as a table.")
    if not source.is_file():
        raise FileError(f"There is no file {source}.")
    return _read_csv(source) if source.suffix == ".csv" else _read_parquet(source)


def read_prob_table(
    path: str | os.PathLike[str], label_column: str = _LABEL, leave_out: Collection[str] = ()
) -> Probabilities:
    """Read probabilities, and labels where the label column is there, from a .csv or .parquet file.

    Columns to `leave_out` hold something else, such as the camera of each row.
    """
    source = Path(path)
    columns = {name: values for name, values in read_columns(source).items() if name not in leave_out}
    if {"prediction", "confidence"} <= set(columns):
        columns = {_RENAMED.get(name, name): values for name, values in columns.items()}
    if label_column != _LABEL and label_column not in columns:
        raise FileError(f"{source} has no column {label_column!r}; it has {', '.join(columns)}.")
    labels = columns.pop(label_column, None)
    sure = columns.get(_ANSWER[1])
    own = _take_own(columns)
    if not own and set(_ANSWER) <= set(columns):
        raise FileError(
            f"{source} holds answers without the probabilities of every class. Apply with a name ending in .npz or "
            ".parquet, which hold them."
        )
    if not columns:
        raise FileError(f"{source} has no columns beside {label_column!r}; every other column must be a class.")
    names = np.array([name.removeprefix(_PREFIX) if own else name for name in columns])
    try:
        values = np.column_stack([_numbers(name, column) for name, column in columns.items()])
        if len(names) == 1 and not own:
            names = _binary_classes(str(names[0]), labels)
        probs = check_probs(values, binary=len(names) == 2)
        # Where recal wrote numbers for want of names, the columns have none.
        shown = None if own and names.tolist() == [str(number) for number in range(len(names))] else names
        confidence = check_confidences(_numbers(_ANSWER[1], sure), len(probs)) if own and sure is not None else None
        truth = None if labels is None else check_labels(*_labels(labels, names), classes=names)
        return Probabilities(probs, truth, shown, confidence, _fitted_rows(source) if own else 0)
    except InputError as error:
        raise error.at(source) from None


def _binary_classes(column: str, labels: NDArray[Any] | None) -> NDArray[Any]:
    """Return the two classes of a table with one column of probabilities, which are those of the second class.

    The second class is the column's name if that is a label, and otherwise the label 1.
    """
    words = [] if labels is None else sorted({str(label) for label in labels.tolist()})
    others = [word for word in words if word != column]
    if column in words and len(others) == 1:
        return np.array([others[0], column])
    if set(words) <= {"0", "1"}:
        return np.array(["0", "1"])
    raise InputError(
        f"The column {column!r} holds one probability per row, so it is that of the second of two classes, but no "
        f"label is called so: the labels are {', '.join(words[:8])}",
        remedy="Name the column after the label that it is the probability of, or write labels as 0 and 1",
    )


def _take_own(columns: dict[str, NDArray[Any]]) -> bool:
    """Whether the table is one of recal's own; what it tells beside the probabilities is then taken out."""
    rest = [name for name in columns if name not in (*_ANSWER, *_BESIDE)]
    own = set(_ANSWER) <= set(columns) and bool(rest) and all(name.startswith(_PREFIX) for name in rest)
    if own:
        for name in (*_ANSWER, *_BESIDE):
            columns.pop(name, None)
    return own


def _labels(labels: NDArray[Any], names: NDArray[Any]) -> tuple[NDArray[Any], int, int]:
    """Labels as columns' names."""
    words = np.array([str(label) for label in labels.tolist()])
    if not set(words.tolist()) <= set(names.tolist()):
        try:
            numbers = np.array([int(word) for word in words.tolist()])
        except ValueError:
            row, word = next((row, word) for row, word in enumerate(words.tolist()) if word not in names)
            raise InputError(
                f"The label {word!r} of row {row} names no column; the columns of classes are "
                f"{', '.join(names.tolist()[:8])}."
            ) from None
        else:
            words = names[check_labels(numbers, len(numbers), len(names))]
    return words, len(words), len(names)


def _numbers(name: str, values: NDArray[Any]) -> NDArray[np.float64]:
    try:
        return values.astype(np.float64)
    except (ValueError, TypeError):
        bad = [(row, value) for row, value in enumerate(values.tolist()) if not _is_number(value)]
        row, value = bad[0]
        some = f"The column {name!r} must hold probabilities, as every column but the labels' does; row {row} "
        if len(bad) < len(values):
            raise InputError(f"{some}is {value!r}. Correct or remove that row.") from None
        raise InputError(
            f"{some}holds {value!r}",
            remedy=Remedy(
                f"If it holds the labels, pass label_column={name!r}; else remove the column",
                typed=f"If it holds the labels, add --label-column {quote(name)}; else remove the column",
            ),
        ) from None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True


def _read_csv(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            rows = [row for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(
            f"{path} is not a readable CSV file: {error}. Save it as text in UTF-8, with commas between columns."
        ) from error
    if not rows:
        raise FileError(f"{path} holds no rows below its header.")
    for mark in (";", "\t"):
        if len(header) == 1 and mark in header[0]:
            raise FileError(
                f"{path} is separated by {mark!r}; save it with commas between columns, and points in numbers."
            )
    if numbers := [name for name in header if _is_number(name) and not name.isdecimal()]:
        raise FileError(
            f"{path} has no header: its first row holds {numbers[0]}. Begin with a row of the classes' names, and "
            "'label' above the labels."
        )
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise FileError(f"{path}: the header has {len(header)} columns and row {number} has {len(row)}.")
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise FileError(f"{path}: the header names {twice!r} twice; give each column a name of its own.")
    return {name: np.array(column) for name, column in zip(header, zip(*rows))}


def _fitted_rows(path: Path) -> int:
    """How many of its rows the calibration was fitted on, as recal's own tables say."""
    if path.suffix != ".parquet":
        return 0
    said = (pyarrow_for("Reading Parquet files")[1].read_schema(path).metadata or {}).get(_FITTED, b"0")
    return int(said) if said.isdigit() else 0


def _read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    table = read_parquet(path)
    return {name: column_values(table, name) for name in table.column_names}
