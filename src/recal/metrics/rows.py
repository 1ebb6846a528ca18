"""What most metrics read of (probs, y): one confidence, one right-or-wrong and two scores per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Labels, check_confidences, check_form, check_labels, check_probs, check_weights
from recal.errors import InputError, RecalError
from recal.metrics import passes

Classes = Sequence[Any] | NDArray[Any] | None


@dataclass(frozen=True)
class RowScores:
    """Per-row numbers, each of shape (n_samples,), in the order of the rows."""

    confidence: NDArray[np.float64]
    correct: NDArray[np.bool_]
    brier: NDArray[np.float64]
    nll: NDArray[np.float64]
    n_classes: int

    @property
    def gap(self) -> NDArray[np.float64]:
        """Confidence minus outcome; zero on average where confidence is calibrated."""
        return self.confidence - self.correct

    def __len__(self) -> int:
        return len(self.confidence)


def score(probs: ArrayLike, y: ArrayLike, classes: Classes = None, confidences: ArrayLike | None = None) -> RowScores:
    """Check and score every row in one pass; confidence is the largest probability where it is not given."""
    array, labels = check_pair(probs, y, classes)
    n = len(array)
    rows = RowScores(np.empty(n), np.empty(n, np.bool_), np.empty(n), np.empty(n), array.shape[1])
    run(passes.score_rows, array, labels, rows.confidence, rows.correct, rows.brier, rows.nll)
    return rows if confidences is None else replace(rows, confidence=check_confidences(confidences, n))


def ranked(
    probs: ArrayLike, y: ArrayLike, classes: Classes = None, sample_weight: ArrayLike | None = None
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64] | None]:
    """Return confidence and correctness of the rows that count, and how often each does; None for once each."""
    array, labels = check_pair(probs, y, classes)
    confidence, correct = np.empty(len(array)), np.empty(len(array), np.bool_)
    run(passes.rank_rows, array, labels, confidence, correct)
    if sample_weight is None:
        return confidence, correct, None
    weights = check_weights(sample_weight, len(array))
    held = weights > 0.0
    return confidence[held], correct[held], weights[held]


def check_pair(probs: ArrayLike, y: ArrayLike, classes: Classes) -> tuple[Floats, Labels]:
    """Check form and labels; the values of `probs` are checked by the pass that reads them, see `run`."""
    array = check_form(probs, "probs")
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    # One byte order and layout, so that each pass is compiled once for each dtype.
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return array, check_labels(y, len(array), array.shape[1], classes)


def run(kernel: Callable[..., int], probs: Floats, *arguments: Any) -> None:
    """Run a pass over `probs`; where it met a bad row, raise the check's own message."""
    row = kernel(probs, *arguments)
    if row >= 0:
        check_probs(probs)
        raise RecalError(f"Row {row} of `probs` was refused, though it passes the check; please report this.")


def equal_width_edges(n_bins: int) -> NDArray[np.float64]:
    """Edges b / n_bins, compared with confidences as float64 whatever the dtype of the probabilities."""
    return np.arange(check_n_bins(n_bins) + 1) / n_bins


def check_n_bins(n_bins: int) -> int:
    if isinstance(n_bins, bool) or not isinstance(n_bins, int | np.integer) or n_bins < 1:
        raise InputError("must be a whole number of at least 1", argument="n_bins", came=f"got {n_bins!r}")
    return int(n_bins)
