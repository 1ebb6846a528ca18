"""A plan as ONNX nodes, whatever its shape: from logits to calibrated probabilities."""

from __future__ import annotations

from recal.errors import InputError
from recal.export.blend import blended, gated, needs_views
from recal.export.graph import DOUBLE, Nodes
from recal.export.steps import add_steps
from recal.plan import Plan


def check_classes(plan: Plan, n_classes: int) -> None:
    """Refuse a number of classes that a classifier, or this plan, cannot have."""
    if n_classes < 2:
        raise InputError(f"A classifier has at least two classes, got {n_classes}.")
    if plan.blend is not None and plan.blend.n_classes not in (None, n_classes):
        raise InputError(f"The plan was fitted on {plan.blend.n_classes} classes, got {n_classes}.")


def plan_probs(g: Nodes, logits: str, transformed: str, plan: Plan, n_classes: int, mixed: str = "") -> str:
    """Return probabilities before any guard, (n, K) float64, from logits, (n, K), and those of all views, (m, n, K)."""
    if plan.blend is not None:
        probs = blended(g, logits, transformed, plan, n_classes, mixed)
        if plan.blend.gate is None or not plan.blend.weights:
            return probs
        needed = g.op("Unsqueeze", needs_views(g, logits, plan), g.const([1]))
        return g.op("Where", needed, probs, gated(g, logits, plan, n_classes, mixed))
    stack = g.op("Unsqueeze", logits, g.const([0]))
    if plan.transforms:
        stack = g.op("Concat", stack, transformed, axis=0)
    wide = g.cast(stack, DOUBLE)
    drops = g.op("Sub", wide, g.reduce("ReduceMax", wide, 2))
    columns = g.op("ArgMax", wide, axis=2, keepdims=0)  # (1 + m, n)
    return g.op("Softmax", add_steps(g, drops, columns, plan, n_classes), axis=1)
