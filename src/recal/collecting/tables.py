"""Tables as inputs: a model gets the columns that it was fitted on, by name and in their order."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest, digest_array
from recal.collecting.models.base import Model, comes_from
from recal.collecting.sources import ArraySource, Source
from recal.errors import FileError, InputError, MissingExtraError, in_both
from recal.files.tables import pyarrow_for, read_parquet, read_table
from recal.transforms.preprocessing import Preprocessing
from recal.transforms.tabular import is_category

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


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
        if not len(frame) or not len(frame.columns):
            raise InputError(
                f"A table must hold at least one row and one column, got the shape {frame.shape}."
            )
        if not frame.columns.is_unique:
            raise InputError(
                f"A table's columns must have distinct names, got {list(frame.columns)}."
            )
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
            "levels": tuple(_levels(column) for column in columns.values()),
        }

    def fingerprint(self) -> str:
        columns = [(str(name), str(dtype)) for name, dtype in self.values.dtypes.items()]
        return digest(
            [columns, [digest_array(np.asarray(self.values[name])) for name in self.values.columns]]
        )

    def read(self, rows: Sequence[int]) -> Any:
        return self.values.iloc[list(rows)]

    def arranged(
        self,
        columns: Sequence[str] | None,
        levels: Sequence[Sequence[str]] = (),
        n_features: int | None = None,
    ) -> TableSource:
        """Return the table with these columns in this order; refuse missing and unknown ones.

        Without `columns`, the columns `aside` are left out, unless the model takes `n_features`
        and these are all columns. `levels` are the categories of each column at the fit.
        """
        names = {str(name): name for name in self.values.columns}
        if columns is None:
            whole = n_features == len(names)
            columns = [name for name in names if whole or name not in self.aside]
        if not set(columns) <= set(names):  # LightGBM stores its names without blanks
            names = {re.sub(r"\s", "_", name): own for name, own in names.items()}
        if missing := [name for name in columns if name not in names]:
            raise InputError(
                f"The table has no column {', '.join(map(repr, missing[:5]))}, which the model was "
                f"fitted on; it has {', '.join(map(str, names))}."
            )
        unknown = [name for name in names if name not in {*columns, *self.aside}]
        if unknown:
            raise InputError(
                f"The model was not fitted on the column {', '.join(map(repr, unknown[:5]))}",
                remedy=f"Remove it, or say {in_both(label_column=unknown[-1])} if it holds the labels",
            )
        own = [names[name] for name in columns]
        frame = self.values[own]
        words = {name: known for name, known in zip(own, levels) if known}
        if words:
            written = {} if self.path is None else read_table(self.path)
            frame = frame.assign(
                **{
                    name: _with_levels(frame[name], known, written.get(name))
                    for name, known in words.items()
                }
            )
        arranged = copy.copy(self)  # the caller's source stays as it was
        arranged.aside = ()
        arranged._use(frame)
        return arranged


def _levels(column: Any) -> tuple[str, ...]:
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
    columns, levels = (None, ()) if stored is None else (stored.columns, stored.levels or ())
    if columns is None and model.features is None:
        _refuse_texts(source)
    columns = model.features if columns is None else columns
    return source.arranged(columns, levels, model.n_features)


def _refuse_texts(source: TableSource) -> None:
    """Refuse a file of texts, perhaps with labels, that is read as a table of features."""
    if "text_column" not in (source.reading or {}):
        return
    frame = source.values
    texts = [str(name) for name in frame.columns if holds_texts(frame[name])]
    others = [str(name) for name in frame.columns if str(name) not in texts]
    if texts and len(others) <= 1:
        columns = {"text_column": texts[0]}
        if others and source.labels is None:
            columns["label_column"] = others[0]
        raise InputError(
            f"The column {texts[0]!r} holds texts, and the table is read as features",
            remedy=f"To read it as texts pass {in_both(**columns)}",
        )


def open_frame(inputs: Any) -> TableSource:
    """Return the source of a frame.

    Frames of polars and pyarrow become pandas, which most models take.
    """
    if comes_from(inputs, "pandas"):
        return TableSource(inputs)
    is_lazy = hasattr(inputs, "collect") and comes_from(inputs, "polars")
    try:
        return TableSource((inputs.collect() if is_lazy else inputs).to_pandas())
    except ImportError as error:
        raise MissingExtraError(
            "pandas and pyarrow", "tables", "Reading a polars or pyarrow table"
        ) from error


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
    for name in (label_column, text_column, cluster_column, group_column):
        if name is not None and name not in frame.columns:
            raise InputError(
                f"{path} has no column {name!r}; it has {', '.join(map(str, frame.columns))}."
            )
    chosen = label_column or ("label" if "label" in frame.columns else None)
    aside = [name for name in (cluster_column, group_column) if name is not None]
    texts = read_table(path) if aside or text_column is not None else {}
    clusters, groups = (
        None if name is None else _filled(path, name, texts[name], texts[name] == "")
        for name in (cluster_column, group_column)
    )
    labels = None if chosen is None else _labels(path, frame.pop(chosen))
    source: Source
    if text_column is None:
        written = None if path.suffix.lower() == ".parquet" else path
        source = TableSource(frame, [name for name in aside if name != chosen], written)
    else:
        source = ArraySource(texts[text_column].tolist())
    source.labels, source.clusters, source.groups = labels, clusters, groups
    source.reading = {
        **(source.reading or {}),
        "text_column": text_column,
        "label_column": chosen,
        "cluster_column": cluster_column,
        "group_column": group_column,
    }
    return source


def _read_frame(path: Path) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError("pandas", "tables", f"Reading {path.name}") from error
    try:
        if path.suffix.lower() == ".parquet":
            return read_parquet(path).to_pandas()
        return pandas.read_csv(path, **_csv_format(path))
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read as a table: {str(error).rstrip('.')}.") from error


def _csv_format(path: Path) -> dict[str, Any]:
    """Return how a file is written: spreadsheets write `;` and `0,5` in half of the world, and in a
    table of one column an empty line is a missing value.
    """
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        header, first = file.readline(), file.readline()
    separator = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=header.count)
    decimal = re.compile(r'"?[+-]?\d+,\d+"?')
    has_commas = separator == ";" and any(map(decimal.fullmatch, first.strip().split(";")))
    one_column = separator not in header
    return {
        "sep": separator,
        "decimal": "," if has_commas else ".",
        "skip_blank_lines": not one_column,
    }


def _labels(path: Path, column: Any) -> NDArray[Any] | None:
    """Return a column of labels, or None if it is empty."""
    empty = column.isna().to_numpy()
    return None if empty.all() else _filled(path, str(column.name), column.to_numpy(), empty)


def _filled(path: Path, name: str, values: NDArray[Any], empty: NDArray[np.bool_]) -> NDArray[Any]:
    """Return a column; refuse it if it is partly empty."""
    if empty.any():
        raise InputError(
            f"{path}: the column {name!r} is empty in {int(empty.sum())} of "
            f"{len(empty)} rows, first in row {int(empty.argmax()) + 1} below the header. "
            "Fill in these values, or remove the rows."
        )
    return np.asarray(values)


def column_names(path: Path) -> list[str]:
    """Return the names of a table's columns, without reading its rows."""
    try:
        if path.suffix.lower() == ".parquet":
            return list(pyarrow_for("Reading Parquet files")[1].read_schema(path).names)
    except (OSError, ValueError):  # `open_table` reports it
        return []
    frame = _first_rows(path, 0)
    return [] if frame is None else [str(name) for name in frame.columns]


