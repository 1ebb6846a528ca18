"""Checks of user input, each written once.

A check returns the value in the form that the code uses internally.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.errors import InputError, in_both

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.intp]
Indices = NDArray[np.intp]
Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Flags = NDArray[np.bool_]
# Rows of probabilities in float16 or float32 do not sum to one exactly.
SUM_TOLERANCE = 1e-3
# A few rows of logits may sum to nearly 1 by chance; more rows than this may not.
_FEW_ROWS = 8
# scikit-learn's `check_estimator` looks for these words at the end of errors.
ASIDES = {
    "complex": "Complex data not supported",
    "shape": "Reshape your data",
    "columns": "{} feature(s) (shape={}) while a minimum of 2 is required",
    "width": "X has {} features, but {} is expecting {} features as input",
    "no y": "{} requires y to be passed, but the target y is None",
    "continuous": "Unknown label type: continuous",
}
# What tables and people write for right and wrong.
_GRADES = {
    **dict.fromkeys(("true", "yes", "right", "correct", "1", "1.0"), 1.0),
    **dict.fromkeys(("false", "no", "wrong", "incorrect", "0", "0.0"), 0.0),
}

_NAME_CLASSES = "pass classes=[...] (--classes A,B,C) in the columns' order"
_SOFTMAX = "If these are logits, pass softmax(logits); an .npz file may hold them as `logits`"

MULTI_LABEL = (
    "If the model gives several labels to one input (multi-label), that is not supported: "
    "calibrate each label as a model of two classes"
)


def is_array(value: Any) -> bool:
    """Whether a value is an array of a library other than numpy, such as a torch tensor."""
    if isinstance(value, np.ndarray | np.generic | list | tuple):
        return False
    if hasattr(value, "__array_namespace__"):
        return True
    return type(value).__module__.partition(".")[0] in ("torch", "cupy", "jax", "dask", "ndonnx")


def as_array(values: ArrayLike, name: str, dtype: type | None = None) -> NDArray[Any]:
    """Return a numpy array; refuse masked arrays, and values that numpy cannot read."""
    if type(values).__name__ == "MaskedArray":
        rule = "is a masked array; drop or fill the masked values, and pass a plain array"
        raise InputError(rule, argument=name)
    # numpy cannot read a torch tensor that tracks gradients or is on another device.
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        return np.asarray(values, dtype=dtype)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists
        kind = "an array" if dtype is None else "numbers"
        raise InputError(f"cannot be read as {kind}: {error}", argument=name) from None


def as_column(column: Any) -> NDArray[Any]:
    """Return a column, or a single value, as an array of one axis; pandas' own missing values
    become None.
    """
    if isinstance(column, float | str):
        column = [column]
    if isinstance(column, list | tuple):  # numpy would turn a mixture of numbers and texts to text
        if set(map(type, column)) == {float}:
            return np.array(column)
        return as_objects(column)
    if hasattr(column, "notna") and (
        column.dtype == object or not isinstance(column.dtype, np.dtype)
    ):
        column = column.astype(object).where(column.notna(), None)
    return np.atleast_1d(as_array(column, "a column"))


def as_objects(items: Iterable[Any]) -> NDArray[Any]:
    """Return items as an array of one axis, even lists of one length, which numpy would join."""
    values = list(items)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN or one of pandas' missing values."""
    # The NA of pandas is neither equal nor unequal to itself.
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def text_of(value: Any) -> str:
    """Return an id, a group or a category as text, "" if it is missing.

    A whole number is written without a fraction: 1 and 1.0 are the same, and other programs store
    integers with gaps as floats. Texts stay as they are.

    Examples
    --------
    >>> text_of("1.0"), text_of(1.0), text_of(None), text_of(float("nan"))
    ('1.0', '1', '', '')
    """
    if is_missing(value):
        return ""
    if isinstance(value, float) and value.is_integer():
        if abs(value) > 2**53:
            raise InputError(
                f"The id or category {value:.0f} is stored as a float, which keeps 16 digits only, "
                "so that different ones may have become equal",
                remedy="Store the column as text or as whole numbers",
            )
        return str(int(value))
    return str(value)


def is_single_column(shape: Sequence[int]) -> bool:
    """Whether an array has one number for each sample: shape (n_samples,) or (n_samples, 1)."""
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)


def two_columns(column: Floats, *, probs: bool = False) -> Floats:
    """Return two columns for a binary model with one output, of shape (n_samples,) or (n_samples,
    1).

    The output is the log-odds of the second class, or its probability if `probs`.

    Examples
    --------
    >>> two_columns(np.array([1.5, -2.0])).tolist()
    [[0.0, 1.5], [0.0, -2.0]]
    >>> two_columns(np.array([[0.25]]), probs=True).tolist()
    [[0.75, 0.25]]
    """
    second = column.reshape(-1)
    return np.stack([1 - second if probs else np.zeros_like(second), second], axis=1)


