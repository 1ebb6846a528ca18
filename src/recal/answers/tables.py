"""Tables of answers on disk: CSV, TSV, Parquet and JSONL, as columns of numbers and texts."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import FileError, InputError
from recal.files.paths import replacing
from recal.files.tables import column_values, pyarrow_for, read_csv, read_parquet

Columns = dict[str, NDArray[Any]]

SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")
_SEPARATORS = ",;\t"
_MISSING = frozenset(["", "na", "nan", "null", "none", "n/a"])


def read_table(path: str | os.PathLike[str]) -> Columns:
    """Read a table as columns by name: float64 if all values are numbers, else texts; missing
    values are NaN or "".
    """
    source = Path(path)
    suffix = source.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{source} is no table that recal can read; known endings are {', '.join(SUFFIXES)}."
        )
    if suffix == ".parquet":
        with reading(source):
            table = read_parquet(source, "tables")
        columns = {str(name): column_values(table, name) for name in table.column_names}
    else:
        columns = (
            _read_jsonl(source)
            if suffix in (".jsonl", ".ndjson")
            else read_csv(source, _SEPARATORS)
        )
    if not columns or not len(next(iter(columns.values()))):
        raise FileError(f"{source} holds no rows.")
    return {name: as_column(values) for name, values in columns.items()}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSONL file."""
    rows = []
    with reading(path), path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise FileError(f"{path}, line {number} is not JSON: {error}.") from error
            if not isinstance(row, dict):
                raise FileError(
                    f"{path}, line {number} must hold an object, got {type(row).__name__}."
                )
            rows.append(row)
    return rows


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of the file system and of decoding into a FileError that names the file."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(
            f"Cannot read {path}: {getattr(error, 'strerror', None) or error}."
        ) from error


def _read_jsonl(path: Path) -> Columns:
    rows = read_lines(path)
    return {
        name: _objects(row.get(name) for row in rows)
        for name in dict.fromkeys(name for row in rows for name in row)
    }


def _objects(values: Iterable[Any]) -> NDArray[Any]:
    items = list(values)
    column = np.empty(len(items), dtype=object)
    column[:] = items
    return column


def as_column(values: NDArray[Any]) -> NDArray[Any]:
    """Return a column as float64 if every value is a number, a boolean or missing; otherwise as
    texts.
    """
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    items = values.tolist()
    numbers = np.full(len(items), np.nan)
    for row, value in enumerate(items):
        if value is None or (isinstance(value, str) and value.strip().lower() in _MISSING):
            continue
        try:
            numbers[row] = float(value)
        except (TypeError, ValueError):
            break
    else:
        if not np.isnan(numbers).all():
            return numbers
    return _objects("" if value is None or value != value else str(value) for value in items)


def write_with_columns(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    added: Mapping[str, Sequence[Any] | NDArray[Any]],
) -> Path:
    """Write a copy of a table with additional columns; the table's own columns do not change.

    The copy may have another format than the table. An added column replaces one of the same name.
    """
    table, target = Path(source), Path(out)
    suffix, own_suffix = target.suffix.lower(), table.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{target} must end in one of {', '.join(SUFFIXES)}.")
    if own_suffix == ".parquet":
        own = read_parquet(table, "tables").to_pydict()
    elif own_suffix in (".jsonl", ".ndjson"):
        own = {name: values.tolist() for name, values in _read_jsonl(table).items()}
    else:
        own = {name: values.tolist() for name, values in read_csv(table, _SEPARATORS).items()}
        if suffix not in (".csv", ".tsv"):  # those keep every digit as it was written
            own = {
                name: [_plain(value) for value in as_column(_objects(column)).tolist()]
                for name, column in own.items()
            }
    new = {name: np.asarray(values).tolist() for name, values in added.items()}
    columns = {name: values for name, values in own.items() if name not in new} | new
    if suffix == ".parquet":
        arrow, parquet = pyarrow_for("Writing Parquet files", "tables")
        with replacing(target) as file:
            parquet.write_table(arrow.table(columns), file)
        return target
    rows = zip(*columns.values())
    if suffix in (".jsonl", ".ndjson"):
        lines = "".join(
            json.dumps(dict(zip(columns, row)), ensure_ascii=False, default=str) + "\n"
            for row in rows
        )
    else:
        buffer = io.StringIO(newline="")
        writer = csv.writer(
            buffer, delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n"
        )
        writer.writerow(columns)
        writer.writerows([_cell(value) for value in row] for row in rows)
        lines = buffer.getvalue()
    with replacing(target) as file:
        file.write(lines.encode())
    return target


def _plain(value: Any) -> Any:
    """Return a value for JSON and Parquet, or None if it is missing."""
    return None if value != value or value == "" else value


def _cell(value: Any) -> Any:
    """Return a value as written to a CSV file: true and false in lower case, floats with six
    digits.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else value
