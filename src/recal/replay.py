"""Replay a plan: the reference that every other runtime must agree with."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.grouping import group_indices
from recal.kernels.replay import replay_rows
from recal.kernels.threads import over_rows
from recal.plan import Plan
from recal.scaled import FlooredLogits, ScaledLogits, Vector
from recal.views import Views

# How many logits of views are brought together at a time: some megabytes, which a processor's cache holds.
_BLOCK = 1_000_000


def replay(plan: Plan, views: Views) -> ScaledLogits:
    """Return the originals' logits with the scales that the plan gives them.

    Each step groups every sample by the present logits of the original and of the step's view, and rescales both.
    A sample's result does not depend on the others.
    """
    _check_held(plan, views)
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
    return replay(plan, views).probs()


def calibrated_scales(plan: Plan, views: Views) -> Vector:
    """Return the factor by which the plan multiplies each sample's logits; only without a floor is there one."""
    if plan.rule.floor is not None:
        raise InputError("With a floor a plan does not scale a sample's logits by one factor.")
    return replay(plan, views).scales


def _check_held(plan: Plan, views: Views) -> None:
    held = set(views.transforms)
    missing = [str(transform) for transform in plan.transforms if transform not in held]
    if missing:
        raise InputError(
            f"The plan needs logits of {', '.join(missing)}, which these views do not hold. "
            "Collect them with pool=plan.transforms."
        )


@lru_cache(maxsize=64)
def _program(plan: Plan) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return, for the steps that change something, the index of each one's view and its betas."""
    index = {transform: number for number, transform in enumerate(plan.transforms)}
    steps = [step for step in plan.steps if not step.is_neutral]
    return np.array([index[step.transform] for step in steps]), np.array([step.betas for step in steps])


def _replay_steps(plan: Plan, views: Views, original: ScaledLogits) -> None:
    """Set the originals' scales, a block of rows at a time."""
    step_views, betas = _program(plan)
    rule, transforms = plan.rule, plan.transforms
    rows = max(1, _BLOCK // (len(transforms) * views.n_classes))
    # In memory a block of a view is a slice; a view on disk is read once and then cut.
    layers = [views.transformed(transform) for transform in transforms] if views.in_memory else None
    for begin in range(0, views.n_samples, rows):
        part = slice(begin, min(begin + rows, views.n_samples))
        if layers is None:
            block = views[part]
            arrays = [block.transformed(transform) for transform in transforms]
        else:
            arrays = [layer[part] for layer in layers]
        dtype = np.result_type(np.float32, *(array.dtype for array in arrays))
        stack = np.empty((len(arrays), part.stop - part.start, views.n_classes), dtype=dtype)
        for target, array in zip(stack, arrays):
            target[:] = array
        over_rows(
            replay_rows, original.logits[part], stack, step_views, betas, plan.start, rule.confidence_at == "own",
            rule.ties == "exact", *ScaledLogits.SCALE_RANGE, original.scales[part], size=stack.size,
        )  # fmt: skip


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
