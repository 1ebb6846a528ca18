"""How samples are grouped by the model's reaction to a transformed copy, and the replay of ReCal's
steps by compiled loops.

One rule decides everywhere whether a confidence rose: the view's must exceed the original's by more
than `RISE`. Views that change nothing, and pairs of saturated confidences, therefore never rose,
in any order of summation.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Vector, check_logits
from recal.engine import rows as kernels
from recal.engine.compiled import over_rows
from recal.engine.series import RISE, ScaledLogits, ScaledRows
from recal.errors import InputError

ConfidenceAt = Literal["original", "own"]
# The view of each step, (n_steps,), and its four betas, (n_steps, 4).
Program = tuple[NDArray[np.intp], NDArray[np.float64]]
# Groups counted from 0, as betas are stored.
GroupIndex = NDArray[np.int8]


class Group(IntEnum):
    """Whether the prediction changed, and whether the confidence in the original's prediction rose."""

    CHANGED_ROSE = 1
    CHANGED_FELL = 2
    KEPT_ROSE = 3
    KEPT_FELL = 4


def group(
    logits: ArrayLike, transformed_logits: ArrayLike, confidence_at: ConfidenceAt = "original"
) -> NDArray[np.int64]:
    """Return each sample's group, 1 to 4, as numbered in `Group`.

    A confidence rose if the copy's exceeds the original's by more than 2**-24.

    Parameters
    ----------
    logits, transformed_logits : array-like of shape (n_samples, n_classes)
        The model's logits for the inputs and for their transformed copies.
    confidence_at : {"original", "own"}
        Read the copy's confidence at the original's prediction, or at its own.

    Examples
    --------
    >>> from recal import group
    >>> group([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]], [[3.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    array([3, 4, 2])
    """
    if confidence_at not in ("original", "own"):
        raise InputError(
            f"must be 'original' or 'own', got {confidence_at!r}", argument="confidence_at"
        )
    original = ScaledLogits(check_logits(logits))
    view = ScaledLogits(check_logits(transformed_logits, "transformed_logits"))
    if original.shape != view.shape:
        raise InputError(
            "`logits` and `transformed_logits` must have one shape, "
            f"got {original.shape} and {view.shape}."
        )
    gaps = view.drop_at(original.columns) if confidence_at == "original" else 0.0
    return group_indices(original, view, gaps).astype(np.int64) + 1


def group_indices(original: ScaledRows, view: ScaledRows, gaps: Vector | float) -> GroupIndex:
    """Return the groups, counted from 0, of originals and a view at their current scales.

    Confidences come from the series; a row is read if its series cannot decide.

    Parameters
    ----------
    gaps : (n_samples,), or 0.0 for the view's own prediction
        How far the view's logit whose confidence is read lies below the view's largest.
    """
    own, doubt = _confidences(original, 0.0)
    other, more = _confidences(view, gaps)
    gain = other - own
    unclear = np.flatnonzero(np.abs(gain - RISE) <= doubt + more)
    if len(unclear):
        logs = view.scales[unclear] * np.broadcast_to(gaps, len(gain))[unclear]
        other = np.exp(logs) / (1.0 + np.exp(view.look(unclear)))
        gain[unclear] = other - 1.0 / (1.0 + np.exp(original.look(unclear)))
    return (2 * (original.columns == view.columns) + (gain <= RISE)).astype(np.int8)


def _confidences(rows: ScaledRows, gaps: Vector | float) -> tuple[Vector, Vector]:
    """Return confidences by the series, and bounds on their errors."""
    log_odds, error = rows.bounded_log_odds()
    top = 1.0 / (1.0 + np.exp(log_odds))
    confidences = top if isinstance(gaps, float) else top * np.exp(rows.scales * gaps)
    # The slope of p in the log-odds is p (1 - top), which changes by less than a factor of 2 within
    # an error of 1/2.
    return confidences, 2.0 * error * confidences * (1.0 - top)


def replayed_scales(
    program: Program,
    start: float,
    confidence_at: ConfidenceAt,
    logits: Floats,
    views: Sequence[Floats],
) -> Vector:
    """Return each original's scale after all steps, (n_samples,), by compiled loops.

    A few rows at a time are copied into one array with their views, which stays in the cache.
    """
    numbers, betas = program
    scales = np.full(len(logits), start)
    dtype = np.result_type(np.float32, logits, *views)
    n_rows = max(1, 1_000_000 // (logits.shape[1] * (1 + len(views))))
    for begin in range(0, len(logits), n_rows):
        part = slice(begin, begin + n_rows)
        stack = np.stack([logits[part], *(view[part] for view in views)], dtype=dtype)
        columns, lowest = stack.argmax(axis=2), stack.min(axis=2)
        over_rows(
            kernels.replay, scales[part], stack, columns, lowest, confidence_at == "own", numbers,
            betas, size=stack.size,
        )  # fmt: skip
    return scales
