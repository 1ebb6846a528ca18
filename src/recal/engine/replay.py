"""Replay a plan: the reference that every other runtime must agree with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.engine.blend import blend_arrays, blend_probs, check_held
from recal.engine.grouping import group_indices
from recal.engine.guard import keep_answers
from recal.engine.kernels import grouping as comparing
from recal.engine.kernels import replay as replaying
from recal.engine.kernels.threads import over_rows
from recal.engine.scaled import FlooredLogits, ScaledLogits, Vector
from recal.errors import InputError
from recal.plan import Plan
from recal.views import Views

# How many logits of views are brought together at a time: some megabytes, which a processor's cache holds.
_BLOCK = 1_000_000


def replay(plan: Plan, views: Views) -> ScaledLogits:
    """Return the originals' logits with the scales that the plan gives them.

    Each step groups every sample by the present logits of the original and of the step's view, and rescales both.
    A sample's result does not depend on the others.
    """
    if plan.blend is not None:
        raise InputError("A plan with a blend does not scale logits; `calibrated_probs` replays it.")
    check_held(plan, views)
    if plan.rule.floor is not None:
        return _replay_floored(plan, views, plan.rule.floor)
    original = ScaledLogits(views.logits)
    original.rescale(plan.start)
    if plan.transforms:
        _replay_steps(plan, views, original)
    original.rescale(plan.finish)
    return original


def calibrated_probs(plan: Plan, views: Views) -> NDArray[np.float64]:
    """Return the probabilities that the plan gives, (n_samples, n_classes)."""
    return replay(plan, views).probs() if plan.blend is None else blend_probs(plan, views)


def answers_of(plan: Plan, views: Views) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the probabilities that the plan gives, and its confidence in each answer before the guard lifts it."""
    own = calibrated_probs(plan.unguarded, views)
    if plan.unguarded is plan:
        return own, own.max(axis=1)
    top = views.logits.argmax(axis=1)
    return keep_answers(own, top), own[np.arange(len(own)), top]


def calibrate_arrays(plan: Plan, logits: Floats, transformed: Floats) -> NDArray[np.float64]:
    """Return the probabilities that the plan gives, for a server that answers one by one: nothing is checked.

    Parameters
    ----------
    logits : (n_samples, n_classes), float32 or float64, C-ordered and finite
    transformed : (n_views, n_samples, n_classes), of the same kind, in the order of `plan.transforms`
        Rows of samples that need no view (`plan.needs_views`) are not read.
    """
    if plan.blend is not None:
        return blend_arrays(plan, logits, transformed)
    if plan.rule.floor is not None:
        raise InputError("A plan with a floor is replayed by `calibrated_probs`.")
    scales = _scales(plan, np.concatenate([transformed, logits[None]]))
    original = ScaledLogits(logits, scales * plan.finish)
    return original.probs()


def calibrated_scales(plan: Plan, views: Views) -> Vector:
    """Return the factor by which the plan multiplies each sample's logits; only without a floor is there one."""
    if plan.rule.floor is not None:
        raise InputError("With a floor a plan does not scale a sample's logits by one factor.")
    return replay(plan, views).scales


def _replay_steps(plan: Plan, views: Views, original: ScaledLogits) -> None:
    """Set the originals' scales, a block of rows at a time."""
    transforms = plan.transforms
    # What lies on disk is read in larger pieces: a chunk must not be read twice.
    rows = max(1, _BLOCK // (views.n_classes * (len(transforms) if views.in_memory else 1)))
    for begin in range(0, views.n_samples, rows):
        part = slice(begin, min(begin + rows, views.n_samples))
        block = views if rows >= views.n_samples else views[part]
        arrays = [*(block.transformed(transform) for transform in transforms), original.logits[part]]
        stack = np.empty((len(arrays), part.stop - part.start, views.n_classes), dtype=np.result_type(*arrays))
        for target, array in zip(stack, arrays):
            target[:] = array
        original.scales[part] = _scales(plan, stack)


def _scales(plan: Plan, stack: Floats) -> Vector:
    """Return the scales that the plan gives before `finish`; the stack holds each view, and the originals last."""
    step_views, betas = plan.program
    rule = plan.rule
    scales = np.empty(stack.shape[1])
    over_rows(
        replaying.replay_rows, scales, stack, step_views, betas, plan.start, rule.confidence_at == "own",
        rule.ties == "exact", comparing.sum_order(stack.shape[2]), *ScaledLogits.SCALE_RANGE, size=stack.size,
    )  # fmt: skip
    return scales


def _replay_floored(plan: Plan, views: Views, floor: float) -> ScaledLogits:
    """A floor breaks the proportion between a row's logits: every step writes them anew."""
    original = FlooredLogits(views.logits, floor)
    original.rescale(plan.start)
    tracks: dict[object, FlooredLogits] = {}
    for step in plan.steps:
        if step.is_neutral:
            continue
        view = tracks.get(step.transform)
        if view is None:
            view = tracks[step.transform] = FlooredLogits(views.transformed(step.transform), floor)
            view.rescale(plan.start)
        groups = group_indices(original, -original.log_partition(), view, plan.rule)
        factors = np.asarray(step.betas)[groups]
        original.rescale(factors)
        view.rescale(factors)
    original.rescale(plan.finish)
    return original
