"""Probabilities on disk: .npz files, and tables with one row per sample.

An .npz file has `probs` (n, K) and optionally `labels` (n,), `classes` (K,), `confidence` (n,) as
`predict_confidence` returns it, and `fitted_rows`, the number of rows that the calibration was
fitted on.

A table that recal writes has the columns `input` (if inputs have names), `answer`, `confidence`,
`accepted` (if the calibration has a rule), `group` (if inputs have groups), `label` (if known) and,
in Parquet, ``p_CLASS`` for every class. A CSV file is for people and spreadsheets, so it has no
probabilities of the classes.

In any other table one column, `label` by default, has the true classes, and every other column is
named after a class. Labels are names of columns, or numbers of columns from 0.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels, check_classes, check_confidences, check_labels, check_probs
from recal.errors import FileError, InputError, in_both
from recal.files.tables import Table, is_number, pyarrow_for, read_table, write_columns
from recal.files.views import read_npz, write_npz

# The columns of recal's own tables, besides the label and "p_CLASS" for every class.
_OWN = ("input", "answer", "confidence", "accepted", "group")


@dataclass(frozen=True)
class Probabilities:
    """The contents of a file of probabilities; labels are column indices.

    For graded answers, `probs` is the confidence of each, and `labels` says which are right.
    """

    probs: Floats
    labels: NDArray[Any] | None
    classes: NDArray[Any] | None
    confidence: NDArray[np.float64] | None = None
    fitted_rows: int = 0  # number of rows that the calibration was fitted on
    groups: NDArray[Any] | None = None
    clusters: NDArray[Any] | None = None

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Which answers are right."""
        right = self.labels if self.probs.ndim == 1 else self.probs.argmax(axis=1) == self.labels
        return np.asarray(right)

    @property
    def named_labels(self) -> NDArray[Any]:
        """Labels as names, if `classes` has names."""
        assert self.labels is not None
        return self.labels if self.classes is None else self.classes[self.labels]

    def check_same_samples(self, other: Probabilities) -> None:
        """Refuse other samples or classes than those of `other`."""
        if self.probs.shape != other.probs.shape:
            raise InputError(
                f"Both must hold the same samples and classes, got {self.probs.shape}, "
                f"{other.probs.shape}."
            )
        for name in ("classes", "labels"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours is not None and theirs is not None and (ours != theirs).any():
                row = int(np.argmax(ours != theirs))
                raise InputError(
                    f"These are not the same samples and classes in the same order: {name} {row} "
                    f"is {ours[row]} and {theirs[row]}."
                )


def read_probs(path: str | os.PathLike[str]) -> Probabilities:
    """Read an .npz file of probabilities."""
    source = Path(path)
    names = ("probs", "labels", "classes", "confidence", "fitted_rows")
    arrays = read_npz(source, names, required="probs")
    try:
        probs = check_probs(arrays["probs"], binary=True)
        classes = labels = confidence = None
        if "classes" in arrays:
            classes = check_classes(arrays["classes"], probs.shape[1])
        if "labels" in arrays:
            labels = check_labels(arrays["labels"], len(probs), probs.shape[1], classes)
        if "confidence" in arrays:
            confidence = check_confidences(arrays["confidence"], len(probs))
    except InputError as error:
        raise error.at(source) from None
    fitted = arrays.get("fitted_rows", np.array(0))
    if fitted.shape != () or fitted.dtype.kind not in "iu":
        raise InputError(
            f"{source}: fitted_rows must be one whole number, got the shape {fitted.shape}."
        )
    return Probabilities(probs, labels, classes, confidence, int(fitted))


def check_prob_name(path: Path) -> None:
    """Refuse a name with the wrong ending, before the work starts."""
    if path.suffix not in (".npz", ".parquet", ".csv"):
        raise InputError(
            f"Answers are written to a name ending in .npz, .parquet or .csv, got {path.name!r}."
        )
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
    groups: NDArray[Any] | None = None,
    inputs: Sequence[str] | None = None,
    fitted_rows: int = 0,
) -> Path:
    """Write answers to an .npz file, a Parquet table or a CSV table, by the ending of the name,
    atomically.

    The confidence is the largest probability of a row by default.
    """
    check_prob_name(path)
    names = np.arange(probs.shape[1]) if classes is None else classes
    answer = names[probs.argmax(axis=1)]
    if path.suffix == ".npz":
        count = np.array(fitted_rows) if fitted_rows else None
        truth = labels if labels is None or classes is None else classes[labels]
        arrays = {"probs": check_probs(probs), "labels": truth, "classes": classes}
        arrays |= {"confidence": confidence, "answer": answer, "accepted": accepted}
        arrays["fitted_rows"] = count
        write_npz(path, {name: values for name, values in arrays.items() if values is not None})
        return path
    top = probs.max(axis=1) if confidence is None else confidence
    columns: dict[str, Any] = dict(zip(_OWN, (inputs, answer, top, accepted, groups)))
    if path.suffix == ".csv":  # for people: row numbers, and six digits
        columns["input"] = range(len(probs)) if inputs is None else inputs
        columns["confidence"] = [f"{value:.6g}" for value in top.tolist()]
    columns["label"] = None if labels is None else names[labels]
    columns = {
        name: values.tolist() if isinstance(values, np.ndarray) else list(values)
        for name, values in columns.items()
        if values is not None
    }
    if path.suffix == ".csv":
        write_columns(path, columns)
        return path
    for place, name in enumerate(names.tolist()):
        columns[f"p_{name}"] = np.ascontiguousarray(probs[:, place])
    write_columns(path, columns)
    return path


