"""What most metrics need from (probs, y): each row's confidence, whether it is right, and its two proper scores.

Small arrays are scored in numpy, so that a command on a small file never waits for a compiler; large arrays use
compiled kernels. Both give the same bins and predictions, and sums that differ only by rounding. A function that reads
probabilities returns the first invalid row, or -1; `run` turns that into an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import (
    Floats,
    Labels,
    check_confidences,
    check_form,
    check_graded,
    check_labels,
    check_probs,
    check_weights,
    is_graded,
)
from recal.engine import binning
from recal.errors import InputError, RecalError

Array = NDArray[Any]
Vector = NDArray[np.float64]
Classes = Sequence[Any] | NDArray[Any] | None

# Up to this many numbers, numpy finishes before a compiler is even loaded.
SMALL = 100_000
# As in the compiled kernels: rows in float32 do not sum to one exactly.
_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class RowScores:
    """Per-row numbers, each of shape (n_samples,), in the order of the rows.

    `graded` is True if only the confidence of each answer is known, and whether it was right. `brier` and `nll` are
    then those of the two outcomes "right" and "wrong", and `n_classes` is 2.
    """

    confidence: Vector
    correct: NDArray[np.bool_]
    brier: Vector
    nll: Vector
    n_classes: int
    graded: bool = False

    @property
    def gap(self) -> Vector:
        """Confidence minus outcome; zero on average if the confidence is calibrated."""
        return self.confidence - self.correct

    def __len__(self) -> int:
        return len(self.confidence)

    def __getitem__(self, rows: NDArray[Any]) -> RowScores:
        return replace(
            self,
            confidence=self.confidence[rows],
            correct=self.correct[rows],
            brier=self.brier[rows],
            nll=self.nll[rows],
        )


def score(probs: ArrayLike, y: ArrayLike, classes: Classes = None, confidences: ArrayLike | None = None) -> RowScores:
    """Check and score every row.

    This is the one place that accepts both kinds of input: probabilities of shape (n_samples, n_classes) with labels,
    and a 1-D array with the confidence of each answer, where `y` says which answers are right.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes) or (n_samples,)
    y : array-like of shape (n_samples,)
        Labels; booleans, or 0 and 1, if `probs` is 1-D.
    classes : sequence of length n_classes, optional
    confidences : array-like of shape (n_samples,), optional
        Confidence of each prediction; by default the largest probability of the row.

    Examples
    --------
    >>> from recal.metrics.rows import score
    >>> score([[0.9, 0.1], [0.2, 0.8]], [0, 0]).correct
    array([ True, False])
    >>> score([0.9, 0.8], [True, False]).correct
    array([ True, False])
    """
    if is_graded(probs):
        return _score_graded(*check_graded(probs, y, classes, confidences))
    array, labels = check_pair(probs, y, classes)
    n = len(array)
    rows = RowScores(np.empty(n), np.empty(n, np.bool_), np.empty(n), np.empty(n), array.shape[1])
    run(score_rows, array, labels, rows.confidence, rows.correct, rows.brier, rows.nll)
    return rows if confidences is None else replace(rows, confidence=check_confidences(confidences, n))


def _score_graded(confidence: Vector, correct: NDArray[np.bool_]) -> RowScores:
    losses = np.where(correct, confidence, 1.0 - confidence)
    _negative_log(losses)
    return RowScores(confidence, correct, 2.0 * (confidence - correct) ** 2, losses, 2, graded=True)


def ranked(
    probs: ArrayLike, y: ArrayLike, classes: Classes = None, sample_weight: ArrayLike | None = None
) -> tuple[Vector, NDArray[np.bool_], Vector | None]:
    """Return confidence, correctness and weight of the rows with a positive weight; None stands for equal weights."""
    if is_graded(probs):
        confidence, correct = check_graded(probs, y, classes)
    else:
        array, labels = check_pair(probs, y, classes)
        confidence, correct = np.empty(len(array)), np.empty(len(array), np.bool_)
        run(rank_rows, array, labels, confidence, correct)
    if sample_weight is None:
        return confidence, correct, None
    weights = check_weights(sample_weight, len(confidence))
    positive = weights > 0.0
    return confidence[positive], correct[positive], weights[positive]


def check_pair(probs: ArrayLike, y: ArrayLike, classes: Classes) -> tuple[Floats, Labels]:
    """Check shape and labels. The values of `probs` are checked by the function that reads them, see `run`."""
    array = check_form(probs, "probs")
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    # One byte order and layout, so that each kernel is compiled once for each dtype.
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return array, check_labels(y, len(array), array.shape[1], classes)


def run(kernel: Callable[..., int], probs: Floats, *arguments: Any) -> None:
    """Run a kernel over `probs`; if it met an invalid row, raise the error of the check."""
    row = kernel(probs, *arguments)
    if row >= 0:
        check_probs(probs)
        raise RecalError(f"Row {row} of `probs` was refused although it passes the check. Please report this.")


def equal_width_edges(n_bins: int) -> Vector:
    """Edges b / n_bins, compared with confidences as float64 whatever the dtype of the probabilities."""
    return np.arange(check_n_bins(n_bins) + 1) / n_bins


def check_n_bins(n_bins: int) -> int:
    if isinstance(n_bins, bool) or not isinstance(n_bins, int | np.integer) or n_bins < 1:
        raise InputError("must be a whole number of at least 1", argument="n_bins", came=f"got {n_bins!r}")
    return int(n_bins)


def bin_top_label(probs: Array, y: Array, edges: Array, counts: Array, confidences: Array, correct: Array) -> int:
    """Add every row's confidence and correctness to its bin."""
    if probs.size > SMALL:
        return int(binning.bin_top_label(probs, y, edges, counts, confidences, correct))
    if (invalid := _first_invalid(probs)) >= 0:
        return invalid
    confidence = probs.max(axis=1).astype(np.float64)
    bin_of = assign_bins(confidence, edges)
    counts += np.bincount(bin_of, minlength=len(counts))
    confidences += np.bincount(bin_of, weights=confidence, minlength=len(counts))
    correct += np.bincount(bin_of[probs.argmax(axis=1) == y], minlength=len(counts))
    return -1


