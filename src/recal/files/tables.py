"""Tables on disk: CSV, TSV, Parquet and JSONL, with every cell as it was written.

Nothing is guessed from the contents of one file. Ids, groups, clusters, categories, answers and
fields of prompts are texts: "1", "1.0" and "01" are three different ones. Only columns that
somebody declared as numbers are read as numbers. The declared sizes of a Parquet file are checked
before anything is decoded.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import as_objects, text_of
from recal.errors import FileError, InputError, needs_extra
from recal.files.paths import LINES, TABLES, admit, file_errors, replacing

SUFFIXES = (*TABLES, *LINES)


class Table(Mapping[str, NDArray[Any]]):
    """Columns of texts by name; `numbers` reads one as numbers.

    Parameters
    ----------
    columns : mapping of name to cells
        Texts of a CSV file, or values of JSON and Parquet.
    path : where the table comes from, for error messages

    Examples
    --------
    >>> from recal.files.tables import Table
    >>> table = Table({"id": ["007", "7"], "score": ["0.5", ""]})
    >>> table["id"].tolist(), table.numbers("score").tolist()
    (['007', '7'], [0.5, nan])
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]], path: Any = "the table") -> None:
        self.cells = {str(name): as_objects(values) for name, values in columns.items()}
        self.path = path

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column as texts; a missing value is the empty text."""
        return as_objects(map(cell_text, self._column(name)))

    def __contains__(self, name: object) -> bool:
        return name in self.cells

    def __iter__(self) -> Iterator[str]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def n_rows(self) -> int:
        return len(next(iter(self.cells.values()))) if self.cells else 0

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column as numbers; a missing value is NaN."""
        column = self._column(name)
        numbers = np.array([_number(value) for value in column], dtype=object)
        for row, number in enumerate(numbers):
            if number is None:
                raise InputError(
                    f"{self.path}, row {row + 1}: the column {name!r} must hold numbers, "
                    f"got {cell_text(column[row])!r}."
                )
        return numbers.astype(np.float64)

    def is_numeric(self, name: str) -> bool:
        """Whether every value of a column is a number or missing, and not all are missing."""
        numbers = [_number(value) for value in self._column(name)]
        return None not in numbers and any(number == number for number in numbers)

    def filled(self, name: str, **how: Any) -> NDArray[Any]:
        """Return a column as texts; refuse one that is partly empty."""
        column = self[name]
        refuse_empty(self.path, name, column == "", **how)
        return column

    def clusters(self, name: str | None) -> NDArray[Any] | None:
        """Return a column of clusters; an empty name would be one more cluster."""
        remedy = "Give rows that belong to no other row a name of their own"
        return None if name is None else self.filled(name, remedy=remedy)

    def check(self, names: Iterable[str]) -> None:
        """Refuse names of columns that the table does not have."""
        for name in names:
            self._column(name)

    def _column(self, name: str) -> NDArray[Any]:
        if name not in self.cells:
            raise InputError(f"{self.path} has no column {name!r}; it has {', '.join(self)}.")
        return self.cells[name]


def refuse_empty(
    path: Any, name: str, empty: NDArray[np.bool_], remedy: str = "Fill it in, or remove these rows"
) -> None:
    """Refuse a column of which some cells are empty."""
    if empty.any():
        raise InputError(
            f"{path}: the column {name!r} is empty in {empty.sum()} of {len(empty)} rows, first in "
            f"row {empty.argmax() + 1} below the header",
            remedy=remedy,
        )


