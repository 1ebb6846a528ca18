"""A blend of views, and the guard that keeps answers, by torch operations; in float64, as in the reference."""

from __future__ import annotations

from recal.errors import MissingExtraError
from recal.plan import Plan
from recal.runtime.reference import MARGIN

try:
    import torch
except ImportError:
    raise MissingExtraError("torch", "torch", "CalibratedModule") from None

__all__ = ["Tensor", "blended", "keep_answers", "needs_views", "torch", "wide_dtype"]
Tensor = torch.Tensor


def wide_dtype(like: Tensor) -> torch.dtype:
    """Return float64, or what the device has in its place."""
    return torch.float32 if like.device.type == "mps" else torch.float64


def needs_views(logits: Tensor, plan: Plan) -> Tensor:
    """Say of each sample whether its confidence is below the gate, (n,)."""
    gate = None if plan.blend is None else plan.blend.gate
    if gate is None or not plan.transforms:
        return torch.full((logits.shape[0],), bool(plan.transforms), device=logits.device)
    drops = _drops(logits) * plan.start
    return 1.0 / drops.exp().sum(1) < gate


def blended(logits: Tensor, transformed: Tensor, plan: Plan, mixed: Tensor | None = None) -> Tensor:
    """Return probabilities, (n, K), of logits and of the logits of all views, (m, n, K).

    `mixed` is what an ensemble's mixture gives, (n, K), where that is part of the blend.

    Views of samples above the gate are not read: whatever stands there does not reach the answer.
    """
    blend = plan.blend
    assert blend is not None
    own = _soft_log_probs(logits, plan)
    scores = own * blend.own + _offsets(blend.offsets, own)
    for (_, weight), view in zip(blend.weights, transformed):
        scores = scores + weight * _soft_log_probs(view, plan)
    members = None if mixed is None else _softened(mixed, blend.epsilon)
    if members is not None:
        scores = scores + blend.mixture * members
    if blend.gate is not None and blend.weights:
        sure = own * blend.gated_own + _offsets(blend.gated_offsets, own)
        sure = sure if members is None else sure + blend.gated_mixture * members
        scores = torch.where(needs_views(logits, plan)[:, None], scores, sure)
    probs = scores.softmax(1)
    return keep_answers(probs, logits.argmax(1, keepdim=True)) if blend.answers == "kept" else probs


def keep_answers(probs: Tensor, answer: Tensor) -> Tensor:
    """Return the nearest probabilities in which the answer, (n, 1), is likeliest; see `recal.runtime.reference`."""
    own = probs.gather(1, answer)
    rivals = probs.scatter(1, answer, 0.0)
    falling = rivals.sort(1, descending=True).values
    counts = torch.arange(2, probs.shape[1] + 2, dtype=probs.dtype, device=probs.device)
    means = (own + falling.cumsum(1)) / counts
    level = torch.maximum(own, means.amax(1, keepdim=True))
    lowered = torch.minimum(rivals, level * (1.0 - MARGIN))
    return lowered.scatter(1, answer, own + (rivals - lowered).sum(1, keepdim=True))


def _drops(logits: Tensor) -> Tensor:
    wide = logits.to(wide_dtype(logits))
    return wide - wide.amax(1, keepdim=True)


def _soft_log_probs(logits: Tensor, plan: Plan) -> Tensor:
    """log((1 - epsilon) softmax(start z) + epsilon / K)."""
    assert plan.blend is not None
    return _softened((_drops(logits) * plan.start).softmax(1), plan.blend.epsilon)


def _softened(probs: Tensor, epsilon: float) -> Tensor:
    return (probs * (1.0 - epsilon) + epsilon / probs.shape[1]).log()


def _offsets(values: tuple[float, ...], like: Tensor) -> Tensor | float:
    return torch.tensor(values, dtype=like.dtype, device=like.device) if values else 0.0
