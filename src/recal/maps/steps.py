"""ReCal's steps: a small immutable value that a fit produces and every runtime replays.

A step groups samples by the model's reaction to a transformed copy. One rule decides everywhere
whether a confidence rose: the view's must exceed the original's by more than `RISE`. Views that
change nothing, and pairs of saturated confidences, therefore never rose, in any order of summation.

Large numpy arrays are replayed by compiled loops, other arrays by the same arithmetic written
against the array API. Steps only multiply rows by scales, so both carry one scale per row and view.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Vector, check_logits
from recal.engine import SMALL, over_rows, row_blocks
from recal.engine import rows as kernels
from recal.engine.series import RISE, SCALE_RANGE, ScaledLogits, ScaledRows
from recal.errors import InputError
from recal.maps.arrays import clip, repeated, softmax, take_along
from recal.maps.base import Array, Map, ViewLogits, indices, like, namespace
from recal.maps.guard import answer_views
from recal.maps.scaling import scaled_answers
from recal.schema import Kind, ListOf, Number, Record, Sizes, check, kind_of
from recal.transforms import Transform, as_transform
from recal.transforms.base import short_spec
from recal.views import Views

ConfidenceAt = Literal["original", "own"]
# The view of each step, (n_steps,), and its four betas, (n_steps, 4).
Program = tuple[NDArray[np.intp], NDArray[np.float64]]
# Groups counted from 0, as betas are stored.
GroupIndex = NDArray[np.int8]
NEUTRAL = (1.0, 1.0, 1.0, 1.0)
_BETA = Number(0.0, ends="()")
_BETA.rule = "a positive finite beta"
Beta = Annotated[float, _BETA]


class Group(IntEnum):
    """Whether the prediction changed, and whether the confidence in the original's rose."""

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
    check(confidence_at, kind_of(ConfidenceAt), "confidence_at")
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


class Betas(Kind):
    """One beta for each group."""

    rule = "four positive finite betas, one per group"

    def read(self, value: Any, sizes: Sizes) -> tuple[float, ...]:
        betas: tuple[float, ...] = ListOf(_BETA, keep=tuple).read(value, sizes)
        if len(betas) != 4:
            raise ValueError
        return betas


class OneTransform(Kind):
    """A transformation, or its spec."""

    rule = "a transformation"

    def read(self, value: Any, sizes: Sizes) -> Transform:
        return as_transform(value)


class Step(Record):
    """One transformation and one beta for each group, by `Group`: CHANGED_ROSE, CHANGED_FELL,
    KEPT_ROSE, KEPT_FELL.
    """

    transform: Annotated[Transform, OneTransform()]
    betas: Annotated[tuple[float, float, float, float], Betas()]

    @property
    def is_neutral(self) -> bool:
        """Whether the step changes nothing, so that a runtime needs no forward pass for it."""
        return self.betas == NEUTRAL