def score_rows(probs: Array, y: Array, confidence: Array, correct: Array, brier: Array, nll: Array) -> int:
    """Write each row's confidence, correctness, squared error and negative log-likelihood."""
    if probs.size > SMALL:
        invalid = int(binning.score_rows(probs, y, confidence, correct, brier, nll))
        if invalid < 0:
            _negative_log(nll)
        return invalid
    if (invalid := _first_invalid(probs)) >= 0:
        return invalid
    rows, gaps = np.arange(len(probs)), probs.astype(np.float64)
    confidence[:], correct[:] = probs.max(axis=1), probs.argmax(axis=1) == y
    nll[:] = gaps[rows, y]
    _negative_log(nll)
    gaps[rows, y] -= 1.0
    brier[:] = np.square(gaps).sum(axis=1)
    return -1


def rank_rows(probs: Array, y: Array, confidence: Array, correct: Array) -> int:
    """Write each row's confidence and correctness."""
    if probs.size > SMALL:
        return int(binning.rank_rows(probs, y, confidence, correct))
    if (invalid := _first_invalid(probs)) >= 0:
        return invalid
    confidence[:], correct[:] = probs.max(axis=1), probs.argmax(axis=1) == y
    return -1


def negative_log_likelihoods(probs: Array, y: Array, out: Array) -> int:
    """Write each row's negative log-likelihood."""
    if probs.size > SMALL:
        invalid = int(binning.truths(probs, y, out))
    elif (invalid := _first_invalid(probs)) < 0:
        out[:] = probs[np.arange(len(probs)), y]
    if invalid < 0:
        _negative_log(out)
    return invalid


def _negative_log(values: Array) -> None:
    with np.errstate(divide="ignore"):  # a label with the probability 0 has an infinite loss
        np.log(values, out=values)
    np.negative(values, out=values)


def bin_classwise(probs: Array, y: Array, edges: Array, block: Array, gaps: Array) -> int:
    """Add probability minus outcome to gaps[block[i], class, bin] for each row and class."""
    if probs.size > SMALL:
        return int(binning.bin_classwise(probs, y, edges, block, gaps))
    if (invalid := _first_invalid(probs)) >= 0:
        return invalid
    (n, k), n_bins = probs.shape, len(edges) - 1
    values = probs.astype(np.float64)
    place = (block[:, None] * k + np.arange(k)) * n_bins + assign_bins(values.ravel(), edges).reshape(n, k)
    values[np.arange(n), y] -= 1.0
    gaps += np.bincount(place.ravel(), weights=values.ravel(), minlength=gaps.size).reshape(gaps.shape)
    return -1


def _first_invalid(probs: Array) -> int:
    sums = probs.sum(axis=1, dtype=np.float64)
    valid = (probs.min(axis=1) >= 0.0) & (probs.max(axis=1) <= 1.0) & (np.abs(sums - 1.0) <= _SUM_TOLERANCE)
    return -1 if valid.all() else int(np.argmin(valid))


def assign_bins(values: Array, edges: Array) -> NDArray[np.intp]:
    """Return the bin of each value: the b with edges[b] < value <= edges[b + 1], or the first or last."""
    return np.searchsorted(edges[1:-1], values, side="left")
