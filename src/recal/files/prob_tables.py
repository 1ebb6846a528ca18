"""Probabilities in a table from anywhere: a CSV or Parquet file, one row for each sample.

One column, named `label` unless said otherwise, holds the true classes; every other column is a class, and its name
is the class's name. Labels are names of columns, or, where they are whole numbers and the columns are named
otherwise, the columns' numbers from 0.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import check_labels, check_probs
from recal.errors import FileError, InputError, MissingExtraError
from recal.files.probs import Probabilities

SUFFIXES = (".csv", ".parquet")


def read_columns(path: str | os.PathLike[str]) -> dict[str, NDArray]:
    """Read every column of a .csv or .parquet file by its name."""
    source = Path(path)
    if source.suffix not in SUFFIXES:
        raise FileError(f"{source} must end in .csv or .parquet to be read as a table.")
    if not source.is_file():
        raise FileError(f"There is no file {source}.")
    return _read_csv(source) if source.suffix == ".csv" else _read_parquet(source)


def read_prob_table(
    path: str | os.PathLike[str], label_column: str = "label", leave_out: Collection[str] = ()
) -> Probabilities:
    """Read probabilities, and labels where the label column is there, from a .csv or .parquet file.

    Columns to `leave_out` hold something else, such as the camera of each row.
    """
    source = Path(path)
    columns = {name: values for name, values in read_columns(source).items() if name not in leave_out}
    labels = columns.pop(label_column, None)
    if not columns:
        raise FileError(f"{source} has no columns beside {label_column!r}; every other column must be a class.")
    names = np.array(list(columns))
    try:
        probs = check_probs(np.column_stack([_numbers(name, values) for name, values in columns.items()]))
        if labels is None:
            return Probabilities(probs, None, names)
        return Probabilities(probs, check_labels(*_labels(labels, names), classes=names), names)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _labels(labels: NDArray, names: NDArray) -> tuple[NDArray, int, int]:
    """Labels as columns' names."""
    words = np.array([str(label) for label in labels.tolist()])
    if not set(words.tolist()) <= set(names.tolist()):
        try:
            numbers = np.array([int(word) for word in words.tolist()])
        except ValueError:
            pass  # the check says which label is no column
        else:
            words = names[check_labels(numbers, len(numbers), len(names))]
    return words, len(words), len(names)


def _numbers(name: str, values: NDArray) -> NDArray[np.float64]:
    try:
        return values.astype(np.float64)
    except (ValueError, TypeError):
        row, value = next((i, v) for i, v in enumerate(values.tolist()) if not _is_number(v))
        raise InputError(
            f"The column {name!r} must hold probabilities, as every column but the labels' does; row {row} holds "
            f"{value!r}. Say which column holds the labels, or leave this one out."
        ) from None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True


def _read_csv(path: Path) -> dict[str, NDArray]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            rows = [row for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"{path} is not a readable CSV file: {error}.") from error
    if not rows:
        raise FileError(f"{path} holds no rows below its header.")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise FileError(f"{path}: the header has {len(header)} columns and row {number} has {len(row)}.")
    if len(set(header)) != len(header):
        raise FileError(f"{path}: the header names a column twice.")
    return {name: np.array(column) for name, column in zip(header, zip(*rows))}


def _read_parquet(path: Path) -> dict[str, NDArray]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "report", "Reading Parquet files") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise FileError(f"{path} is not a readable Parquet file: {str(error).rstrip('.')}.") from error
    if table.num_rows == 0:
        raise FileError(f"{path} holds no rows.")
    return {name: table.column(name).to_numpy() for name in table.column_names}
