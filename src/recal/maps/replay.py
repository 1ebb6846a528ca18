"""Replay a plan at any size: small work by the reference, the rest by compiled passes that agree with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.engine import recal_steps, reference, rows
from recal.engine.compiled import SMALL, over_rows
from recal.engine.scaled import LOWEST, NUMBERS, REACH, SCALE, TOP, Vector, as_rows
from recal.errors import InputError
from recal.views import Views

if TYPE_CHECKING:  # a plan is a map, and calls this module for large arrays
    from recal.maps.plan import Plan

Matrix = NDArray[np.float64]
Selection = slice | NDArray[np.intp]
# How many logits of one view are worked on at a time: some megabytes, which a processor's cache holds.
_BLOCK = 4_000_000
# And how many rows, of which a replay holds a dozen numbers for each view; no power of 2, whose multiples share places
# in a cache.
_ROWS = 8_000
# A step costs the reference some ten passes over its rows: beyond as many values, times steps, it is not used.
_SMALL_STEPS = 4_000_000
# Up to as many classes numpy takes longer to begin a row than to read it.
_SHORT = 32
# Up to as many a row's exponentials cost less than its
_SHORT_STEPS = 64
# Of how many values a second thread is worth as much as of one row's step.
_STEP_WORK = 32


def calibrated_probs(plan: Plan, views: Views, mixed: Matrix | None = None) -> Matrix:
    """Return the probabilities that the plan gives, (n_samples, n_classes).

    A sample's result does not depend on the others. `mixed` is what an ensemble's mixture gives, where that is part of
    the plan's blend.
    """
    needed = plan.needs_views(views.logits)
    if needed.any():
        check_held(plan, views)
    return _in_blocks(plan, views.logits, lambda rows: _read(plan, views, rows), needed, mixed)


def answers_of(plan: Plan, views: Views) -> tuple[Matrix, Vector]:
    """Return the probabilities that the plan gives, and its confidence in each answer before the guard lifts it."""
    own = calibrated_probs(plan.unguarded, views)
    if plan.unguarded is plan:
        return own, own.max(axis=1)
    top = views.logits.argmax(axis=1)
    return reference.keep_answers(own, top), own[np.arange(len(own)), top]


def calibrate_arrays(plan: Plan, logits: Floats, transformed: Floats, mixed: Matrix | None = None) -> Matrix:
    """Return the same from plain arrays, `transformed` in the order of `plan.transforms`; nothing is checked."""
    return _in_blocks(plan, logits, lambda rows: [view[rows] for view in transformed], plan.needs_views(logits), mixed)


def calibrated_scales(plan: Plan, views: Views) -> Vector:
    """Return the factor by which the plan multiplies each sample's logits; only without a floor is there one."""
    if plan.blend is not None:
        raise InputError("A plan with a blend does not scale logits; `calibrated_probs` replays it.")
    if plan.rule.floor is not None:
        raise InputError("With a floor a plan does not scale a sample's logits by one factor.")
    check_held(plan, views)
    logits = views.logits
    parts = _parts(np.arange(len(logits)), views.n_classes)
    plainly = is_small(plan, logits)
    return np.concatenate([_scales(plan, logits[part], _read(plan, views, part), plainly) for part in parts])


def calibrated_logits(plan: Plan, logits: Floats, transformed: Floats) -> Matrix:
    """Return what a plan without a blend makes of logits, the largest of each row at 0, from plain arrays."""
    if plan.rule.floor is not None:
        return _replayed(plan, logits, transformed).now()
    drops = logits.astype(np.float64)
    drops -= drops.max(axis=1, keepdims=True)
    return _scales(plan, logits, transformed, is_small(plan, logits))[:, None] * drops


def check_held(plan: Plan, views: Views) -> None:
    """Refuse views that lack what the plan reads."""
    missing = [str(transform) for transform in plan.transforms if not views.holds(transform)]
    if missing:
        raise InputError(
            f"The plan needs logits of {', '.join(missing)}, which these views do not hold. "
            "Collect them with pool=plan.transforms."
        )


def _read(plan: Plan, views: Views, rows: Selection) -> list[Floats]:
    part = views[rows]
    return [part.transformed(transform) for transform in plan.transforms]


