"""Tables as inputs: a model gets the columns that it was fitted on, by name and in their order."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest, digest_array
from recal.collecting.models.base import Model
from recal.collecting.sources import ArraySource, Source
from recal.errors import FileError, InputError, MissingExtraError, in_both, needs_extra
from recal.files.tables import (
    Table,
    pyarrow_for,
    read_parquet,
    read_table,
    refuse_empty,
    separator_of,
)
from recal.transforms.preprocessing import Preprocessing
from recal.transforms.tabular import is_category


class TableSource(Source):
    """A pandas frame; batches are frames, so that a model finds its columns by name.

    Columns of words become categories, as models for tables and the transformations expect.

    Parameters
    ----------
    frame : DataFrame
    aside : sequence of str
        Columns of clusters or groups: inputs only if the model was fitted on them.
    path : Path, optional
        The text file of the frame, which holds categories such as "01" exactly as written.
    """

    kind = "tabular"

    def __init__(self, frame: Any, aside: Sequence[str] = (), path: Path | None = None) -> None:
        if 0 in frame.shape or not frame.columns.is_unique:
            rule = "A table must hold at least one row, and columns of distinct names"
            raise InputError(f"{rule}, got {len(frame)} rows of {list(frame.columns)}.")
        words = list(frame.select_dtypes(include=["object", "string"]).columns)
        self.aside, self.path = tuple(aside), path
        self.n_samples = len(frame)
        self._use(frame.astype(dict.fromkeys(words, "category")) if words else frame)

    def _use(self, frame: Any) -> None:
        columns = {str(name): frame[name] for name in frame.columns}
        self.values = frame
        self.reading = {
            **(self.reading or {}),
            "columns": tuple(columns),
            "levels": tuple(_categories(column) for column in columns.values()),
        }

    def fingerprint(self) -> str:
        columns = [(str(name), str(dtype)) for name, dtype in self.values.dtypes.items()]
        cells = [digest_array(np.asarray(column)) for _, column in self.values.items()]
        return digest([columns, cells])

    def read(self, rows: Sequence[int]) -> Any:
        return self.values.iloc[list(rows)]

    def arranged(
        self, columns: Sequence[str] | None, levels: Sequence[Sequence[str]] = ()
    ) -> TableSource:
        """Return the table with these columns in this order; refuse missing and unknown ones.

        Without `columns`, the columns `aside` are left out. `levels` are the categories of each
        column at the fit.
        """
        names = {str(name): name for name in self.values.columns}
        if columns is None:
            columns = [name for name in names if name not in self.aside]
        # LightGBM stores its names without blanks.
        joined = {re.sub(r"\s", "_", name): own for name, own in names.items()}
        names = max(names, joined, key=lambda known: len({*columns} & {*known}))
        if missing := [name for name in columns if name not in names]:
            rule = f"The table has no column {', '.join(map(repr, missing[:5]))}"
            raise InputError(f"{rule}, which the model was fitted on; it has {', '.join(names)}.")
        unknown = [name for name in names if name not in {*columns, *self.aside}]
        if unknown:
            rule = f"The model was not fitted on the column {', '.join(map(repr, unknown[:5]))}"
            or_labels = f", or say {in_both(label_column=unknown[-1])} if it holds the labels"
            remedy = f"Remove it{or_labels if self.labels is None else ''}"
            raise InputError(rule, remedy=remedy)
        own = [names[name] for name in columns]
        frame = self.values[own]
        words = {name: known for name, known in zip(own, levels) if known}
        written = read_table(self.path) if words and self.path is not None else {}
        for name, known in words.items():
            column = _with_levels(frame[name], known, written.get(name))
            frame = frame.assign(**{name: column})
        arranged = copy.copy(self)  # the caller's source stays as it was
        arranged.aside = ()
        arranged._use(frame)
        return arranged


def _categories(column: Any) -> tuple[str, ...]:
    """Return the categories of a column; none for numbers, or for so many that they are texts."""
    levels = tuple(map(str, column.cat.categories)) if is_category(column) else ()
    return levels if len(levels) <= 1000 else ()


def _with_levels(column: Any, levels: Sequence[str], written: NDArray[Any] | None) -> Any:
    """Return a column as categories, those of the fit first, so that their codes stay the same.

    Words such as "1" and "01" would be read as numbers from a file that holds no others, so the
    cells of a text file are taken as `written`.
    """
    import pandas

    if written is not None:
        texts = pandas.Series(written, index=column.index, dtype=object)
        texts = texts.where(column.notna() | texts.isin(levels))
    else:
        is_whole = column.dtype.kind == "f" and (column.dropna() % 1 == 0).all()
        texts = column.astype("Int64" if is_whole else object).map(str, na_action="ignore")
    new = sorted(set(texts.dropna()) - set(levels))
    categories = pandas.Categorical(texts.astype(object), categories=[*levels, *new])
    return pandas.Series(categories, index=column.index)


def arrange_columns(source: Source, model: Model, stored: Preprocessing | None = None) -> Source:
    """Return the source with the columns that the model was fitted on, in their order.

    The names are the model's own if it knows them, otherwise those of a calibration's views
    (`stored`). Inputs that are not a table stay as they are.
    """
    if not isinstance(source, TableSource):
        return source
    if stored is not None and stored.columns is not None:
        return source.arranged(stored.columns, stored.levels or ())
    if model.features is None and "text_column" in (source.reading or {}):
        _refuse_texts(source.values)
    return source.arranged(model.features)


def _refuse_texts(frame: Any) -> None:
    """Refuse a file of texts, perhaps with labels, that is read as a table of features.

    Texts are columns of which most values are unique and have three words or more.
    """
    texts = []
    for name, column in frame.head(1000).astype(str).items():
        is_unique = column.nunique() > len(column) / 2
        if is_unique and column.str.split().str.len().mean() >= 3:
            texts.append(str(name))
    if texts and frame.shape[1] <= len(texts) + 1:
        raise InputError(
            f"The column {texts[0]!r} holds texts, and the table is read as features",
            remedy=f"To read it as texts pass {in_both(text_column=texts[0])}, and "
            "label_column=... (--label-column) if the labels are not in a column called label",
        )


def open_frame(inputs: Any) -> TableSource:
    """Return the source of a frame of pandas, polars or pyarrow; all become pandas."""
    try:
        return TableSource(inputs.to_pandas() if hasattr(inputs, "to_pandas") else inputs)
    except ImportError as error:
        purpose = "Reading a polars or pyarrow table"
        raise MissingExtraError("pandas and pyarrow", "tables", purpose) from error


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
        The column that holds the labels. The default is "label", if there is such a column.
    text_column : str, optional
        The only column that is read, as texts.
    cluster_column, group_column : str, optional
        The cluster and the group of each row, as text exactly as written. These columns are
        features only if the model was fitted on them.
    """
    frame = _read_frame(path)
    if label_column is None and "label" in frame.columns:
        label_column = "label"
    named = {
        "text_column": text_column,
        "label_column": label_column,
        "cluster_column": cluster_column,
        "group_column": group_column,
    }
    for name in named.values():
        if name is not None and name not in frame.columns:
            names = ", ".join(map(str, frame.columns))
            raise InputError(f"{path} has no column {name!r}; it has {names}.")
    labels = None
    if label_column is not None and not (empty := frame[label_column].isna().to_numpy()).all():
        refuse_empty(path, label_column, empty)
        labels = frame[label_column].to_numpy()
    aside = [name for name in (cluster_column, group_column) if name is not None]
    texts = read_table(path) if aside or text_column is not None else Table({})
    clusters = texts.clusters(cluster_column)
    groups = None if group_column is None else texts.filled(group_column)
    source: Source
    if text_column is None:
        written = None if path.suffix.lower() == ".parquet" else path
        features = frame if label_column is None else frame.drop(columns=label_column)
        source = TableSource(features, [name for name in aside if name != label_column], written)
    else:
        source = ArraySource(texts[text_column].tolist())
    source.labels, source.clusters, source.groups = labels, clusters, groups
    source.reading = {**(source.reading or {}), **named}
    return source


