"""Probabilities on disk: .npz files, and tables with one row per sample.

An .npz file has `probs` (n, K) and optionally `labels` (n,), `classes` (K,), `confidence` (n,), the confidence in each
answer as `predict_confidence` returns it, and `fitted_rows`, the number of rows that the calibration was fitted on.

A table that recal writes has the columns `input` (if inputs have names), `answer`, `confidence`, `accepted` (if the
calibration has a rule), `passes` (if forward passes were counted), `label` (if known) and, in Parquet, ``p_CLASS`` for
every class. A CSV file is for people and spreadsheets, so it has no probabilities of the classes.

In any other table one column, `label` by default, has the true classes, and every other column is named after a class.
Labels are names of columns, or numbers of columns from 0.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Labels, check_classes, check_confidences, check_labels, check_probs
from recal.errors import FileError, InputError, Remedy
from recal.files.atomic import replacing
from recal.files.npz import names_in, read_npz, write_npz
from recal.files.tables import is_number, pyarrow_for, read_columns
from recal.files.views import read_views
from recal.maps.plan import Plan

_NAMES = ("probs", "labels", "classes", "confidence", "fitted_rows")
# Keys of the metadata of a Parquet table.
_FITTED, _JOB = b"recal.fitted_rows", b"recal.job"
_LABEL = "label"
# The columns of recal's own tables, except those of the classes.
_ANSWER, _MORE, _PREFIX = ("answer", "confidence"), ("accepted", "passes", "input"), "p_"


@dataclass(frozen=True)
class Probabilities:
    """The contents of a file of probabilities; labels are column indices."""

    probs: Floats
    labels: Labels | None
    classes: NDArray[Any] | None
    confidence: NDArray[np.float64] | None = None
    fitted_rows: int = 0  # number of rows that the calibration was fitted on

    @property
    def named_labels(self) -> NDArray[Any]:
        """Labels as names, if `classes` has names."""
        assert self.labels is not None
        return self.labels if self.classes is None else self.classes[self.labels]

    def in_order_of(self, other: Probabilities) -> Probabilities:
        """Return the same probabilities with columns in the order of `other`, which must have the same samples."""
        if self.probs.shape != other.probs.shape:
            raise InputError(
                f"Both must hold the same samples and classes, got {self.probs.shape}, {other.probs.shape}."
            )
        if self.classes is not None and other.classes is not None:
            columns = check_labels(other.classes, len(other.classes), len(self.classes), self.classes)
            labels = None if self.labels is None else np.argsort(columns)[self.labels]
            result = replace(self, probs=self.probs[:, columns], labels=labels, classes=other.classes)
        else:
            result = self
        if result.labels is not None and other.labels is not None and (result.labels != other.labels).any():
            row = int(np.argmax(result.labels != other.labels))
            raise InputError(
                f"The labels of row {row} differ, so these are not the same samples in the same order. Sort both alike."
            )
        return result


def write_probs(
    path: str | os.PathLike[str],
    probs: ArrayLike,
    labels: Labels | None = None,
    classes: NDArray[Any] | None = None,
    confidence: NDArray[np.float64] | None = None,
    fitted_rows: int = 0,
    **more: NDArray[Any],
) -> Path:
    """Write probabilities, and more arrays with them, to an .npz file, atomically."""
    target = Path(path)
    if target.suffix != ".npz":
        raise InputError(f"Probabilities are written to a name ending in .npz, got {target.name!r}.")
    arrays: dict[str, Any] = {"probs": check_probs(probs)}
    named = labels if labels is None or classes is None else classes[labels]
    count = np.array(fitted_rows) if fitted_rows else None
    optional = {"labels": named, "classes": classes, "confidence": confidence, "fitted_rows": count, **more}
    write_npz(target, arrays | {name: values for name, values in optional.items() if values is not None})
    return target


def read_probs(path: str | os.PathLike[str]) -> Probabilities:
    """Read an .npz file of probabilities."""
    source = Path(path)
    arrays = read_npz(source, _NAMES, required="probs")
    try:
        probs = check_probs(arrays["probs"], binary=True)
        classes = check_classes(arrays["classes"], probs.shape[1]) if "classes" in arrays else None
        labels = check_labels(arrays["labels"], len(probs), probs.shape[1], classes) if "labels" in arrays else None
        sure = check_confidences(arrays["confidence"], len(probs)) if "confidence" in arrays else None
    except InputError as error:
        raise error.at(source) from None
    fitted = arrays.get("fitted_rows", np.array(0))
    if fitted.shape != () or fitted.dtype.kind not in "iu":
        raise InputError(f"{source}: fitted_rows must be one whole number, got the shape {fitted.shape}.")
    return Probabilities(probs, labels, classes, sure, int(fitted))


def probs_of_file(path: str | os.PathLike[str]) -> Probabilities:
    """Read probabilities, or compute the model's own probabilities from the logits of views."""
    source = Path(path)
    if source.is_file() and "logits" not in names_in(source):
        return read_probs(source)
    from recal.maps.plan import calibrated_probs  # compiled code, which probabilities do not need

    views = read_views(source)
    return Probabilities(calibrated_probs(Plan(), views), views.labels, views.classes)