def _parts(rows: NDArray[np.intp], n_classes: int) -> Iterator[Selection]:
    """Yield rows a block at a time, as slices where there are no gaps: these are not copied."""
    size = min(_ROWS, max(1, _BLOCK // n_classes))
    for begin in range(0, len(rows), size):
        part = rows[begin : begin + size]
        whole = part[-1] - part[0] == len(part) - 1
        yield slice(int(part[0]), int(part[-1]) + 1) if whole else part


def _in_blocks(
    plan: Plan,
    logits: Floats,
    read: Callable[[Selection], Sequence[Floats]],
    needed: NDArray[np.bool_],
    mixed: Matrix | None,
) -> Matrix:
    """Fill the probabilities a block of rows at a time: first those that need no view, then the others."""
    n_classes = logits.shape[1]
    if plan.blend is not None and plan.blend.n_classes not in (None, n_classes):
        raise InputError(f"The plan was fitted on {plan.blend.n_classes} classes, got logits of {n_classes}.")
    if plan.blend is not None and plan.blend.needs_mixture and mixed is None:
        raise InputError("This plan is part of an ensemble of calibrators; use the ensemble itself, not its `plan_`.")
    if not plan.transforms and plan.blend is None and plan.rule.floor is None:
        return scaled_answers(logits, start_scales(plan, len(logits)))[0]
    probs, plainly = np.empty(logits.shape), is_small(plan, logits)
    for with_views in (False, True):
        for part in _parts(np.flatnonzero(needed == with_views), n_classes):
            own = np.ascontiguousarray(logits[part])
            views = read(part) if with_views else []
            probs[part] = _block_probs(plan, own, views, None if mixed is None else mixed[part], plainly)
    return probs


def _block_probs(
    plan: Plan, logits: Floats, transformed: Sequence[Floats], mixed: Matrix | None, plainly: bool
) -> Matrix:
    if plan.blend is not None:
        return _blended(plan, logits, transformed, mixed)
    if plan.rule.floor is not None:
        return _replayed(plan, logits, transformed).probs()
    return scaled_answers(logits, _scales(plan, logits, transformed, plainly))[0]


def _replayed(plan: Plan, logits: Floats, transformed: Sequence[Floats] | Floats) -> reference.Rows:
    return reference.replayed(plan.program, plan.start, plan.finish, plan.rule, logits, transformed)


def _blended(plan: Plan, logits: Floats, transformed: Sequence[Floats], mixed: Matrix | None) -> Matrix:
    assert plan.blend is not None
    own = plan.blended(np.float64(logits), [np.float64(view) for view in transformed], mixed)
    if plan.keeps_answers:
        own = reference.keep_answers(own, logits.argmax(axis=1))
    return np.clip(own, np.finfo(np.float64).tiny, reference.BELOW_ONE, out=own)


def scaled_answers(logits: Floats, scales: Vector) -> tuple[Matrix, Vector]:
    """Return softmax(s z), each row with its scale, and its largest value: it stands where the largest logit does."""
    if logits.size < SMALL:
        state = reference.Rows(logits)
        state.scales = scales
        probs = reference.lift_answers(state.probs(), state.answers)
        return probs, probs[np.arange(len(probs)), state.answers]
    logits, probs = as_rows(logits), np.empty(logits.shape)
    short = logits.shape[1] <= _SHORT
    columns = np.empty(len(logits), np.intp) if short else logits.argmax(axis=1)
    confidences, close = np.empty(len(logits)), np.empty(len(logits), np.bool_)
    over_rows(rows.softmax, logits, columns, short, scales, probs, confidences, close)
    if close.any():
        probs[close] = lifted = reference.lift_answers(probs[close], columns[close])
        confidences[close] = lifted.max(axis=1)
    return probs, confidences


def start_scales(plan: Plan, n_samples: int) -> Vector:
    """Return each row's scale after a plan without steps."""
    low, high = reference.SCALE_RANGE
    return np.full(n_samples, min(max(min(max(plan.start, low), high) * plan.finish, low), high))


def is_small(plan: Plan, logits: Floats) -> bool:
    """Whether the reference replays the plan on as many logits before a compiler has been loaded."""
    return logits.size < SMALL and logits.size * len(plan.steps) < _SMALL_STEPS


def _scales(plan: Plan, logits: Floats, transformed: Sequence[Floats] | Floats, plainly: bool) -> Vector:
    """Return each row's scale after the plan, from plain arrays; `plainly` by the reference."""
    steps, betas = plan.program
    if not len(steps):
        return start_scales(plan, len(logits))
    if plainly:
        return _replayed(plan, logits, transformed).scales
    kind = _ShortRows if logits.shape[1] <= _SHORT_STEPS else _LongRows
    original, views = kind(logits, plan.start), [kind(view, plan.start) for view in transformed]
    own_answer = plan.rule.confidence_at == "own"
    gaps = [view.drop_at(view.columns if own_answer else original.columns) for view in views]
    every, tied = np.arange(len(logits)), np.empty(len(logits), dtype=np.bool_)
    for number, values in zip(steps, betas):
        view = views[number]
        original.step(view, gaps[number], values, plan.rule.ties == "exact", tied)
        if tied.any():
            chosen = every[tied]
            factors = values[reference.groups(original.chosen(chosen), view.chosen(chosen), plan.rule)]
            original.rescale(chosen, factors)
            view.rescale(chosen, factors)
    return np.clip(original.scales * plan.finish, *reference.SCALE_RANGE)


class _Replayed:
    """Rows that `engine.recal_steps` rescales: unchanged logits, the column of each row's largest, and its scale."""

    scales: Vector
    columns: NDArray[np.intp]

    def __init__(self, logits: Floats) -> None:
        self.logits = as_rows(logits)

    def drop_at(self, columns: NDArray[np.intp]) -> Vector:
        """Return how far the logit at each row's column lies below the row's largest."""
        every = np.arange(len(columns))
        return self.logits[every, columns].astype(np.float64) - self.logits[every, self.columns]

    def chosen(self, rows: NDArray[np.intp]) -> reference.Rows:
        """Return some rows as the reference holds them."""
        state = reference.Rows(self.logits[rows])
        state.scales = self.scales[rows]
        return state

    def rescale(self, rows: NDArray[np.intp], factors: Vector) -> None:
        self.scales[rows] = np.clip(self.scales[rows] * factors, *reference.SCALE_RANGE)


class _LongRows(_Replayed):
    """Rows that are seldom read: of each the kernel knows a"""

    def __init__(self, logits: Floats, start: float) -> None:
        super().__init__(logits)
        self.columns = self.logits.argmax(axis=1)
        self.numbers = np.zeros((NUMBERS, len(logits)))
        self.numbers[REACH] = np.inf  # nothing is known
        self.numbers[SCALE] = np.clip(start, *reference.SCALE_RANGE)
        self.numbers[TOP] = self.logits[np.arange(len(logits)), self.columns]
        self.numbers[LOWEST] = self.logits.min(axis=1) - self.numbers[TOP]
        self.scales = self.numbers[SCALE]

    def step(self, view: Self, gaps: Vector, betas: Vector, exact: bool, tied: NDArray[np.bool_]) -> None:
        over_rows(
            recal_steps.step, self.logits, view.logits, self.columns, view.columns, self.numbers, view.numbers, gaps,
            betas, exact, tied, size=_STEP_WORK * len(tied),
        )  # fmt: skip


class _ShortRows(_Replayed):
    """Rows that are read at every step, their classes one after the other."""

    def __init__(self, logits: Floats, start: float) -> None:
        super().__init__(logits)
        self.columns = np.empty(len(logits), np.intp)
        self.drops = np.empty(logits.shape[::-1], self.logits.dtype)
        self.scales = np.full(len(logits), np.clip(start, *reference.SCALE_RANGE))
        over_rows(recal_steps.transpose, self.logits, self.columns, self.drops)

    def step(self, view: Self, gaps: Vector, betas: Vector, exact: bool, tied: NDArray[np.bool_]) -> None:
        over_rows(
            recal_steps.short_step, tied, self.drops, view.drops, self.columns == view.columns, self.scales,
            view.scales, gaps, betas, exact, size=2 * self.drops.size,
        )  # fmt: skip
