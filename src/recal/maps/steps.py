"""ReCal's steps: a small immutable value that a fit produces and every runtime replays.

Large numpy arrays are replayed by compiled loops (`recal.engine.grouping`), other arrays by the
same arithmetic written against the array API. Steps only multiply rows by scales, so both carry one
scale per row and view.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from recal.engine.compiled import SMALL
from recal.engine.grouping import ConfidenceAt, Program, replayed_scales
from recal.engine.series import RISE, SCALE_RANGE
from recal.maps.arrays import clip, repeated, softmax, take_along
from recal.maps.base import Array, Map, Views, indices, like, namespace
from recal.maps.guard import answer_views
from recal.maps.scaling import scaled_answers
from recal.schema import Kind, ListOf, Number, Record, Sizes
from recal.transforms import Transform, as_transform
from recal.transforms.base import short_spec
from recal.views import Views as ViewSet

NEUTRAL = (1.0, 1.0, 1.0, 1.0)
_BETA = Number(0.0, ends="()")
_BETA.rule = "a positive finite beta"
Beta = Annotated[float, _BETA]


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

    def probs(self, z: Array, views: Views = ()) -> Array:
        return softmax(z, self._scales(z, views))

    def compiled(self, z: Array, views: Views) -> tuple[Array, Array] | None:
        # One row takes 14 microseconds per step in numpy, and 50 for all steps together in a loop.
        if z.size < SMALL and len(self.program[0]) < 6:
            return None
        start = min(max(self.start, SCALE_RANGE[0]), SCALE_RANGE[1])
        scales = replayed_scales(self.program, start, self.confidence_at, z, views)
        return scaled_answers(z, np.clip(scales * self.finish, *SCALE_RANGE))

    def _scales(self, z: Array, views: Views) -> Array | float:
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


def named_views(transforms: tuple[Transform, ...]) -> str:
    """Return the number of views to compute, and the names of the first three."""
    count = len(transforms)
    named = ", ".join(map(short_spec, transforms[:3])) + (", ..." if count > 3 else "")
    return f"{count} view{'' if count == 1 else 's'} ({named})" if count else "no views"


def calibrated_probs(plan: Any, views: ViewSet) -> np.ndarray:
    """Return the probabilities that a plan or a blend gives, (n_samples, n_classes); a row does not
    depend on the others.

    `Plan()` gives the model's own probabilities.
    """
    return answer_views(plan, views, kept=plan.keeps_answers)[0]
