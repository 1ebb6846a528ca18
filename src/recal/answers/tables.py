"""Tables of answers on disk: CSV, TSV, Parquet and JSONL, as columns of numbers and texts."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import FileError, InputError
from recal.files.atomic import replacing
from recal.files.tables import column_values, pyarrow_for, read_parquet

Columns = dict[str, NDArray[Any]]

SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")
_MISSING = frozenset(["", "na", "nan", "null", "none", "n/a"])


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name says that it holds a table."""
    return Path(path).suffix.lower() in SUFFIXES


def read_table(path: str | os.PathLike[str]) -> Columns:
    """Read a table as columns by name: float64 with NaN where all values are numbers, else texts ("" where missing)."""
    source = Path(path)
    suffix = source.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{source} is no table that recal can read; known endings are {', '.join(SUFFIXES)}.")
    try:
        if suffix == ".parquet":
            table = read_parquet(source, "tables")
            columns = {str(name): column_values(table, name) for name in table.column_names}
        elif suffix in (".jsonl", ".ndjson"):
            columns = _read_jsonl(source)
        else:
            columns = _read_csv(source)
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"Cannot read {source}: {getattr(error, 'strerror', None) or error}.") from error
    if not columns or not len(next(iter(columns.values()))):
        raise FileError(f"{source} holds no rows.")
    return {name: as_column(values) for name, values in columns.items()}


def _read_csv(path: Path) -> dict[str, NDArray[Any]]:
    text = path.read_text(encoding="utf-8-sig")
    header = text.partition("\n")[0]
    separator = max("\t;,", key=header.count)
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    rows = [row for row in rows if row]
    if not rows:
        raise FileError(f"{path} is empty.")
    names, body = rows[0], rows[1:]
    if len(set(names)) != len(names):
        raise FileError(f"{path}: column names must be distinct, got {', '.join(names)}.")
    for number, row in enumerate(body, 2):
        if len(row) != len(names):
            raise FileError(f"{path}, row {number} has {len(row)} values, and the header names {len(names)} columns.")
    return {name: np.array([row[place] for row in body], dtype=object) for place, name in enumerate(names)}


def _read_jsonl(path: Path) -> dict[str, NDArray[Any]]:
    rows = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise FileError(f"{path}, line {number} is not JSON: {error}.") from error
            if not isinstance(row, dict):
                raise FileError(f"{path}, line {number} must hold an object.")
            rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        column = np.empty(len(rows), dtype=object)
        column[:] = [row.get(name) for row in rows]
        columns[name] = column
    return columns


def as_column(values: NDArray[Any]) -> NDArray[Any]:
    """Return a column as float64 if every value is a number, a truth value or missing; else as texts."""
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    items = values.tolist()
    numbers = np.full(len(items), np.nan)
    for row, value in enumerate(items):
        if _is_missing(value):
            continue
        try:
            numbers[row] = float(value)
        except (TypeError, ValueError):
            break
    else:
        if not np.isnan(numbers).all():
            return numbers
    texts = np.empty(len(items), dtype=object)
    texts[:] = ["" if value is None or value != value else str(value) for value in items]
    return texts


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in _MISSING)


def write_with_columns(
    source: str | os.PathLike[str], out: str | os.PathLike[str], added: Mapping[str, Sequence[Any] | NDArray[Any]]
) -> Path:
    """Write a copy of a table with further columns; the table's own stay as they are.

    The copy may have another format than the table. A column that the table has already is replaced.
    """
    target, given = Path(out), Path(source)
    if target.suffix.lower() not in SUFFIXES:
        raise InputError(f"{target} must end in one of {', '.join(SUFFIXES)}.")
    new = {name: np.asarray(values).tolist() for name, values in added.items()}
    if given.suffix.lower() == ".parquet":
        table = read_parquet(given, "tables")
        own = {str(name): table.column(name).to_pylist() for name in table.column_names}
    elif given.suffix.lower() in (".jsonl", ".ndjson"):
        own = {name: values.tolist() for name, values in _read_jsonl(given).items()}
    else:
        as_text = target.suffix.lower() in (".csv", ".tsv")  # where every digit stays as it was written
        own = {
            name: values.tolist() if as_text else [_plain(value) for value in as_column(values).tolist()]
            for name, values in _read_csv(given).items()
        }
    columns = {name: values for name, values in own.items() if name not in new} | new
    if target.suffix.lower() == ".parquet":
        arrow, parquet = pyarrow_for("Writing Parquet files", "tables")
        with replacing(target) as file:
            parquet.write_table(arrow.table(columns), file)
        return target
    rows = zip(*columns.values())
    if target.suffix.lower() in (".jsonl", ".ndjson"):
        lines = "".join(json.dumps(dict(zip(columns, row)), ensure_ascii=False, default=str) + "\n" for row in rows)
    else:
        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer, delimiter="\t" if target.suffix.lower() == ".tsv" else ",", lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(value) for value in row] for row in rows)
        lines = buffer.getvalue()
    with replacing(target) as file:
        file.write(lines.encode())
    return target


def _plain(value: Any) -> Any:
    """Return a value for JSON and Parquet: None where it is missing."""
    return None if value != value or value == "" else value


def _cell(value: Any) -> Any:
    """Return what a CSV file holds for a value: true and false in lower case, floats with six digits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else value
