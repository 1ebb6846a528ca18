"""The rules for what comes in, each written once. Every check returns the value in the form used inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.errors import InputError

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.intp]
_FLOATS = (np.float16, np.float32, np.float64)
# Rows of probabilities in float16 or float32 do not sum to one exactly.
_SUM_TOLERANCE = 1e-3
# A few rows of logits may sum to nearly 1 by chance; more rows than this may not.
_FEW_ROWS = 8


def check_form(values: ArrayLike, name: str) -> Floats:
    """Return `values` as an (n_samples, n_classes) float array, without a copy where possible; values not yet read."""
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"`{name}` is a masked array; drop or fill the masked values, and pass a plain array.")
    if hasattr(values, "tocsr"):
        raise InputError(f"Sparse data are not supported: `{name}` has a number for every class; pass .toarray().")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists, tensors that track gradients
        raise InputError(f"`{name}` cannot be read as an array: {error}") from None
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if not array.dtype.isnative:  # compiled code reads the machine's own byte order only
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "c":
        raise InputError(f"Complex data not supported: `{name}` must hold floats, got dtype {array.dtype}.")
    if array.dtype.type not in _FLOATS:
        raise InputError(f"`{name}` must hold floats (float16, float32 or float64), got dtype {array.dtype}.")
    if array.ndim != 2:
        raise InputError(
            f"`{name}` must have the shape (n_samples, n_classes), got {array.shape}. "
            "Reshape your data: for one sample pass a single row; for a binary score pass two columns."
        )
    if array.shape[0] == 0:
        raise InputError(f"`{name}` has no rows; at least one sample is needed.")
    if array.shape[1] < 2:
        count = array.shape[1]
        raise InputError(
            f"`{name}` has {count} column; at least two classes are needed. It holds "
            f"{count} feature(s) (shape={array.shape}) while a minimum of 2 is required. "
            "For a binary score s pass the two columns (0, s)."
        )
    return array


def check_matrix(values: ArrayLike, name: str) -> Floats:
    """Return `values` as a finite (n_samples, n_classes) float array, without a copy where possible."""
    array = check_form(values, name)
    # min and max propagate NaN and need no temporary of the array's size, unlike isfinite.
    if not (np.isfinite(array.min()) and np.isfinite(array.max())):
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise InputError(
            f"`{name}` must be finite; row {row}, column {column} is {array[row, column]}. "
            "Remove rows with NaN or inf, or mend the model that gave them."
        )
    return array


def check_logits(values: ArrayLike, name: str = "logits") -> Floats:
    """Return finite logits; refuse what can only be probabilities, and a spread that no float can hold."""
    array = check_matrix(values, name)
    low, high = float(array.min()), float(array.max())
    if high - low == float("inf"):
        raise InputError(
            f"`{name}` go from {low:.3g} to {high:.3g}, and their difference is more than a float can hold. "
            "Scale them down: only differences within a row matter."
        )
    if looks_like_probabilities(array):
        raise InputError(
            f"Every row of `{name}` lies in [0, 1] and sums to 1: these are probabilities, and logits are needed. "
            f"Pass the model's outputs before the softmax, or np.log(np.clip({name}, 1e-12, None))."
        )
    return array


def looks_like_probabilities(array: Floats) -> bool:
    """Whether every row lies in [0, 1] and sums to 1, as no network's logits do."""
    if array.min() < 0 or array.max() > 1:
        return False
    tolerance = _SUM_TOLERANCE if len(array) > _FEW_ROWS else 1e-6
    return bool(np.allclose(array.sum(axis=1, dtype=np.float64), 1.0, rtol=0, atol=tolerance))


def check_probs(values: ArrayLike, name: str = "probs") -> Floats:
    """Return finite probabilities whose rows sum to 1; refuse logits."""
    array = check_matrix(values, name)
    if array.min() < 0 or array.max() > 1:
        row = int(np.argwhere((array < 0) | (array > 1))[0][0])
        worst = array[row].min() if array[row].min() < 0 else array[row].max()
        raise InputError(
            f"Values of `{name}` must lie in [0, 1]; row {row} holds {worst:.6g}. "
            + (
                "They sum to 100: divide percentages by 100."
                if np.allclose(array.sum(axis=1), 100, atol=0.1)
                else "If these are logits, pass softmax(logits)."
            )
        )
    sums = array.sum(axis=1, dtype=np.float64)
    worst_row = int(np.argmax(np.abs(sums - 1)))
    if abs(sums[worst_row] - 1) > _SUM_TOLERANCE:
        raise InputError(
            f"Rows of `{name}` must sum to 1; row {worst_row} sums to {sums[worst_row]:.4g}. "
            "If these are logits, pass softmax(logits)."
        )
    return array