def guess_columns(
    path: Path,
    classes: Sequence[Any] | None,
    label_column: str | None = None,
    features: Sequence[str] = (),
) -> dict[str, str]:
    """Return which columns hold labels and texts, if there is only one way to read a table.

    The labels are in `label_column`, in the only column that is not one of the model's `features`,
    or in the only column whose values are mostly classes of the model. The texts are in the only
    other column, if it holds texts. A column called "label" needs no guess.
    """
    frame = _first_rows(path)
    if frame is None or not len(frame) or label_column not in (None, *frame.columns):
        return {}
    label = label_column
    beyond = [str(name) for name in frame.columns if str(name) not in features]
    if label is None and features and len(beyond) == 1 and len(frame.columns) == len(features) + 1:
        return {"label_column": beyond[0]}
    if label is None:
        if classes is None or np.asarray(classes).dtype.kind not in "UO" or "label" in frame:
            return {}
        names = {str(name) for name in classes}
        # A misspelt label is reported later, by name.
        shares = {name: frame[name].map(str).isin(names).mean() for name in frame.columns}
        candidates = [name for name, share in shares.items() if share > 0.5]
        if len(candidates) != 1:
            return {}
        (label,) = candidates
    others = [name for name in frame.columns if name != label]
    found = {} if label_column is not None else {"label_column": label}
    if len(others) == 1 and holds_texts(frame[others[0]], words=1):
        found["text_column"] = others[0]
    return found


def check_labelled(source: Source, where: object = "") -> None:
    """Refuse inputs without labels, and say how to provide them."""
    if source.batch(0, 1).labels is not None:
        return
    text, folders = "The inputs have no labels", "put the files into one folder per class"
    remedy = f"Pass `labels` (--labels FILE), or {folders}"
    if isinstance(source, TableSource):
        text += f"; the columns are {', '.join(str(name) for name in source.values.columns)}"
        likely, which = _likely_labels(source.values), "Say which column holds them: "
        python, typed = ("...", "NAME") if likely is None else (repr(likely), shlex.quote(likely))
        remedy = f"{which}label_column={python} (--label-column {typed})"
    error = InputError(text, remedy=remedy)
    raise error.at(where) if where else error


def _likely_labels(frame: Any) -> str | None:
    """Return the only column that looks like labels (few values, each in many rows)."""
    named = [
        str(name)
        for name in frame.columns
        if 2 <= frame[name].nunique() <= max(2, len(frame) // 10) and frame[name].dtype.kind != "f"
    ]
    return named[0] if len(named) == 1 else None


def _first_rows(path: Path, count: int = 1000) -> Any:
    """Return the first rows of a .csv or .tsv file, or None if it cannot be read;

    `open_table` reports the error.
    """
    if path.suffix.lower() == ".parquet":
        return None
    try:
        import pandas

        return pandas.read_csv(path, **_csv_format(path), nrows=count)
    except (ImportError, OSError, ValueError):
        return None


def holds_texts(column: Any, words: float = 3) -> bool:
    """Whether most values of a column are unique texts of at least this many words, not categories
    or numbers.
    """
    if getattr(column.dtype, "kind", "O") in "biufcmM":
        return False
    values = [str(value) for value in column.head(1000).tolist()]
    mean = sum(len(value.split()) for value in values) / max(1, len(values))
    return mean >= words and len(set(values)) > len(values) / 2
