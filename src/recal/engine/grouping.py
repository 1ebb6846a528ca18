"""Which of four groups a sample falls into, by how the model reacts to a transformed copy of it."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_logits
from recal.engine import reference
from recal.engine.compiled import SMALL
from recal.engine.reference import ConfidenceAt, Rule, Ties
from recal.engine.scaled import Columns, ScaledLogits, ScaledRows, Vector
from recal.errors import InputError

# How many exponentials the rule for ties holds at a time.
_PIECE = 1_000_000
# Two float32 softmax values whose logarithms differ by more than this are never equal or reversed: every exp, their
# sum in pairs and the quotient err by less than 2e-6 together for up to a million classes.
_CLOSE = 1e-5
# Below these log-odds against it, a prediction's float32 confidence is 1 in any order of summation (2**-24).
_SATURATED = -16.8
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
    original = check_logits(logits)
    view = check_logits(transformed_logits, "transformed_logits")
    if original.shape != view.shape:
        raise InputError(
            f"`logits` and `transformed_logits` must have one shape, got {original.shape} and {view.shape}."
        )
    if original.size < SMALL:
        return reference.groups(reference.Rows(original), reference.Rows(view), rule).astype(np.int64) + 1
    pair = ScaledLogits(original), ScaledLogits(view)
    return group_indices(*pair, pair[1].drop_at(pair[0].columns), rule).astype(np.int64) + 1


def group_indices(original: ScaledRows, view: ScaledRows, drops: Vector, rule: Rule) -> GroupIndex:
    """Return the groups, counted from 0, of originals and a view at their present scales.

    Logarithms of confidences are compared first, from what is known of the view's rows. Rows of which too little is
    known are read; the rule for ties is asked only where the logarithms are too close to call.

    Parameters
    ----------
    drops : (n_samples,)
        How far the view's logit at the original's prediction lies below the view's largest.
    """
    own_odds = original.log_odds()
    own = -np.logaddexp(0.0, own_odds)
    gaps = np.zeros_like(drops) if rule.confidence_at == "own" else drops
    odds, error = view.bounded_log_odds()
    margin = own - view.scales * gaps + np.logaddexp(0.0, odds)
    if rule.ties == "exact":  # a saturated pair differs by nothing in logarithms and by much in log-odds
        settled = np.zeros(len(own), dtype=bool)
        close = own > -_CLOSE
    else:  # a confidence of 1 is never exceeded
        settled = own_odds < _SATURATED
        close = np.zeros(len(own), dtype=bool)
    unclear = np.flatnonzero((np.abs(margin) <= _CLOSE + error) & (error > 0.0) & ~settled)
    if len(unclear):
        odds = view.look(unclear)
        margin[unclear] = own[unclear] - view.scales[unclear] * gaps[unclear] + np.logaddexp(0.0, odds)
    fell = (margin > 0.0) | settled
    ties = np.flatnonzero((close | (np.abs(margin) <= _CLOSE)) & ~settled)
    if len(ties):
        at = view.columns if rule.confidence_at == "own" else original.columns
        fell[ties] = _comparable(original, ties, original.columns, rule) >= _comparable(view, ties, at, rule)
    return (2 * (original.columns == view.columns) + fell).astype(np.int8)


def _comparable(rows: ScaledRows, chosen: Columns, at: Columns, rule: Rule) -> Vector:
    """Return what the rule for ties compares, of some rows."""
    values = []
    for begin in range(0, len(chosen), step := max(1, _PIECE // rows.shape[1])):
        for part, block in rows.blocks(chosen[begin : begin + step]):
            drops = block.astype(np.float64) - rows.maxima[part, None]
            values.append(reference.comparable(rows.scales[part, None] * drops, at[part], rule))
    return np.concatenate(values)
