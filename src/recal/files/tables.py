"""CSV and Parquet tables.

The declared sizes of a Parquet file are checked before anything is decoded.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import FileError, MissingExtraError
from recal.files.limits import admit

# The maximum number of bytes per decoded value. A column of texts stores one number per row, and
# each text once.
_WIDTH = 8
SUFFIXES = (".csv", ".parquet")
_TEXTS = ("string", "binary")


def read_columns(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Return the columns of a .csv or .parquet file by name."""
    source = Path(path)
    if source.suffix not in SUFFIXES:
        raise FileError(f"{source} must end in .csv or .parquet to be read as a table.")
    if not source.is_file():
        raise FileError(f"There is no file {source}.")
    if source.suffix == ".csv":
        return read_csv(source)
    table = read_parquet(source)
    return {name: column_values(table, name) for name in table.column_names}


def pyarrow_for(purpose: str, extra: str = "report") -> tuple[Any, Any]:
    """Return pyarrow and its Parquet module; the error says how to install them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", extra, purpose) from None
    return pyarrow, pyarrow.parquet


def read_parquet(path: Path, extra: str = "report") -> Any:
    """Return a file as a pyarrow table with texts as dictionaries. Refuse nested columns and
    impossible sizes.

    A few hundred bytes can declare any number of equal rows, each with the same long text.
    """
    _, parquet = pyarrow_for("Reading Parquet files", extra)
    try:
        with parquet.ParquetFile(path) as file:
            admit(path, _decoded_bytes(path, file.metadata))
            texts = [
                field.name
                for field in file.schema_arrow
                if str(field.type).removeprefix("large_") in _TEXTS
            ]
        table = parquet.read_table(path, read_dictionary=texts, partitioning=None)
        table.validate(full=True)  # a damaged page may refer to texts that do not exist
    except FileError:
        raise
    except MemoryError as error:
        raise FileError(f"{path} does not fit in memory.") from error
    except (
        Exception
    ) as error:  # Arrow and its C++ code raise many kinds of errors for damaged files
        raise FileError(
            f"{path} is not a readable Parquet file: {str(error).rstrip('.')}."
        ) from error
    if table.num_rows == 0:
        raise FileError(f"{path} holds no rows.")
    return table


def column_values(table: Any, name: str) -> NDArray[Any]:
    """Return a column as an array; equal texts share one object."""
    column = table.column(name)
    if not hasattr(column.type, "index_type"):
        values: NDArray[Any] = column.to_numpy()
        return values
    parts = []
    for chunk in column.chunks:
        words = np.array([*chunk.dictionary.to_pylist(), None], dtype=object)
        parts.append(words[chunk.indices.fill_null(len(words) - 1).to_numpy()])
    return np.concatenate(parts)


def _decoded_bytes(path: Path, metadata: Any) -> int:
    total = 0
    for place in range(metadata.num_columns):
        column = metadata.schema.column(place)
        if column.max_repetition_level or "." in column.path:
            raise FileError(
                f"{path}: the column {column.path.split('.')[0]!r} is nested; one value per row is needed."
            )
        total += metadata.num_rows * max(_WIDTH, column.length or 0)
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        total += sum(
            max(0, rows.column(place).total_uncompressed_size) for place in range(rows.num_columns)
        )
    return total


def read_csv(path: Path, separators: str = ",") -> dict[str, NDArray[Any]]:
    """Return the columns of a CSV file as texts; the separator is the most frequent of `separators`
    in the header.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        separator = max(separators, key=text.partition("\n")[0].count)
        header, *rows = [
            row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if row
        ] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(
            f"{path} is not a readable CSV file: {getattr(error, 'strerror', None) or error}. Save it as text in "
            "UTF-8, with commas between columns."
        ) from error
    if not rows:
        raise FileError(f"{path} holds no rows below its header.")
    for mark in (";", "\t"):
        if len(header) == 1 and mark in header[0]:
            raise FileError(
                f"{path} is separated by {mark!r}; save it with commas between columns, and points in numbers."
            )
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise FileError(
                f"{path}: the header has {len(header)} columns and row {number} has {len(row)}."
            )
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise FileError(
            f"{path}: the header names {twice!r} twice; give each column a name of its own."
        )
    return {name: np.array(column, dtype=object) for name, column in zip(header, zip(*rows))}


def is_number(value: Any) -> bool:
    """Whether a value, or its text, is a number."""
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True