def check_prob_name(path: Path) -> None:
    """Refuse a name with the wrong ending, before the work starts."""
    if path.suffix not in (".npz", ".parquet", ".csv"):
        raise InputError(f"Answers are written to a name ending in .npz, .parquet or .csv, got {path.name!r}.")
    if path.suffix == ".parquet":
        pyarrow_for("Writing a .parquet table")


def write_prob_file(
    path: Path,
    probs: NDArray[np.float64],
    labels: Labels | None = None,
    classes: NDArray[Any] | None = None,
    *,
    confidence: NDArray[np.float64] | None = None,
    accepted: NDArray[np.bool_] | None = None,
    passes: NDArray[np.int64] | None = None,
    inputs: Sequence[str] | None = None,
    job: Mapping[str, Any] | None = None,
    fitted_rows: int = 0,
) -> Path:
    """Write answers to an .npz file, a Parquet table or a CSV table, by the ending of the name, atomically.

    The confidence is the largest probability of a row by default. The metadata of a Parquet table keeps `job`, the
    record of what it was computed from, which `read_job` returns.
    """
    check_prob_name(path)
    names = np.arange(probs.shape[1]) if classes is None else classes
    answer = names[probs.argmax(axis=1)]
    if path.suffix == ".npz":
        more = {"answer": answer} | ({} if accepted is None else {"accepted": accepted})
        return write_probs(path, probs, labels, classes, confidence, fitted_rows, **more)
    confidence = probs.max(axis=1) if confidence is None else confidence
    columns: dict[str, Any] = {} if inputs is None else {"input": list(inputs)}
    columns |= {_ANSWER[0]: answer, _ANSWER[1]: confidence}
    columns |= {name: values for name, values in zip(_MORE, (accepted, passes)) if values is not None}
    if labels is not None:
        columns["label"] = names[labels]
    if path.suffix == ".csv":
        return _write_csv(path, columns)
    arrow, parquet = pyarrow_for("Writing a .parquet table")
    for place, name in enumerate(names.tolist()):
        columns[f"{_PREFIX}{name}"] = np.ascontiguousarray(probs[:, place])
    table = arrow.table(columns)
    metadata = {_FITTED: str(fitted_rows).encode()} if fitted_rows else {}
    metadata |= {} if job is None else {_JOB: json.dumps(job).encode()}
    table = table.replace_schema_metadata(metadata)
    # Probabilities hardly repeat: a dictionary would take a sixth more bytes and twice the time.
    repeating = [name for name in columns if name != _ANSWER[1] and not name.startswith(_PREFIX)]
    with replacing(path) as file:
        parquet.write_table(table, file, use_dictionary=repeating)
    return path