def check_form(
    values: ArrayLike, name: str, *, single: Literal["log-odds", "probability"] | None = None
) -> Floats:
    """Return `values` as an (n_samples, n_classes) float array, if possible without a copy or
    reading the values.

    With `single`, one number for each sample is the log-odds or the probability of the second of
    two classes.
    """
    if hasattr(values, "tocsr"):
        rule = "is sparse, and has a number for every class; pass .toarray()"
        raise InputError(rule, argument=name)
    array = as_array(values, name)
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if not array.dtype.isnative:  # compiled code only reads the machine's own byte order
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.type not in (np.float16, np.float32, np.float64):
        aside = ASIDES["complex"] if array.dtype.kind == "c" else ""
        rule = f"must hold floats (float16, float32 or float64), got dtype {array.dtype}"
        raise InputError(rule, argument=name, remedy=aside)
    if single is not None and is_single_column(array.shape) and len(array):
        return two_columns(array, probs=single == "probability")
    if array.ndim != 2:
        rule = f"must have the shape (n_samples, n_classes), got {array.shape}"
        remedy = f"For one sample pass a single row. {ASIDES['shape']}"
        raise InputError(rule, argument=name, remedy=remedy)
    if array.shape[0] == 0:
        raise InputError("has no rows; at least one sample is needed", argument=name)
    if array.shape[1] < 2:
        rule = f"has {array.shape[1]} column; at least two classes are needed"
        remedy = ASIDES["columns"].format(array.shape[1], array.shape)
        raise InputError(rule, argument=name, remedy=remedy)
    return array


def check_matrix(values: ArrayLike, name: str) -> Floats:
    """Return `values` as finite floats, (n_samples, n_classes), without a copy if possible."""
    array = check_form(values, name)
    _check_finite(array, name)
    return array


def _check_finite(array: Floats, name: str) -> tuple[float, float]:
    """Return the smallest and the largest value; refuse values that are not finite."""
    # Unlike isfinite, min and max need no temporary array of this size; they propagate NaN.
    low, high = float(array.min()), float(array.max())
    if not (isfinite(low) and isfinite(high)):
        row, column = np.argwhere(~np.isfinite(array))[0]
        rule = f"must be finite; row {row}, column {column} is {array[row, column]}"
        remedy = "Remove rows with NaN or inf, or fix the model that returned them"
        raise InputError(rule, argument=name, remedy=remedy)
    return low, high


def check_logits(values: ArrayLike, name: str = "logits") -> Floats:
    """Return finite logits; refuse values that can only be probabilities, and a range that
    overflows a float.

    One number for each sample is the log-odds of the second of two classes.
    """
    array = check_form(values, name, single="log-odds")
    low, high = _check_finite(array, name)
    if high - low == float("inf"):
        rule = f"go from {low:.3g} to {high:.3g}; their difference is more than a float can hold"
        remedy = "Scale them down: only differences within a row matter"
        raise InputError(rule, argument=name, remedy=remedy)
    if low >= 0.0 and high <= 1.0 and looks_like_probabilities(array):
        raise InputError(
            f"Every row of `{name}` lies in [0, 1]: these are probabilities, and logits are needed",
            argument=name,
            remedy="Pass the model's outputs before the softmax (log-odds if there is one number "
            "for each sample), or numpy.log(numpy.maximum(probs, 1e-12))",
        )
    return array


def looks_like_probabilities(array: Floats) -> bool:
    """Whether every row lies in [0, 1] and sums to 1, unlike logits.

    A single column needs more than a few rows.
    """
    if array.min() < 0 or array.max() > 1:
        return False
    if is_single_column(array.shape):
        return len(array) > _FEW_ROWS
    if array.shape[1] == 2 and len(array) > _FEW_ROWS and not array[:, 0].any():
        return True
    tolerance = SUM_TOLERANCE if len(array) > _FEW_ROWS else 1e-6
    return bool(np.allclose(array.sum(axis=1, dtype=np.float64), 1.0, rtol=0, atol=tolerance))