class Plan(Map):
    """Scale all logits by `start`, take the steps, and scale the original's logits by `finish`.

    Each step sorts the samples into four groups by how the original and one view compare
    (`recal.group`), and multiplies the logits of both by the beta of the sample's group. This is
    the map of ReCal. Without steps it is temperature scaling. The map of stacking is a `Blend`.

    Parameters
    ----------
    steps : tuple of Step
    start, finish : float > 0
    confidence_at : {"original", "own"}
        Where a view's confidence is read: at the original's prediction, or at the view's own.

    Examples
    --------
    >>> from recal import Plan, Step
    >>> plan = Plan((Step("zoom:0.5", (1.0, 0.9, 0.8, 1.0)), Step("zoom:0.7", (1.0,) * 4)))
    >>> [str(t) for t in plan.transforms]
    ['zoom:0.5']
    """

    steps: tuple[Step, ...] = ()
    start: Beta = 1.0
    finish: Beta = 1.0
    confidence_at: ConfidenceAt = "original"

    keeps_order: ClassVar[bool] = True
    in_parts: ClassVar[bool] = False

    @cached_property
    def transforms(self) -> tuple[Transform, ...]:
        """The distinct transformations that a runtime must compute, in the order of first use."""
        return tuple(dict.fromkeys(step.transform for step in self.steps if not step.is_neutral))

    @cached_property
    def program(self) -> Program:
        """The steps that change something, as arrays: each one's index in `transforms`, and its
        four betas.
        """
        index = {transform: number for number, transform in enumerate(self.transforms)}
        steps = [step for step in self.steps if not step.is_neutral]
        views = np.array([index[step.transform] for step in steps], dtype=np.intp)
        return views, np.array([step.betas for step in steps], dtype=np.float64).reshape(-1, 4)

    @property
    def plan(self) -> Plan:
        return self

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        return softmax(z, self._scales(z, views))

    def compiled(self, z: Array, views: ViewLogits) -> tuple[Array, Array] | None:
        if z.size < SMALL and not self.transforms:
            return None
        start = min(max(self.start, SCALE_RANGE[0]), SCALE_RANGE[1])
        scales = replayed_scales(self.program, start, self.confidence_at, z, views)
        return scaled_answers(z, np.clip(scales * self.finish, *SCALE_RANGE))

    def _scales(self, z: Array, views: ViewLogits) -> Array | float:
        """Return each sample's scale after all steps, (n_samples, 1), or one scale for all."""
        start = min(max(self.start, SCALE_RANGE[0]), SCALE_RANGE[1])
        numbers, betas = self.program
        if not len(numbers):
            return float(np.clip(start * self.finish, *SCALE_RANGE))
        xp = namespace(z)
        stack = xp.stack([z, *views], axis=0)
        columns = xp.argmax(stack, axis=2)
        drops = stack - xp.max(stack, axis=2, keepdims=True)
        kept = columns == columns[:1, :]
        read = columns
        if self.confidence_at == "original":
            read = xp.zeros_like(columns) + columns[:1, :]
        gaps = take_along(drops, xp.expand_dims(read, axis=2), axis=2)[:, :, 0]
        pairs = indices(z, np.stack([np.zeros_like(numbers), numbers + 1], axis=1))
        places = indices(z, np.arange(1 + len(views)).reshape(-1, 1))
        table = like(z, betas.reshape(-1))

        def step(number: Array, scales: Array) -> Array:
            pair = xp.reshape(xp.take(pairs, number, axis=0), (2,))
            now = xp.take(scales, pair, axis=0)
            weights = xp.exp(xp.expand_dims(now, axis=2) * xp.take(drops, pair, axis=0))
            confidences = xp.exp(now * xp.take(gaps, pair, axis=0)) / xp.sum(weights, axis=2)
            fell = confidences[1:, :] - confidences[:1, :] <= RISE
            same = xp.take(kept, pair[1:], axis=0)
            group = 4 * number + 2 * xp.astype(same, xp.int64) + xp.astype(fell, xp.int64)
            factors = xp.take(table, xp.reshape(group, (-1,)), axis=0)
            touched = (places == 0) | (places == pair[1:])
            return xp.where(touched, clip(scales * factors, *SCALE_RANGE), scales)

        scales = repeated(z, len(numbers), step, xp.zeros_like(gaps) + start)
        return xp.expand_dims(clip(scales[0, :] * self.finish, *SCALE_RANGE), axis=1)

    def __str__(self) -> str:
        then = "no steps"
        if self.steps:
            count = f"{len(self.steps)} step{'' if len(self.steps) == 1 else 's'}"
            then = f"then {count} with {named_views(self.transforms)}"
        lines = [f"Plan: temperature {1 / self.start:.4g}, {then}"]
        for number, step in enumerate(self.steps, 1):
            betas = " ".join(f"{beta:.4f}" for beta in step.betas)
            lines.append(f"  {number:>3}  {step.transform!s:<16} {betas}")
        if self.finish != 1.0:
            lines.append(f"  finish temperature {1 / self.finish:.4g}")
        return "\n".join(lines)


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
    for part in row_blocks(len(logits), logits.shape[1] * (1 + len(views))):
        stack = np.stack([logits[part], *(view[part] for view in views)], dtype=dtype)
        work = stack, confidence_at == "own", numbers, betas
        over_rows(kernels.replay, scales[part], *work, size=stack.size)
    return scales


def named_views(transforms: tuple[Transform, ...]) -> str:
    """Return the number of views to compute, and the names of the first three."""
    count = len(transforms)
    named = ", ".join(map(short_spec, transforms[:3])) + (", ..." if count > 3 else "")
    return f"{count} view{'' if count == 1 else 's'} ({named})" if count else "no views"


def calibrated_probs(plan: Any, views: Views) -> np.ndarray:
    """Return the probabilities that a plan or a blend gives, (n_samples, n_classes); a row does not
    depend on the others.

    `Plan()` gives the model's own probabilities.
    """
    return answer_views(plan, views, kept=plan.keeps_answers)[0]