def _write_csv(path: Path, columns: dict[str, Any]) -> Path:
    """Write a table as text: numbers to six digits, and no cell that a spreadsheet would run as a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(_csv_cells(np.asarray(values)) for values in columns.values())))
    with replacing(path) as file:
        file.write(text.getvalue().encode("utf-8"))
    return path


def _csv_cells(values: NDArray[Any]) -> list[str]:
    if values.dtype.kind == "f":
        return [f"{value:.6g}" for value in values.tolist()]
    if values.dtype.kind == "b":
        return ["true" if value else "false" for value in values.tolist()]
    texts = [str(value) for value in values.tolist()]
    return [f"'{text}" if text[:1] in "=+-@\t\r" and text and not is_number(text) else text for text in texts]


def read_job(path: Path) -> dict[str, Any] | None:
    """Return the job that a Parquet table was written by, or None."""
    _, parquet = pyarrow_for("Reading Parquet files")
    try:
        with path.open("rb") as file:
            job = json.loads((parquet.read_metadata(file).metadata or {})[_JOB])
    except Exception:  # not a table, without a job, or damaged
        return None
    return job if isinstance(job, dict) else None


def read_prob_table(
    path: str | os.PathLike[str], label_column: str = _LABEL, leave_out: Collection[str] = ()
) -> Probabilities:
    """Read probabilities, and labels if there is a label column, from a .csv or .parquet file.

    `leave_out` names columns with other contents, such as the camera of each row.
    """
    source = Path(path)
    columns = {name: values for name, values in read_columns(source).items() if name not in leave_out}
    if label_column != _LABEL and label_column not in columns:
        raise FileError(f"{source} has no column {label_column!r}; it has {', '.join(columns)}.")
    labels = columns.pop(label_column, None)
    confidence = columns.get(_ANSWER[1])
    own = _take_own(columns)
    if not own and set(_ANSWER) <= set(columns):
        raise FileError(
            f"{source} holds answers without the probabilities of every class. Apply with a name ending in .npz or "
            ".parquet, which hold them."
        )
    if not columns:
        raise FileError(f"{source} has no columns beside {label_column!r}; every other column must be a class.")
    names = np.array([name.removeprefix(_PREFIX) if own else name for name in columns])
    try:
        values = np.column_stack([_numbers(name, column) for name, column in columns.items()])
        if len(names) == 1 and not own:
            names = _binary_classes(str(names[0]), labels)
        probs = check_probs(values, binary=len(names) == 2)
        # recal writes numbers for classes without names.
        classes = None if own and names.tolist() == [str(number) for number in range(len(names))] else names
        sure = None if not own or confidence is None else _numbers(_ANSWER[1], confidence)
        truth = None if labels is None else check_labels(*_labels(labels, names), classes=names)
        sure = None if sure is None else check_confidences(sure, len(probs))
        return Probabilities(probs, truth, classes, sure, _fitted_rows(source) if own else 0)
    except InputError as error:
        raise error.at(source) from None


def _binary_classes(column: str, labels: NDArray[Any] | None) -> NDArray[Any]:
    """Return the two classes of a table with one column of probabilities, which are those of the second class.

    The second class is the column's name if that is a label, and otherwise the label 1.
    """
    words = [] if labels is None else sorted({str(label) for label in labels.tolist()})
    others = [word for word in words if word != column]
    if column in words and len(others) == 1:
        return np.array([others[0], column])
    if set(words) <= {"0", "1"}:
        return np.array(["0", "1"])
    raise InputError(
        f"The column {column!r} holds one probability per row, so it is that of the second of two classes, but no "
        f"label is called so: the labels are {', '.join(words[:8])}",
        remedy="Name the column after the label that it is the probability of, or write labels as 0 and 1",
    )


def _take_own(columns: dict[str, NDArray[Any]]) -> bool:
    """Whether recal wrote the table; if so, remove the columns that are not probabilities."""
    rest = [name for name in columns if name not in (*_ANSWER, *_MORE)]
    own = set(_ANSWER) <= set(columns) and bool(rest) and all(name.startswith(_PREFIX) for name in rest)
    if own:
        for name in (*_ANSWER, *_MORE):
            columns.pop(name, None)
    return own


def _labels(labels: NDArray[Any], names: NDArray[Any]) -> tuple[NDArray[Any], int, int]:
    """Return labels as names of columns."""
    words = np.array([str(label) for label in labels.tolist()])
    if not set(words.tolist()) <= set(names.tolist()):
        try:
            numbers = np.array([int(word) for word in words.tolist()])
        except ValueError:
            row, word = next((row, word) for row, word in enumerate(words.tolist()) if word not in names)
            raise InputError(
                f"The label {word!r} of row {row} names no column; the columns of classes are "
                f"{', '.join(names.tolist()[:8])}."
            ) from None
        else:
            words = names[check_labels(numbers, len(numbers), len(names))]
    return words, len(words), len(names)


def _numbers(name: str, values: NDArray[Any]) -> NDArray[np.float64]:
    try:
        return values.astype(np.float64)
    except (ValueError, TypeError):
        bad = [(row, value) for row, value in enumerate(values.tolist()) if not is_number(value)]
        row, value = bad[0]
        some = f"The column {name!r} must hold probabilities, as every column but the labels' does; row {row} "
        if len(bad) < len(values):
            raise InputError(f"{some}is {value!r}. Correct or remove that row.") from None
        raise InputError(
            f"{some}holds {value!r}",
            remedy=Remedy(
                f"If it holds the labels, pass label_column={name!r}; else remove the column",
                typed=f"If it holds the labels, add --label-column {quote(name)}; else remove the column",
            ),
        ) from None


def _fitted_rows(path: Path) -> int:
    """Return how many rows of the table the calibration was fitted on."""
    if path.suffix != ".parquet":
        return 0
    number = (pyarrow_for("Reading Parquet files")[1].read_schema(path).metadata or {}).get(_FITTED, b"0")
    return int(number) if number.isdigit() else 0
