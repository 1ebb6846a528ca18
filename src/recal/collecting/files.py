"""Inputs and labels by path: a folder, a table, arrays, or lines of text. Nothing is unpickled."""

from __future__ import annotations

import re
import shlex
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest, digest_array, is_read_whole
from recal.collecting.folders import ByteFolder, FileFolder, ImageFolder, SoundFolder, TextFolder
from recal.collecting.models.base import comes_from
from recal.collecting.sources import FILE_OPTIONS, ArraySource, IndexedSource, Source
from recal.errors import FileError, InputError, MissingExtraError, RecalError, Remedy
from recal.files.limits import refuse_bombs
from recal.files.tables import pyarrow_for, read_parquet
from recal.schema import Choice, check

_FOLDERS: dict[str, type[FileFolder]] = {
    "images": ImageFolder,
    "texts": TextFolder,
    "sounds": SoundFolder,
    "bytes": ByteFolder,
}
_INPUTS = ("inputs", "images", "x", "X", "data")
_LABELS = ("labels", "y", "targets")
TABLES = (".csv", ".tsv", ".parquet")
# A column with this many words per row on average, most values unique, holds texts rather than
# categories.
_WORDS = 3
_ROWS_TO_GUESS = 1000
_COMMA_NUMBER = re.compile(r'"?[+-]?\d+,\d+"?')
_ROWS_PER_LABEL = 10


def open_path(path: Path, **options: Any) -> Source:
    """Return the source for a file or folder, chosen by its name.

    Parameters
    ----------
    **options
        Options that are None are ignored.

        - of a folder: `read` ("images", "texts", "sounds" or "bytes", by default what most file
          names say), `on_error`,
          and `cluster_by` ("parent", or a regular expression that finds the cluster in a file
          name);
        - of a folder of images: `resize`, `crop` and `pixels`; of sounds: `seconds`;
        - of a table: `label_column` (default "label"), `text_column` (the only column that is read,
          as texts),
          `cluster_column` and `group_column` (these columns are not features).
    """
    if not path.exists():
        raise FileError(f"There is no file or folder {path}.")
    options = {name: value for name, value in options.items() if value is not None}
    suffix = path.suffix.lower()
    kind, note = "files", ""
    if path.is_dir():
        read = options.pop("read", None) or _most(path)
        check(read, Choice(*_FOLDERS), "read")
        kind, note = f"folders of {read}", f", and {path} is read as {read}"
    elif suffix in TABLES:
        kind = "tables (.csv, .tsv, .parquet)"
    for name in options:
        if not kind.startswith(FILE_OPTIONS[name]):
            raise InputError(f"applies to {FILE_OPTIONS[name]} only{note}", argument=name)
    if path.is_dir():
        rule = options.pop("cluster_by", None)
        folder = _FOLDERS[read](path, **options)
        folder.clusters = None if rule is None else clusters_by_name(folder.names(), rule)
        return folder
    if suffix in TABLES:
        return open_table(path, **options)
    with _reading(path):
        if suffix == ".npz":
            return ArraySource(*_read_npz(path))
        if suffix == ".npy":
            return ArraySource(np.load(path, mmap_mode="r", allow_pickle=False), file=path)
        if suffix == ".txt":
            return ArraySource(_read_lines(path))
    raise InputError(
        f"{path.name}: inputs are read from .npz, .npy, tables (.csv, .tsv, .parquet), texts (.txt, one per line), or "
        "a folder of images, sounds or texts."
    )


def _most(path: Path) -> str:
    """Return the type of most files in a folder, by their names; the error asks for it if most are
    unknown.
    """
    files = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith(".")]
    counts = {
        kind: sum(file.suffix.lower() in _FOLDERS[kind].suffixes for file in files)
        for kind in ("images", "texts", "sounds")
    }
    kind = max(counts, key=lambda kind: counts[kind])
    if len(files) - sum(counts.values()) > counts[kind]:
        part = (
            f"only {counts[kind]} of them {kind}"
            if counts[kind]
            else "none of them images, sounds or texts"
        )
        raise InputError(
            f"{path} holds {len(files)} files, {part} by their names (.png, .wav, .txt, ...)",
            remedy=Remedy(
                f"Say what to read: {' or '.join(f'read={name!r}' for name in _FOLDERS)}, which reads all files",
                typed=f"Say what to read: {' or '.join(f'--read {name}' for name in _FOLDERS)}, which reads all files",
            ),
        )
    return kind


@contextmanager
def _reading(path: Path, purpose: str = "") -> Iterator[None]:
    """Turn the errors of readers into a FileError: zipfile, zlib, struct and numpy raise different
    errors.
    """
    try:
        yield
    except RecalError:
        raise
    except Exception as error:
        reason = str(error).rstrip(".")
        if isinstance(error, zipfile.BadZipFile):
            reason = "it is damaged or truncated"
        elif "pickle" in reason or "Python objects" in reason:  # numpy would offer to open them
            reason = "it is damaged, or holds Python objects, which are never opened"
        raise FileError(f"{path} cannot be read{purpose}: {reason}.") from error


