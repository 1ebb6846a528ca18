"""A blend of views, and the guard that keeps answers, as ONNX nodes; all in float64, as in the reference."""

from __future__ import annotations

import numpy as np

from recal.errors import InputError
from recal.export.graph import DOUBLE, Nodes
from recal.plan import Plan
from recal.runtime.reference import MARGIN


def needs_views(g: Nodes, logits: str, plan: Plan) -> str:
    """Return whether each sample's views must be computed, (n,): its confidence is below the gate."""
    assert plan.blend is not None
    assert plan.blend.gate is not None
    weights = g.op("Exp", g.op("Mul", _drops(g, logits), g.const(plan.start)))
    confidence = g.op("Div", g.const(1.0), g.reduce("ReduceSum", weights, 1, keepdims=0))
    return g.op("Less", confidence, g.const(plan.blend.gate))


def blended(g: Nodes, logits: str, transformed: str, plan: Plan, n_classes: int, mixed: str = "") -> str:
    """Return probabilities before any guard, (n, K) float64, from logits, (n, K), and those of all views, (m, n, K).

    `mixed` is what an ensemble's mixture gives, (n, K) float64, where that is part of the blend.
    """
    blend = plan.blend
    assert blend is not None
    scores = _weighed(g, _soft_log_probs(g, logits, plan, n_classes), blend.own, blend.offsets)
    if blend.weights:
        weights = np.array([weight for _, weight in blend.weights]).reshape(-1, 1, 1)
        views = g.op("Mul", _soft_log_probs(g, transformed, plan, n_classes), g.const(weights))
        scores = g.op("Add", scores, g.reduce("ReduceSum", views, 0, keepdims=0))
    return g.op("Softmax", _with_mixture(g, scores, mixed, blend.mixture, plan, n_classes), axis=1)


def gated(g: Nodes, logits: str, plan: Plan, n_classes: int, mixed: str = "") -> str:
    """Return the probabilities, before any guard, of samples more confident than the gate."""
    blend = plan.blend
    assert blend is not None
    scores = _weighed(g, _soft_log_probs(g, logits, plan, n_classes), blend.gated_own, blend.gated_offsets)
    return g.op("Softmax", _with_mixture(g, scores, mixed, blend.gated_mixture, plan, n_classes), axis=1)


def keep_answers(g: Nodes, probs: str, logits: str, n_classes: int) -> str:
    """Return the nearest probabilities, (n, K) float64, in which the model's own answer is the likeliest class.

    `recal.runtime.reference` says why: rivals above the answer, and the answer, share what they have.
    """
    answer = g.op("ArgMax", logits, axis=1, keepdims=1)
    here = g.op("Equal", g.const(np.arange(n_classes).reshape(1, -1)), answer)
    own = g.op("GatherElements", probs, answer, axis=1)
    rivals = g.op("Where", here, g.const(0.0), probs)
    falling = g.ops("TopK", rivals, g.const([n_classes]), outputs=2, axis=1)[0]
    sums = g.op("Add", own, g.op("CumSum", falling, g.const(np.int64(1))))
    means = g.op("Div", sums, g.const(np.arange(2.0, n_classes + 2).reshape(1, -1)))
    level = g.op("Max", own, g.reduce("ReduceMax", means, 1))
    lowered = g.op("Min", rivals, g.op("Mul", level, g.const(1.0 - MARGIN)))
    lost = g.reduce("ReduceSum", g.op("Sub", rivals, lowered), 1)
    return g.op("Where", here, g.op("Add", own, lost), lowered)


def _with_mixture(g: Nodes, scores: str, mixed: str, weight: float, plan: Plan, n_classes: int) -> str:
    """Add the mixture's part to the scores, where it has any."""
    assert plan.blend is not None
    if not plan.blend.needs_mixture:
        return scores
    if not mixed:
        raise InputError("This plan is part of an ensemble of calibrators; export the ensemble itself.")
    return g.op("Add", scores, g.op("Mul", _softened(g, mixed, plan.blend.epsilon, n_classes), g.const(weight)))


def _weighed(g: Nodes, x: str, weight: float, offsets: tuple[float, ...]) -> str:
    scores = g.op("Mul", x, g.const(weight))
    return g.op("Add", scores, g.const(np.array(offsets).reshape(1, -1))) if offsets else scores


def _drops(g: Nodes, logits: str) -> str:
    """How far logits lie below the largest of their row, along the last axis, in float64."""
    wide = g.cast(logits, DOUBLE)
    return g.op("Sub", wide, g.reduce("ReduceMax", wide, -1))


def _soft_log_probs(g: Nodes, logits: str, plan: Plan, n_classes: int) -> str:
    """log((1 - epsilon) softmax(start z) + epsilon / K)."""
    assert plan.blend is not None
    epsilon = plan.blend.epsilon
    probs = g.op("Softmax", g.op("Mul", _drops(g, logits), g.const(plan.start)), axis=-1)
    return _softened(g, probs, epsilon, n_classes)


def _softened(g: Nodes, probs: str, epsilon: float, n_classes: int) -> str:
    mixed = g.op("Add", g.op("Mul", probs, g.const(1.0 - epsilon)), g.const(epsilon / n_classes))
    return g.op("Log", mixed)
