"""Tables with named columns: frames of pandas, polars and pyarrow, and files that hold one."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest, digest_array, is_read_whole
from recal.collecting.inputs.sources import ArraySource, IndexedSource, Source
from recal.collecting.models.base import _comes_from
from recal.errors import FileError, InputError, MissingExtraError
from recal.files.tables import pyarrow_for, read_parquet

SUFFIXES = (".csv", ".tsv", ".parquet")
# A column of so many words a row on average, most of them met once, holds texts and no categories.
_WORDS = 3
_ROWS_TO_GUESS = 1000
_COMMA_NUMBER = re.compile(r'"?[+-]?\d+,\d+"?')
_ROWS_PER_LABEL = 10


class TableSource(IndexedSource):
    """A pandas frame; batches are frames, so that a model finds its columns by name.

    Columns of words become categories, which models of tables and the transformations take.
    """

    def __init__(self, frame: Any) -> None:
        if not len(frame) or not len(frame.columns):
            raise InputError(f"A table must hold at least one row and one column, got the shape {frame.shape}.")
        if not frame.columns.is_unique:
            raise InputError(f"A table's columns must have distinct names, got {list(frame.columns)}.")
        words = list(frame.select_dtypes(include=["object", "string"]).columns)
        self.values = frame.astype(dict.fromkeys(words, "category")) if words else frame
        self.n_samples = len(frame)
        self.columns: dict[str, str | None] = {}

    def reading(self) -> dict[str, Any]:
        return self.columns

    def fingerprint(self) -> str:
        columns = [(str(name), str(dtype)) for name, dtype in self.values.dtypes.items()]
        return digest([columns, [digest_array(np.asarray(self.values[name])) for name in self.values.columns]])

    def is_known_whole(self) -> bool:
        return all(is_read_whole(np.asarray(self.values[name])) for name in self.values.columns)

    def read(self, start: int, stop: int) -> Any:
        return self.values.iloc[start:stop]

    def take(self, rows: Sequence[int]) -> tuple[Any, NDArray[Any] | None]:
        picked = list(rows)
        return self.values.iloc[picked], None if self.labels is None else self.labels[picked]


class TextColumn(ArraySource):
    """The texts in one column of a table."""

    columns: dict[str, str | None]

    def reading(self) -> dict[str, Any]:
        return self.columns


def open_frame(inputs: Any) -> TableSource:
    """Return the source of a frame; those of polars and pyarrow become pandas, which models know best."""
    if _comes_from(inputs, "pandas"):
        return TableSource(inputs)
    try:
        frame = inputs.collect() if hasattr(inputs, "collect") and _comes_from(inputs, "polars") else inputs
        return TableSource(frame.to_pandas())
    except ImportError as error:
        raise MissingExtraError("pandas and pyarrow", "tables", "Reading a polars or pyarrow table") from error


def open_table(
    path: Path,
    *,
    label_column: str | None = None,
    text_column: str | None = None,
    cluster_column: str | None = None,
    group_column: str | None = None,
) -> Source:
    """Read a .csv, .tsv or .parquet file: its columns are features, or one of them holds texts.

    Parameters
    ----------
    label_column : str, optional
        The column that holds the labels; "label" where there is one of that name.
    text_column : str, optional
        The one column to read, as texts.
    cluster_column, group_column : str, optional
        What each row belongs to; these columns are no features.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError("pandas", "tables", f"Reading {path.name}") from error
    try:
        if path.suffix.lower() == ".parquet":
            frame = read_parquet(path, "tables").to_pandas()
        else:
            frame = pandas.read_csv(path, **_written(path))
    except ImportError as error:
        raise MissingExtraError("pyarrow", "tables", f"Reading {path.name}") from error
    except (OSError, ValueError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read as a table: {str(error).rstrip('.')}.") from error
    for name in (label_column, text_column, cluster_column, group_column):
        if name is not None and name not in frame.columns:
            raise InputError(f"{path} has no column {name!r}; it has {', '.join(map(str, frame.columns))}.")
    chosen = label_column or ("label" if "label" in frame.columns else None)
    labels = None if chosen is None else _labels(path, frame.pop(chosen))
    clusters, groups = (None if name is None else np.asarray(frame[name]) for name in (cluster_column, group_column))
    frame = frame.drop(columns=[name for name in {cluster_column, group_column} if name is not None])
    source: TableSource | TextColumn
    if text_column is not None:
        source = TextColumn(frame[text_column].astype(str).tolist(), labels)
    else:
        source = TableSource(frame)
        source.labels = None if labels is None else np.asarray(labels)
    source.columns = {"text_column": text_column, "label_column": chosen}
    source.columns |= {"cluster_column": cluster_column, "group_column": group_column}
    source.clusters, source.groups = clusters, groups
    return source


def _written(path: Path) -> dict[str, str]:
    """Return what stands between columns and in numbers: spreadsheets write `;` and `0,5` in half of the world."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        header, first = file.readline(), file.readline()
    if path.suffix.lower() == ".tsv" or header.count("\t") > header.count(","):
        return {"sep": "\t", "decimal": "."}
    if header.count(";") <= header.count(","):
        return {"sep": ",", "decimal": "."}
    return {"sep": ";", "decimal": "," if any(map(_COMMA_NUMBER.fullmatch, first.strip().split(";"))) else "."}


def _labels(path: Path, column: Any) -> NDArray[Any] | None:
    """Return a column of labels, None where it is empty; some labels without others are a mistake."""
    empty = column.isna().to_numpy()
    if empty.all():
        return None
    if empty.any():
        raise InputError(
            f"{path}: the column {str(column.name)!r} is empty in {int(empty.sum())} of {len(empty)} rows, first in "
            f"row {int(empty.argmax()) + 1} below the header. Fill in these labels, or remove the rows."
        )
    return np.asarray(column.to_numpy())


def table_columns(path: Path) -> list[str]:
    """Return the names of a table's columns, without reading its rows."""
    try:
        if path.suffix.lower() == ".parquet":
            return list(pyarrow_for("Reading Parquet files", "tables")[1].read_schema(path).names)
        with path.open(encoding="utf-8-sig", newline="") as file:
            return next(csv.reader(file, delimiter=_written(path)["sep"]), [])
    except (OSError, ValueError, csv.Error):  # which `open_table` tells
        return []


def guess_columns(
    path: Path, classes: Sequence[Any] | None, label_column: str | None = None, features: Sequence[str] = ()
) -> dict[str, str]:
    """Return which columns hold labels and texts, where only one reading of a table is possible.

    The labels are in `label_column`, in the only column that is none of the model's `features`, or in the only one
    whose values are all classes of the model. The texts are in the column that is left, where just one is and it holds
    texts. A column called "label" needs no guess.
    """
    frame = _first_rows(path)
    if frame is None or (label_column is not None and label_column not in frame.columns):
        return {}
    label = label_column
    beyond = [str(name) for name in frame.columns if str(name) not in features]
    if label is None and features and len(beyond) == 1 and len(frame.columns) == len(features) + 1:
        return {"label_column": beyond[0]}
    if label is None:
        if classes is None or np.asarray(classes).dtype.kind not in "UO" or "label" in frame.columns:
            return {}
        known = {str(name) for name in classes}
        found = [name for name in frame.columns if set(frame[name].map(str)) <= known]
        if len(found) != 1:
            return {}
        (label,) = found
    others = [name for name in frame.columns if name != label]
    texts = {"text_column": others[0]} if len(others) == 1 and holds_texts(frame[others[0]], words=1) else {}
    return texts if label_column is not None else {"label_column": label, **texts}


def likely_labels(frame: Any) -> str | None:
    """Return the only column with few distinct values, each of them in many rows, as labels have; for a message."""
    few = [name for name in frame.columns if 2 <= frame[name].nunique() <= max(2, len(frame) // _ROWS_PER_LABEL)]
    named = [name for name in few if frame[name].dtype.kind not in "f"]
    return str(named[0]) if len(named) == 1 else None


def _first_rows(path: Path) -> Any:
    """The first rows of a .csv or .tsv file; None where there are none, or where `open_table` will tell why."""
    if path.suffix.lower() == ".parquet":
        return None
    try:
        import pandas

        frame = pandas.read_csv(path, **_written(path), nrows=_ROWS_TO_GUESS)
    except (ImportError, OSError, ValueError):
        return None
    return frame if len(frame) else None


def holds_texts(column: Any, words: float = _WORDS) -> bool:
    """Whether most values of a column are texts that no other row has, rather than categories or numbers.

    Where it is the only column that a model could read, texts of single words count, too.
    """
    if getattr(column.dtype, "kind", "O") in "biufcmM":
        return False
    values = [str(value) for value in column.head(_ROWS_TO_GUESS).tolist()]
    mean = sum(len(value.split()) for value in values) / max(1, len(values))
    return mean >= words and len(set(values)) > len(values) / 2