def cell_text(value: Any) -> str:
    """Return a cell as text; some values of JSON and Parquet have no text of their own."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return text_of(value)


def _number(value: Any) -> float | None:
    """Return a cell as a number, NaN if it is missing, None if it is something else."""
    if isinstance(value, str):
        value = value.strip()
        if value.lower() in ("", "na", "nan", "null", "none", "n/a"):
            return np.nan
    elif value is None:
        return np.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def read_table(path: str | os.PathLike[str]) -> Table:
    """Read a .csv, .tsv, .parquet or .jsonl file; every column is a column of texts.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from recal.answers import read_table
    >>> path = Path(tempfile.mkdtemp()) / "graded.csv"
    >>> _ = path.write_text("customer,stated\\n007,0.9\\n7,\\n")
    >>> table = read_table(path)
    >>> table["customer"].tolist(), table.numbers("stated").tolist()
    (['007', '7'], [0.9, nan])
    """
    source = Path(path)
    suffix = source.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{source} is no table that recal can read; known endings are {', '.join(SUFFIXES)}."
        )
    if not source.is_file():
        raise FileError(f"There is no file {source}.")
    if suffix == ".parquet":
        table = read_parquet(source)
        columns: Mapping[str, Any] = {
            name: column_values(table, name).tolist() for name in table.column_names
        }
    elif suffix in LINES:
        rows = read_lines(source)
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
    else:
        header, cells = read_csv(source)
        columns = dict(zip(header, zip(*cells)))
    found = Table(columns, source)
    if not found.n_rows:
        raise FileError(f"{source} holds no rows.")
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSONL file."""
    rows = []
    with file_errors(path, "read"), path.open(encoding="utf-8") as file:
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
    if not rows:
        raise FileError(f"{path} holds no rows.")
    return rows


