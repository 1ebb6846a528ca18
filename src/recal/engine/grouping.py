"""Which of four groups a sample falls into, by how the model reacts to a transformed copy of it."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, check_logits
from recal.engine.kernels import grouping as comparing
from recal.engine.kernels.threads import over_rows
from recal.engine.scaled import Columns, ScaledLogits, Vector
from recal.errors import InputError
from recal.plan import ConfidenceAt, Rule, Ties

# How many exponentials the rule for ties holds at a time.
_PIECE = 1_000_000
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


class ViewRows(NamedTuple):
    """What the rule for ties reads of a view. Sample chosen[k] stands in row where[k] of `logits`."""

    logits: Floats
    where: Columns
    maxima: Floats
    scales: Vector
    at: Columns  # the column at which the view's confidence is read


def group_indices(original: ScaledLogits, log_confidence: Vector, view: ScaledLogits, rule: Rule) -> GroupIndex:
    """Return the groups, counted from 0, of originals and a view at their present scales."""
    at = view.columns if rule.confidence_at == "own" else original.columns
    everyone = np.arange(len(at))
    rows = ViewRows(view.logits, everyone, view.maxima, view.scales, at)
    view_log_confidence = view.scales * view.drop_at(at) - view.log_partition()
    fell = confidence_fell(everyone, original, log_confidence, rows, view_log_confidence, rule)
    return (2 * (original.columns == view.columns) + fell).astype(np.int8)


def confidence_fell(
    chosen: Columns,
    original: ScaledLogits,
    log_confidence: Vector,
    view: ViewRows,
    view_log_confidence: Vector,
    rule: Rule,
    slack: Vector | float = 0.0,
) -> NDArray[np.bool_]:
    """Say of the samples `chosen` whether the confidence fell or stayed, from both confidences of these samples.

    Logarithms are compared first. Only where they are too close to call does the rule for ties matter, and only
    there is it computed. `slack` is how far `log_confidence` can be off.
    """
    exact = rule.ties == "exact"
    margin = log_confidence - view_log_confidence
    fell: NDArray[np.bool_] = margin > 0.0
    close = np.abs(margin) <= comparing.CLOSE + slack
    if exact:  # a saturated pair differs by nothing in logarithms and by much in log-odds
        close |= log_confidence > -comparing.CLOSE
    ties = np.flatnonzero(close)
    if len(ties):
        who, where = chosen[ties], view.where[ties]
        own = _comparable(exact, original.logits, who, original.maxima, original.scales, original.columns, who)
        fell[ties] = own >= _comparable(exact, view.logits, where, view.maxima, view.scales, view.at, who)
    return fell


def _comparable(
    exact: bool, logits: Floats, where: Columns, maxima: Floats, scales: Vector, columns: Columns, who: Columns
) -> Vector:
    """Return what the rule for ties compares, of the samples `who`, whose logits stand in rows `where`."""
    n_classes = logits.shape[1]
    kernel = comparing.all_log_odds if exact else comparing.all_confidence32
    order = comparing.sum_order(n_classes)
    out = np.empty(len(who))
    step = max(1, _PIECE // n_classes)
    buffers = np.empty((min(step, len(who)), n_classes), dtype=np.float32)
    for begin in range(0, len(who), step):
        part = who[begin : begin + step]
        over_rows(
            kernel, where[begin : begin + step], logits, maxima[part], scales[part], columns[part], order, buffers,
            out[begin : begin + step], size=len(part) * n_classes,
        )  # fmt: skip
    return out
