"""Tables with named columns: frames of pandas, polars and pyarrow, and files that hold one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from recal.collecting.fingerprint import digest, digest_array, is_read_whole
from recal.collecting.inputs.sources import ArraySource, IndexedSource, Source
from recal.collecting.models.base import _comes_from
from recal.errors import FileError, InputError, MissingExtraError
from recal.files.parquet import read_parquet

SUFFIXES = (".csv", ".tsv", ".parquet")


class TableSource(IndexedSource):
    """A pandas frame; batches are frames, so that a model finds its columns by name."""

    def __init__(self, frame: Any) -> None:
        if not len(frame) or not len(frame.columns):
            raise InputError(f"A table must hold at least one row and one column, got the shape {frame.shape}.")
        if not frame.columns.is_unique:
            raise InputError(f"A table's columns must have distinct names, got {list(frame.columns)}.")
        self.values = frame
        self.n_samples = len(frame)

    def fingerprint(self) -> str:
        columns = [(str(name), str(dtype)) for name, dtype in self.values.dtypes.items()]
        return digest([columns, [digest_array(np.asarray(self.values[name])) for name in self.values.columns]])

    def is_known_whole(self) -> bool:
        return all(is_read_whole(np.asarray(self.values[name])) for name in self.values.columns)

    def read(self, start: int, stop: int) -> Any:
        return self.values.iloc[start:stop]


def open_frame(inputs: Any) -> TableSource:
    """Return the source of a frame; those of polars and pyarrow become pandas, which models know best."""
    if _comes_from(inputs, "pandas"):
        return TableSource(inputs)
    try:
        frame = inputs.collect() if hasattr(inputs, "collect") and _comes_from(inputs, "polars") else inputs
        return TableSource(frame.to_pandas())
    except ImportError as error:
        raise MissingExtraError("pandas and pyarrow", "tables", "Reading a polars or pyarrow table") from error


def open_table(path: Path, *, label_column: str | None = None, text_column: str | None = None) -> Source:
    """Read a .csv, .tsv or .parquet file: its columns are features, or one of them holds texts.

    Parameters
    ----------
    label_column : str, optional
        The column that holds the labels; "label" where there is one of that name.
    text_column : str, optional
        The one column to read, as texts.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError("pandas", "tables", f"Reading {path.name}") from error
    try:
        if path.suffix.lower() == ".parquet":
            frame = read_parquet(path, "tables").to_pandas()
        else:
            frame = pandas.read_csv(path, sep="\t" if path.suffix.lower() == ".tsv" else ",")
    except ImportError as error:
        raise MissingExtraError("pyarrow", "tables", f"Reading {path.name}") from error
    except (OSError, ValueError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read as a table: {str(error).rstrip('.')}.") from error
    for name in (label_column, text_column):
        if name is not None and name not in frame.columns:
            raise InputError(f"{path} has no column {name!r}; it has {', '.join(map(str, frame.columns))}.")
    chosen = label_column or ("label" if "label" in frame.columns else None)
    labels = None if chosen is None else frame.pop(chosen).to_numpy()
    if text_column is not None:
        return ArraySource(frame[text_column].astype(str).tolist(), labels)
    words = frame.select_dtypes(exclude=["number", "bool"]).columns
    source = TableSource(frame.astype(dict.fromkeys(words, "category")))
    source.labels = None if labels is None else np.asarray(labels)
    return source