def read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a CSV file; commas, semicolons or tabs separate its cells."""
    with file_errors(path, "read", " Save it as text in UTF-8, with commas between columns."):
        text = path.read_text(encoding="utf-8-sig")
        delimiter = separator_of(path, text.partition("\n")[0])
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    header = rows[0] if rows else []
    # An empty line is a missing value in a table of one column, and no row in any other.
    rows = [row or [""] for row in rows[1:] if row or len(header) == 1]
    if not rows:
        raise FileError(f"{path} holds no rows below its header.")
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
    return header, rows


def separator_of(path: Path, header: str) -> str:
    """Return what separates the cells of a file with this first line."""
    return "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=header.count)


def pyarrow_for(purpose: str) -> tuple[Any, Any]:
    """Return pyarrow and its Parquet module; the error says how to install them."""
    with needs_extra("tables", purpose):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet


def read_parquet(path: Path) -> Any:
    """Return a file as a pyarrow table with texts as dictionaries. Refuse nested columns and
    impossible sizes.

    A few hundred bytes can declare any number of equal rows, each with the same long text.
    """
    _, parquet = pyarrow_for("Reading Parquet files")
    try:
        with parquet.ParquetFile(path) as file:
            admit(path, _decoded_bytes(path, file.metadata))
            texts = [
                field.name
                for field in file.schema_arrow
                if str(field.type).removeprefix("large_") in ("string", "binary")
            ]
        table = parquet.read_table(path, read_dictionary=texts, partitioning=None)
        table.validate(full=True)  # a damaged page may refer to texts that do not exist
    except FileError:
        raise
    except MemoryError as error:
        raise FileError(f"{path} does not fit in memory.") from error
    except Exception as error:  # Arrow raises many kinds of errors for damaged files
        problem = str(error).rstrip(".")
        raise FileError(f"{path} is not a readable Parquet file: {problem}.") from error
    if table.num_rows == 0:
        raise FileError(f"{path} holds no rows.")
    return table


def column_values(table: Any, name: str) -> NDArray[Any]:
    """Return a column as an array; equal texts share one object, and integers stay integers."""
    column = table.column(name)
    if not hasattr(column.type, "index_type"):
        if column.null_count:
            return as_objects(column.to_pylist())
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
            name = column.path.split(".")[0]
            raise FileError(
                f"{path}: the column {name!r} is nested; one value per row is needed. Write lists, "
                "such as several answers of one system, to a .jsonl file."
            )
        # A column of texts stores one number of eight bytes per row, and each text once.
        total += metadata.num_rows * max(8, column.length or 0)
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        total += sum(
            max(0, rows.column(place).total_uncompressed_size) for place in range(rows.num_columns)
        )
    return total


def write_with_columns(
    table: Table,
    out: str | os.PathLike[str],
    added: Mapping[str, Sequence[Any] | NDArray[Any]],
    *,
    overwrite: bool = False,
) -> dict[str, str]:
    """Write a copy of a table with additional columns; the table's own columns do not change.

    Only in CSV files a cell that a spreadsheet would run as a formula gets an apostrophe before it.
    Where the table has a column of the same name, the new one is called ``recal_...``, unless all
    of several new names stand there side by side: then the table is an earlier result, and the
    columns are replaced, as with `overwrite`. Returns the names under which the columns were
    written.
    """
    names = _free_names(list(table), list(added), overwrite=overwrite)
    new = {names[name]: np.asarray(values).tolist() for name, values in added.items()}
    how: dict[str, Any] = {}
    source = Path(table.path)
    suffix = source.suffix.lower()
    if suffix == Path(out).suffix.lower() == ".csv":
        with source.open(encoding="utf-8-sig") as text:
            how["separator"] = separator_of(source, text.readline())
    elif suffix == Path(out).suffix.lower() == ".parquet":
        schema = pyarrow_for("Writing Parquet files")[1].read_schema(source)
        how["types"] = {name: schema.field(name).type for name in table if name not in new}
    write_columns(Path(out), {**table.cells, **new}, **how)
    return names


def write_columns(
    target: Path, columns: Mapping[str, Any], *, separator: str = ",", types: Mapping[str, Any] = {}
) -> None:
    """Write a table in the format of its name's ending, atomically; `types` are those of Arrow."""
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{target} must end in one of {', '.join(SUFFIXES)}.")
    rows = zip(*columns.values())
    with replacing(target) as file:
        if suffix == ".parquet":
            arrow, parquet = pyarrow_for("Writing Parquet files")
            arrays = {}
            for name, values in columns.items():
                kind = types.get(name)
                # Rows that share a long text may not fit into memory with a text each.
                if str(kind).endswith("string") and sum(len(text or "") for text in values) > 2**28:
                    kind = arrow.dictionary(arrow.int32(), kind)
                arrays[name] = arrow.array(values, type=kind)
            parquet.write_table(arrow.table(arrays), file)
        elif suffix in LINES:
            for row in rows:
                record = dict(zip(columns, row))
                file.write(json.dumps(record, ensure_ascii=False, default=str).encode() + b"\n")
        else:
            lines = io.TextIOWrapper(file, encoding="utf-8", newline="")
            delimiter = "\t" if suffix == ".tsv" else separator
            writer = csv.writer(lines, delimiter=delimiter, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(map(csv_cell, row) for row in rows)
            lines.detach()  # flushes, and leaves the file open


def _free_names(own: list[str], added: list[str], *, overwrite: bool) -> dict[str, str]:
    """Return the name of each added column in a table with these columns."""
    if overwrite:
        return {name: name for name in added}
    if len(added) > 1 and added[0] in own:
        start = own.index(added[0])
        if own[start : start + len(added)] == added:  # side by side, as recal writes them
            return {name: name for name in added}
    return {name: f"recal_{name}" if name in own else name for name in added}


def written_name(table: Table, name: str) -> str:
    """Return the name under which `write_with_columns` wrote a column of a table."""
    return f"recal_{name}" if f"recal_{name}" in table else name


def csv_cell(value: Any) -> str:
    """Return a value as written to a CSV file, never as a formula that a spreadsheet would run."""
    if isinstance(value, float):
        return "" if value != value else repr(value)
    text = cell_text(value)
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") and not is_number(text) else text


def is_number(value: Any) -> bool:
    """Whether a value, or its text, is a number."""
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True
