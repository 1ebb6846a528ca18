"""Which of four groups a sample falls into, by how the model reacts to a transformed copy of it."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_logits
from recal.errors import InputError
from recal.kernels.grouping import regroup
from recal.kernels.threads import over_rows
from recal.plan import ConfidenceAt, Rule, Ties
from recal.scaled import ScaledLogits, Vector

# Groups counted from 0, as betas are stored.
GroupIndex = NDArray[np.int8]


class Group(IntEnum):
    """Whether the prediction changed, and whether the confidence in the original's prediction rose."""

    CHANGED_ROSE = 1
    CHANGED_FELL = 2
    KEPT_ROSE = 3
    KEPT_FELL = 4


def group(
    logits: ArrayLike,
    transformed_logits: ArrayLike,
    confidence_at: ConfidenceAt = "original",
    ties: Ties = "float32",
) -> NDArray[np.int64]:
    """Return each sample's group, 1 to 4, as numbered in `Group`.

    Parameters
    ----------
    logits, transformed_logits : array-like of shape (n_samples, n_classes)
        The model's logits for the inputs and for their transformed copies.
    confidence_at : {"original", "own"}
        Read the copy's confidence at the original's prediction, or at its own.
    ties : {"float32", "exact"}
        Compare float32 softmax values, where saturated confidences are equal, or log-odds, where nothing saturates.
        Equal counts as "did not rise".

    Examples
    --------
    >>> from recal import group
    >>> group([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]], [[3.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    array([3, 4, 2])
    """
    rule = Rule(confidence_at=confidence_at, ties=ties)
    original = ScaledLogits(check_logits(logits))
    view = ScaledLogits(check_logits(transformed_logits, "transformed_logits"))
    if original.logits.shape != view.logits.shape:
        raise InputError(
            "`logits` and `transformed_logits` must have one shape, "
            f"got {original.logits.shape} and {view.logits.shape}."
        )
    return group_indices(original, -original.log_partition(), view, rule).astype(np.int64) + 1


def group_indices(original: ScaledLogits, log_confidence: Vector, view: ScaledLogits, rule: Rule) -> GroupIndex:
    """Return the groups, counted from 0, of originals and a view at their present scales."""
    groups = np.empty(len(log_confidence), dtype=np.int8)
    over_rows(
        regroup, original.logits, original.maxima, original.scales, original.columns, log_confidence,
        view.logits, view.maxima, view.scales, view.columns,
        view.columns if rule.confidence_at == "own" else original.columns,
        view.log_partition(), rule.ties == "exact", groups,
    )  # fmt: skip
    return groups