def check_probs(values: ArrayLike, name: str = "probs", *, binary: bool = False) -> Floats:
    """Return finite probabilities whose rows sum to 1; refuse logits.

    With `binary`, one number for each sample is the probability of the second of two classes.
    """
    array = check_form(values, name, single="probability" if binary else None)
    low, high = _check_finite(array, name)
    if low < 0 or high > 1:
        row = int(np.argwhere((array < 0) | (array > 1))[0][0])
        worst = array[row].min() if array[row].min() < 0 else array[row].max()
        rule = f"must lie in [0, 1]; row {row} holds {worst:.6g}"
        raise InputError(rule, argument=name, remedy=_SOFTMAX)
    sums = array.sum(axis=1, dtype=np.float64)
    worst_row = int(np.argmax(np.abs(sums - 1)))
    if abs(sums[worst_row] - 1) > SUM_TOLERANCE:
        several = array.shape[1] > 2 and sums.max() > 1 + SUM_TOLERANCE
        rule = f"must sum to 1 in each row; row {worst_row} sums to {sums[worst_row]:.4g}"
        raise InputError(rule, argument=name, remedy=MULTI_LABEL if several else _SOFTMAX)
    return array


def need_labels(labels: Labels | None, purpose: str, aside: str = "") -> Labels:
    """Return labels that are there; otherwise refuse, and say what they are needed for."""
    if labels is None:
        how = "Pass them as `y`, or use views that hold them (--labels FILE)"
        remedy = f"{how}. {aside}" if aside else how
        raise InputError(f"Labels are needed to {purpose}", remedy=remedy)
    return labels


def check_labels(
    y: ArrayLike,
    n_samples: int,
    n_classes: int,
    classes: Sequence[Any] | NDArray[Any] | None = None,
) -> Labels:
    """Return labels as column indices.

    Integers are column indices, unless `classes` are numbers too; anything else is looked up in
    `classes`, whose order is the order of the columns. A class that is missing from `y` therefore
    never shifts a column.
    """
    labels = one_each(as_array(y, "labels"), n_samples)
    integers = labels.dtype.kind in "iu"
    if classes is not None:
        names = check_classes(classes, n_classes)
        # If class names are words, integer labels are column indices; if they are like "1" and "0",
        # labels are names.
        words = names.dtype.kind in "US"
        if integers and words and all(str(name).isdecimal() for name in names):
            names, words = names.astype(np.int64), False
        if not (integers and words):
            return _look_up(labels, names)
    if not integers:
        raise _of_another_kind(labels, n_classes)
    if len(labels) and not 0 <= labels.min() <= labels.max() < n_classes:
        row = int(np.argmax((labels < 0) | (labels >= n_classes)))
        raise label_error(
            f"must lie in 0..{n_classes - 1}, one for each column; row {row} has {labels[row]}",
            remedy="If they count from 1, subtract 1 from each. If they are names, "
            f"{_NAME_CLASSES}",
        )
    return labels.astype(np.intp, copy=False)


def check_weights(values: ArrayLike, n_samples: int) -> NDArray[np.float64]:
    """Return the weight of each sample: finite, at least 0, not all 0."""
    weights = _check_column(values, n_samples, "sample_weight")
    if not np.isfinite(weights).all() or weights.min() < 0.0 or not weights.any():
        rule = "must hold finite numbers of at least zero, and not all may be zero"
        raise InputError(rule, argument="sample_weight")
    return weights


def _check_column(values: ArrayLike, n_samples: int, name: str) -> NDArray[np.float64]:
    array = as_array(values, name, np.float64)
    if array.shape != (n_samples,):
        rule = f"must hold one number for each of {n_samples} samples"
        raise InputError(f"{rule}, got the shape {array.shape}", argument=name)
    return array