def check_labels(
    y: ArrayLike, n_samples: int, n_classes: int, classes: Sequence[Any] | NDArray[Any] | None = None
) -> Labels:
    """Return labels as column indices.

    Integers are column indices, unless `classes` are numbers too; anything else is looked up in `classes`, whose order
    is the order of the columns. A class that is missing from `y` therefore never shifts a column.
    """
    if isinstance(y, np.ma.MaskedArray):
        raise InputError("Labels are a masked array; drop the samples whose labels are masked, and pass a plain array.")
    try:
        labels = np.asarray(y)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"Labels cannot be read as an array: {error}") from None
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise InputError(
            f"Labels must be one per sample, got the shape {labels.shape}. For one-hot rows pass y.argmax(1)."
        )
    if len(labels) != n_samples:
        raise InputError(f"There are {n_samples} samples but {len(labels)} labels.")
    if classes is not None:
        names = check_classes(classes, n_classes)
        # Whole numbers beside classes that are words can only be column indices.
        if labels.dtype.kind not in "iu" or names.dtype.kind not in "US":
            return _look_up(labels, names)
    if labels.dtype.kind not in "iu":
        raise InputError(
            f"Labels must be integers 0..{n_classes - 1} (column indices), got dtype {labels.dtype}. "
            + _remedy_for_kind(labels)
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < n_classes:
        row = int(np.argmax((labels < 0) | (labels >= n_classes)))
        raise InputError(
            f"Labels must lie in 0..{n_classes - 1}, one for each column; row {row} has {labels[row]}. "
            + _remedy_for_range(labels, n_classes)
        )
    return labels.astype(np.intp)


def check_weights(values: ArrayLike, n_samples: int) -> NDArray[np.float64]:
    """Return how often each sample counts: finite, at least 0, not all 0."""
    try:
        weights = np.asarray(values, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise InputError(f"`sample_weight` cannot be read as numbers: {error}") from None
    if weights.shape != (n_samples,):
        raise InputError(
            f"`sample_weight` must have one number per sample, {n_samples}, got the shape {weights.shape}."
        )
    if not np.isfinite(weights).all() or weights.min() < 0.0 or not weights.any():
        raise InputError("`sample_weight` must hold finite numbers of at least zero, and not all may be zero.")
    return weights


def _remedy_for_kind(labels: NDArray[Any]) -> str:
    if labels.dtype.kind == "f" and np.isfinite(labels).all() and (labels == np.rint(labels)).all():
        return "They are whole numbers all the same: pass y.astype(int)."
    if labels.dtype.kind == "b":
        return "If True stands for the second column, pass y.astype(int); otherwise classes=[True, False]."
    if labels.dtype.kind == "f":
        return "Unknown label type: continuous. A classifier's labels are classes."
    return "For other labels pass classes=[...], one per column, in the columns' order."


def _remedy_for_range(labels: NDArray[Any], n_classes: int) -> str:
    if labels.min() == 1 and labels.max() == n_classes:
        return f"They go from 1 to {n_classes}, and columns are counted from 0: pass y - 1."
    return "If the labels are names that happen to be numbers, pass classes=[...] in the columns' order."


def check_classes(classes: Sequence[Any] | NDArray[Any], n_classes: int) -> NDArray[Any]:
    """Return `classes` as an array with one distinct value per column."""
    names = np.asarray(classes)
    if names.dtype.kind in "OT" and all(isinstance(name, str) for name in names.ravel().tolist()):
        names = names.astype(np.str_)  # words from pandas and the like, in the form that files can hold
    if names.dtype.kind not in "USiufb":
        raise InputError(f"`classes` must be words or numbers, one for each column, got dtype {names.dtype}.")
    if names.ndim != 1 or len(names) != n_classes:
        came = f"{len(names)} names" if names.ndim == 1 else f"the shape {names.shape}"
        raise InputError(f"`classes` must name each of the {n_classes} columns once, got {came}.")
    if len(set(names.tolist())) != n_classes:
        raise InputError("`classes` must not name a class twice.")
    return names


def _look_up(labels: NDArray[Any], names: NDArray[Any]) -> Labels:
    index = {name: column for column, name in enumerate(names.tolist())}
    if labels.dtype.kind == "O" and any(isinstance(label, list | dict | set | np.ndarray) for label in labels):
        raise InputError("Labels must be one word or number per sample, got a list or the like.")
    try:
        return np.array([index[label] for label in labels.tolist()], dtype=np.intp)
    except KeyError as missing:
        row = labels.tolist().index(missing.args[0])
        raise InputError(
            f"Label {missing.args[0]!r} in row {row} is not in `classes`, which has {len(names)} values "
            f"such as {', '.join(map(repr, names.tolist()[:3]))}."
        ) from None