def read_prob_table(
    path: str | os.PathLike[str], label_column: str = "label", leave_out: Collection[str] = ()
) -> Probabilities:
    """Read probabilities, and labels if there is a label column, from a .csv or .parquet file.

    `leave_out` names columns with other contents, such as the camera of each row.
    """
    source = Path(path)
    table = read_table(source)
    columns = {name: table[name] for name in table if name not in leave_out}
    number_names = [name for name in columns if is_number(name) and not name.isdecimal()]
    if number_names and source.suffix == ".csv":
        raise FileError(
            f"{source} has no header: its first row holds {number_names[0]}. Begin with a row of "
            "the classes' names, and 'label' above the labels."
        )
    if label_column != "label" and label_column not in columns:
        raise FileError(f"{source} has no column {label_column!r}; it has {', '.join(columns)}.")
    labels = columns.pop(label_column, None)
    confidence = columns.get("confidence")
    answered = "answer" in columns and confidence is not None
    classes_only = [name for name in columns if name not in _OWN]
    own = answered and bool(classes_only) and all(name.startswith("p_") for name in classes_only)
    if answered and not own:
        raise FileError(
            f"{source} holds answers without the probabilities of every class. Apply with a name "
            "ending in .npz or .parquet, which hold them."
        )
    columns = {name: columns[name] for name in classes_only} if own else columns
    if not columns:
        raise FileError(
            f"{source} has no columns beside {label_column!r}; every other column must be a class."
        )
    names = np.array([name.removeprefix("p_") if own else name for name in columns])
    try:
        values = np.column_stack([_probabilities(table, name) for name in columns])
        if len(names) == 1 and not own:  # the probability of the second of two classes
            names = np.array(["0", "1"])
        probs = check_probs(values, binary=len(names) == 2)
        # recal writes numbers for classes without names.
        unnamed = own and names.tolist() == [str(number) for number in range(len(names))]
        classes = None if unnamed else names
        truth = None if labels is None else _label_columns(labels, names)
        if not own or confidence is None:
            return Probabilities(probs, truth, classes)
        confidences = check_confidences(_probabilities(table, "confidence"), len(probs))
        return Probabilities(probs, truth, classes, confidences)
    except InputError as error:
        raise error.at(source) from None


def _label_columns(labels: NDArray[Any], names: NDArray[Any]) -> Labels:
    """Return the column index of each label; a label is the name or the number of a column."""
    words = [str(label) for label in labels.tolist()]
    is_named = set(words) <= set(names.tolist())
    if not is_named and all(word.lstrip("-").isdecimal() for word in words):
        return check_labels(np.array(words, dtype=int), len(words), len(names))
    return check_labels(np.array(words), len(words), len(names), names)


def _probabilities(table: Table, name: str) -> NDArray[np.float64]:
    """Return the probabilities in a column; the error for any other column names it."""
    values = table[name].tolist()
    numbers = np.array([float(value) if is_number(value) else np.nan for value in values])
    bad = np.flatnonzero(~((numbers >= 0.0) & (numbers <= 1.0)))
    if not len(bad):
        return numbers
    raise InputError(
        f"The column {name!r} must hold probabilities from 0 to 1, as every column but the labels' "
        f"does; row {bad[0]} holds {values[bad[0]]!r}",
        remedy="Correct that row. If the table holds graded answers, use recal evaluate or recal "
        "decide with --correct COLUMN. If the column holds the labels, use "
        f"{in_both(label_column=name)}; leave other columns out with --group, --cluster, or remove "
        "them",
    )
