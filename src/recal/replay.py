"""Replay a plan: the reference that every other runtime must agree with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.grouping import group_indices
from recal.plan import Plan
from recal.scaled import FlooredLogits, ScaledLogits, Vector
from recal.views import Views


def replay(plan: Plan, views: Views) -> ScaledLogits:
    """Return the originals' logits with the scales that the plan gives them.

    Each step groups every sample by the present logits of the original and of the step's view, and rescales both.
    """
    held = set(views.transforms)
    missing = [str(transform) for transform in plan.transforms if transform not in held]
    if missing:
        raise InputError(
            f"The plan needs logits of {', '.join(missing)}, which these views do not hold. "
            "Collect them with pool=plan.transforms."
        )
    original = scaled(views.logits, plan)
    tracks: dict[object, ScaledLogits] = {}
    for step in plan.steps:
        if step.is_neutral:
            continue
        view = tracks.get(step.transform)
        if view is None:
            view = tracks[step.transform] = scaled(views.transformed(step.transform), plan)
        groups = group_indices(original, -original.log_partition(), view, plan.rule)
        factors = np.asarray(step.betas)[groups]
        original.rescale(factors)
        view.rescale(factors)
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


def scaled(logits: NDArray, plan: Plan) -> ScaledLogits:
    """Return logits in the state in which a replay, or a fit, begins."""
    state = ScaledLogits(logits) if plan.rule.floor is None else FlooredLogits(logits, plan.rule.floor)
    state.rescale(plan.start)
    return state
