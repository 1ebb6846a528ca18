"""ReCal's steps: sort samples into four groups by how the model reacts to a transformed copy, and
rescale each group.

`Rows`, `replay` and `groups` are ReCal's steps in plain numpy: the reference for compiled loops and
for other array libraries (`recal.maps.steps`), which give the same groups. Small arrays are
computed here. So is every comparison of two confidences that is too close for a compiled loop to
decide: `comparable` is the rule for ties, and numpy's order of summation is part of it. All sums
run along a row, so a sample gets the same result, bit for bit, alone and in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Labels, check_logits
from recal.engine.scaled import (
    SCALE_RANGE,
    Columns,
    ScaledLogits,
    ScaledRows,
    Vector,
    rescale_floored,
)
from recal.errors import InputError
from recal.schema import Number, Record

ConfidenceAt = Literal["original", "own"]
Ties = Literal["float32", "exact"]
Matrix = NDArray[np.float64]
# The view of each step, (n_steps,), and its four betas, (n_steps, 4).
Program = tuple[NDArray[np.intp], NDArray[np.float64]]
# How many exponentials the rule for ties computes at a time.
_PIECE = 1_000_000
# Two float32 softmax values whose logarithms differ by more than this are never equal or reversed:
# the errors of all exponentials, of their pairwise sum and of the quotient add up to less than 2e-6
# for up to a million classes.
_CLOSE = 1e-5
# If the log-odds against a prediction are below this, its float32 confidence is 1 in any order of
# summation (2**-24).
_SATURATED = -16.8
# Groups counted from 0, as betas are stored.
GroupIndex = NDArray[np.int8]


class Group(IntEnum):
    """Whether the prediction changed, and whether the confidence in the original's prediction rose."""

    CHANGED_ROSE = 1
    CHANGED_FELL = 2
    KEPT_ROSE = 3
    KEPT_FELL = 4


class Rule(Record):
    """How samples are sorted into groups. A replay needs this to form the same groups as the fit.

    Parameters
    ----------
    confidence_at : {"original", "own"}
        Where a view's confidence is read: at the original's prediction, or at the view's own
        maximum.
    ties : {"float32", "exact"}
        How confidences are compared: as float32 softmax values, where saturated ones are equal, or
        as log-odds.
    floor : float or None
        The smallest probability before a logarithm is taken; None for no floor.
    """

    confidence_at: ConfidenceAt = "original"
    ties: Ties = "float32"
    floor: Annotated[float, Number(0.0, 0.5, ends="()")] | None = None


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
        Compare float32 softmax values, where saturated confidences are equal, or log-odds, where
        nothing saturates. Equal counts as "did not rise".

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
    pair = ScaledLogits(original), ScaledLogits(view)
    return group_indices(*pair, pair[1].drop_at(pair[0].columns), rule).astype(np.int64) + 1


class Rows:
    """Logits minus the largest of their row, with one scale per row; `answers` are the columns of
    the largest logits.

    With a floor, no probability falls below it, and each rescaling writes the rows again.
    """

    def __init__(self, logits: Floats, floor: float | None = None) -> None:
        self.answers = logits.argmax(axis=1)
        self.drops = np.array(logits, dtype=np.float64, order="C")
        self.drops -= self.drops.max(axis=1, keepdims=True)
        self.scales = np.ones(len(logits))
        self.floor = floor
        if floor is not None:
            self.rescale(1.0)

    def rescale(self, factors: Vector | float) -> None:
        if self.floor is None:
            low, high = SCALE_RANGE
            self.scales = np.minimum(
                np.maximum(self.scales * factors, low), high
            )  # np.clip takes three times as long
            return
        self.drops = rescale_floored(self.drops, factors, self.floor)

    def now(self) -> Matrix:
        return self.scales[:, None] * self.drops


def replay(
    program: Program,
    start: float,
    finish: float,
    rule: Rule,
    logits: Floats,
    transformed: Sequence[Floats] | Floats,
) -> Rows:
    """Return the originals' rows after all steps.

    Each step groups samples by original and view, and rescales both.
    """
    original = Rows(logits, rule.floor)
    views = [Rows(view, rule.floor) for view in transformed]
    for rows in (original, *views):
        rows.rescale(start)
    for number, betas in zip(*program):
        factors = betas[groups(original, views[number], rule)]
        original.rescale(factors)
        views[number].rescale(factors)
    original.rescale(finish)
    return original


def groups(original: Rows, view: Rows, rule: Rule) -> NDArray[np.int8]:
    """Return each sample's group, counted from 0: 2 [answer kept] + [the confidence fell or
    stayed].
    """
    at = view.answers if rule.confidence_at == "own" else original.answers
    fell = comparable(original.now(), original.answers, rule) >= comparable(view.now(), at, rule)
    return (2 * (original.answers == view.answers) + fell).astype(np.int8)


def comparable(rows: Matrix, at: Labels, rule: Rule) -> NDArray[np.floating]:
    """Return the values that the rule for ties compares: one per scaled row, whose largest entry is
    0, at a column.

    "float32": a softmax whose exponentials are rounded to float32 and divided, in float32, by their
    float32 sum; saturated confidences are then equal. "exact": the log-odds, in which nothing
    saturates.
    """
    every = np.arange(len(rows))
    if rule.ties == "float32":
        weights = np.exp(rows).astype(np.float32)
        return weights[every, at] / weights.sum(axis=1)
    others = rows.copy()
    others[every, at] = -np.inf
    rival = others.max(axis=1)
    return rows[every, at] - rival - np.log(np.exp(others - rival[:, None]).sum(axis=1))


def group_indices(original: ScaledRows, view: ScaledRows, drops: Vector, rule: Rule) -> GroupIndex:
    """Return the groups, counted from 0, of originals and a view at their current scales.

    Logarithms of confidences are compared first, using the series of the view's rows. Rows whose
    series is too inaccurate are read; the rule for ties is used only if the logarithms are too
    close to call.

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
    if rule.ties == "exact":  # saturated pairs have equal logarithms but different log-odds
        settled = np.zeros(len(own), dtype=bool)
        close = own > -_CLOSE
    else:  # a confidence of 1 cannot be exceeded
        settled = own_odds < _SATURATED
        close = np.zeros(len(own), dtype=bool)
    unclear = np.flatnonzero((np.abs(margin) <= _CLOSE + error) & (error > 0.0) & ~settled)
    if len(unclear):
        odds = view.look(unclear)
        margin[unclear] = (
            own[unclear] - view.scales[unclear] * gaps[unclear] + np.logaddexp(0.0, odds)
        )
    fell = (margin > 0.0) | settled
    ties = np.flatnonzero((close | (np.abs(margin) <= _CLOSE)) & ~settled)
    if len(ties):
        at = view.columns if rule.confidence_at == "own" else original.columns
        fell[ties] = _comparable(original, ties, original.columns, rule) >= _comparable(
            view, ties, at, rule
        )
    return (2 * (original.columns == view.columns) + fell).astype(np.int8)


def _comparable(rows: ScaledRows, chosen: Columns, at: Columns, rule: Rule) -> Vector:
    """Return the values that the rule for ties compares, for some rows."""
    values = []
    for begin in range(0, len(chosen), step := max(1, _PIECE // rows.shape[1])):
        for part, block in rows.blocks(chosen[begin : begin + step]):
            drops = block.astype(np.float64) - rows.maxima[part, None]
            values.append(comparable(rows.scales[part, None] * drops, at[part], rule))
    return np.concatenate(values)