def _read_frame(path: Path, **options: Any) -> Any:
    with needs_extra("tables", f"Reading {path.name}"):
        import pandas
    try:
        if path.suffix.lower() == ".parquet":
            return read_parquet(path).to_pandas()
        return pandas.read_csv(path, **_csv_format(path), **options)
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read as a table: {str(error).rstrip('.')}.") from error


def _csv_format(path: Path) -> dict[str, Any]:
    """Return how a file is written: spreadsheets write `;` and `0,5` in half of the world, and in a
    table of one column an empty line is a missing value.
    """
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        header, first = file.readline(), file.readline()
    separator = separator_of(path, header)
    number = re.compile(r'"?[+-]?\d+,\d+"?')
    has_commas = separator == ";" and any(map(number.fullmatch, first.strip().split(";")))
    decimal = "," if has_commas else "."
    return {"sep": separator, "decimal": decimal, "skip_blank_lines": separator in header}


def column_names(path: Path) -> list[str]:
    """Return the names of a table's columns, without reading its rows."""
    if path.suffix.lower() == ".parquet":
        return list(pyarrow_for("Reading Parquet files")[1].read_schema(path).names)
    return list(map(str, _read_frame(path, nrows=0).columns))


def check_labelled(source: Source, where: object = "") -> None:
    """Refuse inputs without labels, and say how to provide them."""
    if source.batch(0, 1).labels is not None:
        return
    text = "The inputs have no labels"
    remedy = "Pass `labels` (--labels FILE), or put the files into one folder per class"
    if isinstance(source, TableSource):
        text += f"; the columns are {', '.join(map(str, source.values.columns))}"
        remedy = f"Say which column holds them: {in_both(label_column='NAME')}"
    raise InputError(text, remedy=remedy, where=str(where))