def one_each(labels: NDArray[Any], n_samples: int | None) -> NDArray[Any]:
    """Return labels of shape (n_samples,) or (n_samples, 1) as one axis; refuse any others.

    None means that the number of samples is unknown.
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise label_error(
            f"must be one per sample, got the shape {labels.shape}",
            remedy=f"For one-hot rows pass y.argmax(1), the column of the 1. {MULTI_LABEL}",
        )
    if n_samples is not None and len(labels) != n_samples:
        raise label_error(
            f"must be one per sample; there are {n_samples} samples but {len(labels)} labels"
        )
    return labels


def label_error(rule: str, *, remedy: str = "") -> InputError:
    """Return an error about labels."""
    return InputError(f"Labels {rule}", argument="labels", remedy=remedy)


def _of_another_kind(labels: NDArray[Any], n_classes: int) -> InputError:
    words, remedy = f"dtype {labels.dtype}", f"For other labels {_NAME_CLASSES}"
    if labels.dtype.kind == "f":
        remedy = f"Pass y.astype(int) if they are whole numbers. {ASIDES['continuous']}"
        if (missing := np.isnan(labels)).any():
            words = f"{missing.sum()} missing ones, first in row {int(missing.argmax())}"
            remedy = "Leave out the samples without a label"
    elif labels.dtype.kind in "UOST":
        names = sorted({str(label) for label in labels.tolist()})
        if len(names) == n_classes <= 30:
            first = "If the columns are in alphabetical order,"
            remedy = f"{first} pass {in_both(classes=names)}"
    return label_error(
        f"must be integers 0..{n_classes - 1} (column indices), got {words}", remedy=remedy
    )


def check_classes(classes: Sequence[Any] | NDArray[Any], n_classes: int) -> NDArray[Any]:
    """Return `classes` as an array with one distinct value per column."""
    names = np.asarray(classes)
    if names.dtype.kind in "OT" and all(isinstance(name, str) for name in names.ravel().tolist()):
        names = np.array(names.tolist(), dtype=np.str_)  # of pandas and the like
    different = len(set(map(str, names.ravel().tolist())))
    if names.dtype.kind not in "USiufb" or names.shape != (n_classes,) or different < n_classes:
        rule = f"must name each of the {n_classes} columns once, by words or numbers"
        got = f"{different} different names of dtype {names.dtype}"
        raise InputError(f"{rule}, got {got}", argument="classes")
    return names


def _look_up(labels: NDArray[Any], names: NDArray[Any]) -> Labels:
    index = {name: column for column, name in enumerate(names.tolist())}
    try:
        return np.array([index[label] for label in labels.tolist()], dtype=np.intp)
    except TypeError:
        raise label_error("must be one word or number per sample, got a list or the like") from None
    except KeyError as missing:
        row = labels.tolist().index(missing.args[0])
        some = ", ".join(map(repr, names.tolist()[:3]))
        rule = f"must name every label; label {missing.args[0]!r} in row {row} is not among {some}"
        raise InputError(f"{rule}{', ...' * (len(names) > 3)}", argument="classes") from None


def check_confidences(
    confidences: ArrayLike, n_samples: int, *, remedy: str = ""
) -> NDArray[np.float64]:
    """Return one number in [0, 1] for each sample."""
    array = _check_column(confidences, n_samples, "confidences")
    inside = (array >= 0.0) & (array <= 1.0)  # false for NaN
    if not inside.all():
        row = int(np.argmin(inside))
        rule = f"must lie in [0, 1]; row {row} is {array[row]:.6g}"
        raise InputError(rule, argument="confidences", remedy=remedy)
    return array


def is_graded(values: object) -> bool:
    """Whether this is 1-D: the confidence of each answer, not the probabilities of all classes."""
    try:
        return np.ndim(values) == 1  # type: ignore[arg-type]
    except (ValueError, TypeError, RuntimeError):  # ragged lists; a later check explains the error
        return False


def grades_of(values: ArrayLike, *, words: bool = True) -> Vector:
    """Return 1.0 for right (True, 1), 0.0 for wrong (False, 0) and NaN for anything else.

    With `words`, a table may say yes and no, which elsewhere could be answers or classes.

    Examples
    --------
    >>> from recal.checks import grades_of
    >>> grades_of([" Yes", "wrong", "1", ""]).tolist(), grades_of([True, 0, 2]).tolist()
    ([1.0, 0.0, 1.0, nan], [1.0, 0.0, nan])
    """
    array = np.asarray(values)
    if array.dtype.kind in "OUS":
        texts = [
            "" if isinstance(value, str) and not words else str(value).strip().lower()
            for value in array.ravel().tolist()
        ]
        array = np.array([_GRADES.get(text, np.nan) for text in texts]).reshape(array.shape)
    numbers = array.astype(np.float64)
    return np.where(np.isin(numbers, (0.0, 1.0)), numbers, np.nan)


def check_graded(
    confidence: ArrayLike,
    correct: ArrayLike,
    classes: Sequence[Any] | NDArray[Any] | None = None,
    confidences: ArrayLike | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the confidence of each answer and whether it is right; `correct` holds booleans, or 0
    and 1.
    """
    if classes is not None or confidences is not None:
        raise InputError(
            "cannot be used with a 1-D first argument, which is the confidence of each answer",
            argument="classes" if confidences is None else "confidences",
            remedy="Pass the probabilities of all classes, shape (n_samples, n_classes), or "
            "leave it out",
        )
    array = as_array(confidence, "confidences", np.float64)
    if not len(array):
        raise InputError("has no rows; at least one answer is needed", argument="confidence")
    check_confidences(
        array,
        len(array),
        remedy="A 1-D first argument is the confidence of each answer. For log-odds s pass 1 / "
        "(1 + numpy.exp(-s)); for percentages divide by 100",
    )
    right = one_each(as_array(correct, "labels"), len(array))
    grades = grades_of(right, words=False)
    if (unknown := np.isnan(grades)).any():
        row = int(np.argmax(unknown))
        raise label_error(
            "must say which answers are right (booleans, or 0 and 1), since the first argument "
            f"is 1-D, got {right[row]} in row {row}",
            remedy="For class labels pass the probabilities of all classes, shape (n_samples, "
            "n_classes)",
        )
    return array, grades == 1.0
