"""Replay a plan that is a blend: the reference that every other runtime must agree with.

Samples that are surer than the plan's gate need no view, and none of theirs is read. All sums run along a row, so that
a sample alone gets, bit for bit, what it gets in a batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.engine.guard import keep_answers
from recal.errors import InputError
from recal.plan import Blend, Plan
from recal.views import Views

# How many logits are worked on at a time: some megabytes, which a processor's cache holds.
_BLOCK = 200_000
_SMALLEST, _LARGEST = float(np.finfo(np.float64).tiny), float(np.nextafter(1.0, 0.0))


def soft_log_probs(logits: Floats, beta: float, epsilon: float) -> NDArray[np.float64]:
    """Return x(z) = log((1 - epsilon) softmax(beta z) + epsilon / K), (n_samples, n_classes) float64.

    Examples
    --------
    >>> from recal.engine.blend import soft_log_probs
    >>> np.exp(soft_log_probs(np.array([[1000.0, 0.0]]), 1.0, 0.01)).round(3).tolist()
    [[0.995, 0.005]]
    """
    x = np.array(logits, dtype=np.float64, order="C")
    x -= x.max(axis=1, keepdims=True)
    x *= beta
    np.exp(x, out=x)
    x *= (1.0 - epsilon) / x.sum(axis=1, keepdims=True)
    x += epsilon / x.shape[1]
    return np.log(x, out=x)


def blend_probs(plan: Plan, views: Views, mixed: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Return the probabilities that a plan with a blend gives, (n_samples, n_classes).

    `mixed` is what an ensemble's mixture gives, where that is part of the blend.
    """
    logits = views.logits
    needed = np.flatnonzero(plan.needs_views(logits))
    if len(needed):
        check_held(plan, views)

    def read(rows: NDArray[np.intp]) -> list[Floats]:
        part = views[rows]
        return [part.transformed(transform) for transform in plan.transforms]

    return _in_blocks(plan, logits, needed, read, mixed)


def blend_arrays(
    plan: Plan, logits: Floats, transformed: Floats, mixed: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the same from plain arrays, `transformed` in the order of `plan.transforms`; nothing is checked."""
    needed = np.flatnonzero(plan.needs_views(logits))
    return _in_blocks(plan, logits, needed, lambda rows: [view[rows] for view in transformed], mixed)


def check_held(plan: Plan, views: Views) -> None:
    """Refuse views that lack what the plan reads."""
    missing = [str(transform) for transform in plan.transforms if not views.holds(transform)]
    if missing:
        raise InputError(
            f"The plan needs logits of {', '.join(missing)}, which these views do not hold. "
            "Collect them with pool=plan.transforms."
        )


def _in_blocks(
    plan: Plan,
    logits: Floats,
    needed: NDArray[np.intp],
    read: Callable[[NDArray[np.intp]], list[Floats]],
    mixed: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """Fill the probabilities, a block of rows at a time: first those that need no view, then the others."""
    blend, n_classes = plan.blend, logits.shape[1]
    assert blend is not None
    if blend.n_classes not in (None, n_classes):
        raise InputError(f"The plan was fitted on {blend.n_classes} classes, got logits of {n_classes}.")
    if blend.needs_mixture and mixed is None:
        raise InputError("This plan is part of an ensemble of calibrators; use the ensemble itself, not its `plan_`.")
    probs = np.empty(logits.shape)
    sure = np.setdiff1d(np.arange(len(logits)), needed, assume_unique=True)
    for rows, with_views in ((sure, False), (needed, bool(blend.weights))):
        size = max(1, _BLOCK // n_classes)
        for begin in range(0, len(rows), size):
            part = rows[begin : begin + size]
            own = np.ascontiguousarray(logits[part])
            scores = _scores(blend, plan.start, own, read(part) if with_views else None)
            if blend.needs_mixture and mixed is not None:
                scores += _of_mixture(blend, mixed[part], gated=bool(blend.weights) and not with_views)
            probs[part] = _to_probs(scores, own, blend)
    return probs


def _scores(blend: Blend, start: float, own: Floats, transformed: list[Floats] | None) -> NDArray[np.float64]:
    gated = transformed is None and bool(blend.weights)
    scores = soft_log_probs(own, start, blend.epsilon)
    scores *= blend.gated_own if gated else blend.own
    offsets = blend.gated_offsets if gated else blend.offsets
    if offsets:
        scores += np.asarray(offsets)
    for (_, weight), view in zip(blend.weights, transformed or ()):
        x = soft_log_probs(view, start, blend.epsilon)
        x *= weight
        scores += x
    return scores


def _of_mixture(blend: Blend, mixed: NDArray[np.float64], gated: bool) -> NDArray[np.float64]:
    x = np.log((1.0 - blend.epsilon) * mixed + blend.epsilon / mixed.shape[1])
    x *= blend.gated_mixture if gated else blend.mixture
    return x


def _to_probs(scores: NDArray[np.float64], own: Floats, blend: Blend) -> NDArray[np.float64]:
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    probs = keep_answers(scores, own.argmax(axis=1)) if blend.answers == "kept" else scores
    return np.clip(probs, _SMALLEST, _LARGEST, out=probs)