def clusters_by_name(names: Sequence[str], rule: str) -> NDArray[Any]:
    """Return the cluster of each file: its folder, or what a pattern finds in its name.

    Examples
    --------
    >>> clusters_by_name(["a/patient7_1.png", "b/patient7_2.png"], r"patient(\\d+)").tolist()
    ['7', '7']
    >>> clusters_by_name(["cat/film1/001.png", "cat/film2/001.png"], "parent").tolist()
    ['cat/film1', 'cat/film2']
    """
    if rule == "parent":
        return np.array([name.rpartition("/")[0] for name in names])
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise InputError(
            f"is no regular expression: {error}, got {rule!r}", argument="cluster_by"
        ) from None
    matches = [pattern.search(name) for name in names]
    if None in matches:
        name = names[matches.index(None)]
        raise InputError(
            f"must match the name of every file; it does not match {name!r}", argument="cluster_by"
        )
    return np.array(
        [match[1] if pattern.groups else match[0] for match in matches if match is not None]
    )


def read_labels(path: Path) -> NDArray[Any]:
    """Read labels from a .npy file, or from text with one label per line; whole numbers if all
    labels are.
    """
    with _reading(path, " as labels (.npy, or .txt with one per line)"):
        if path.suffix == ".npy":
            return np.array(
                np.load(path, mmap_mode="r", allow_pickle=False)
            )  # mapping checks the declared size
        if path.suffix not in (".txt", ".csv"):
            raise InputError(
                f"Labels are read from .npy, or from .txt with one per line, got {path}."
            )
        lines = [line.strip() for line in _read_lines(path, trim=True)]
    if "" in lines:
        raise InputError(
            f"{path}: line {lines.index('') + 1} is empty; every sample needs a label, in the samples' order."
        )
    try:
        return np.array([int(line) for line in lines])
    except (ValueError, OverflowError):
        return np.array(lines)


def _read_lines(path: Path, *, trim: bool = False) -> list[str]:
    text = path.read_text(encoding="utf-8-sig")
    lines = (text.rstrip() if trim else text).splitlines()
    if not lines:
        raise ValueError("it holds no line")
    return lines


def _read_npz(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    refuse_bombs(path)
    with np.load(path, allow_pickle=False) as file:
        names = list(file.files)
        label = next((name for name in _LABELS if name in names), None)
        others = [name for name in names if name != label]
        chosen = next(
            (name for name in _INPUTS if name in names), others[0] if len(others) == 1 else None
        )
        if chosen is None:
            views = " These are views already, which recal fit takes." if "logits" in names else ""
            raise InputError(
                f"{path} holds {', '.join(names) or 'nothing'}; call the inputs `inputs`, the labels `labels`.{views}"
            )
        return file[chosen], None if label is None else file[label]


class TableSource(IndexedSource):
    """A pandas frame; batches are frames, so that a model finds its columns by name.

    Columns of words become categories, as models for tables and the transformations expect.
    """

    def __init__(self, frame: Any) -> None:
        if not len(frame) or not len(frame.columns):
            raise InputError(
                f"A table must hold at least one row and one column, got the shape {frame.shape}."
            )
        if not frame.columns.is_unique:
            raise InputError(
                f"A table's columns must have distinct names, got {list(frame.columns)}."
            )
        words = list(frame.select_dtypes(include=["object", "string"]).columns)
        self.values = frame.astype(dict.fromkeys(words, "category")) if words else frame
        self.n_samples = len(frame)

    def fingerprint(self) -> str:
        columns = [(str(name), str(dtype)) for name, dtype in self.values.dtypes.items()]
        return digest(
            [columns, [digest_array(np.asarray(self.values[name])) for name in self.values.columns]]
        )

    def covers_all_bytes(self) -> bool:
        return all(is_read_whole(np.asarray(self.values[name])) for name in self.values.columns)

    def read(self, rows: Sequence[int]) -> Any:
        return self.values.iloc[list(rows)]


def open_frame(inputs: Any) -> TableSource:
    """Return the source of a frame.

    Frames of polars and pyarrow become pandas, which most models take.
    """
    if comes_from(inputs, "pandas"):
        return TableSource(inputs)
    try:
        frame = (
            inputs.collect()
            if hasattr(inputs, "collect") and comes_from(inputs, "polars")
            else inputs
        )
        return TableSource(frame.to_pandas())
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
        The cluster and the group of each row; these columns are not features.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError("pandas", "tables", f"Reading {path.name}") from error
    try:
        if path.suffix.lower() == ".parquet":
            frame = read_parquet(path, "tables").to_pandas()
        else:
            frame = pandas.read_csv(path, **_csv_format(path))
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read as a table: {str(error).rstrip('.')}.") from error
    for name in (label_column, text_column, cluster_column, group_column):
        if name is not None and name not in frame.columns:
            raise InputError(
                f"{path} has no column {name!r}; it has {', '.join(map(str, frame.columns))}."
            )
    chosen = label_column or ("label" if "label" in frame.columns else None)
    labels = None if chosen is None else _labels(path, frame.pop(chosen))
    clusters, groups = (
        None if name is None else np.asarray(frame[name]) for name in (cluster_column, group_column)
    )
    frame = frame.drop(
        columns=[name for name in {cluster_column, group_column} if name is not None]
    )
    texts = None if text_column is None else frame[text_column].astype(str).tolist()
    source = TableSource(frame) if texts is None else ArraySource(texts)
    source.labels, source.clusters, source.groups = labels, clusters, groups
    source.reading = {"text_column": text_column, "label_column": chosen}
    source.reading |= {"cluster_column": cluster_column, "group_column": group_column}
    return source


def _csv_format(path: Path) -> dict[str, str]:
    """Return the separator and the decimal mark: spreadsheets write `;` and `0,5` in half of the
    world.
    """
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        header, first = file.readline(), file.readline()
    if path.suffix.lower() == ".tsv" or header.count("\t") > header.count(","):
        return {"sep": "\t", "decimal": "."}
    if header.count(";") <= header.count(","):
        return {"sep": ",", "decimal": "."}
    return {
        "sep": ";",
        "decimal": "," if any(map(_COMMA_NUMBER.fullmatch, first.strip().split(";"))) else ".",
    }


def _labels(path: Path, column: Any) -> NDArray[Any] | None:
    """Return a column of labels, or None if it is empty; refuse a column that is partly empty."""
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
    or in the only column whose values are all classes of the model. The texts are in the only other
    column, if it holds texts. A column called "label" needs no guess.
    """
    frame = _first_rows(path, _ROWS_TO_GUESS)
    if (
        frame is None
        or not len(frame)
        or (label_column is not None and label_column not in frame.columns)
    ):
        return {}
    label = label_column
    beyond = [str(name) for name in frame.columns if str(name) not in features]
    if label is None and features and len(beyond) == 1 and len(frame.columns) == len(features) + 1:
        return {"label_column": beyond[0]}
    if label is None:
        if (
            classes is None
            or np.asarray(classes).dtype.kind not in "UO"
            or "label" in frame.columns
        ):
            return {}
        names = {str(name) for name in classes}
        candidates = [name for name in frame.columns if set(frame[name].map(str)) <= names]
        if len(candidates) != 1:
            return {}
        (label,) = candidates
    others = [name for name in frame.columns if name != label]
    texts = (
        {"text_column": others[0]}
        if len(others) == 1 and holds_texts(frame[others[0]], words=1)
        else {}
    )
    return texts if label_column is not None else {"label_column": label, **texts}


def likely_labels(frame: Any) -> str | None:
    """Return the only column that looks like labels (few values, each in many rows), to name it in
    a message.
    """
    few = [
        name
        for name in frame.columns
        if 2 <= frame[name].nunique() <= max(2, len(frame) // _ROWS_PER_LABEL)
    ]
    named = [name for name in few if frame[name].dtype.kind not in "f"]
    return str(named[0]) if len(named) == 1 else None


def check_labelled(source: Source, where: object = "") -> None:
    """Refuse inputs without labels, and say how to provide them."""
    if not isinstance(source, IndexedSource) or source.batch(0, 1).labels is not None:
        return
    text, folders = "The inputs have no labels", "put the files into one folder per class"
    remedy = Remedy(f"Pass `labels`, or {folders}", typed=f"Add --labels FILE, or {folders}")
    if isinstance(source, TableSource):
        text += f"; the columns are {', '.join(str(name) for name in source.values.columns)}"
        likely, which = likely_labels(source.values), "Say which column holds them: "
        python, typed = ("...", "NAME") if likely is None else (repr(likely), shlex.quote(likely))
        remedy = Remedy(f"{which}label_column={python}", typed=f"{which}--label-column {typed}")
    error = InputError(text, remedy=remedy)
    raise error.at(where) if where else error


def _first_rows(path: Path, count: int) -> Any:
    """Return the first rows of a .csv or .tsv file, or None if it cannot be read; `open_table`
    reports the error.
    """
    if path.suffix.lower() == ".parquet":
        return None
    try:
        import pandas

        return pandas.read_csv(path, **_csv_format(path), nrows=count)
    except (ImportError, OSError, ValueError):
        return None


def holds_texts(column: Any, words: float = _WORDS) -> bool:
    """Whether most values of a column are unique texts of at least this many words, not categories
    or numbers.
    """
    if getattr(column.dtype, "kind", "O") in "biufcmM":
        return False
    values = [str(value) for value in column.head(_ROWS_TO_GUESS).tolist()]
    mean = sum(len(value.split()) for value in values) / max(1, len(values))
    return mean >= words and len(set(values)) > len(values) / 2
