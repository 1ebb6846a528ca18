"""The replay of steps as an ONNX loop, one step after the other, as in the reference.

Arithmetic is float64, and the float32 confidences that decide ties are summed in numpy's order. A row is only ever
multiplied by a scale, so rows are laid out once and the loop carries scales; a floor breaks that proportion, and the
loop then carries the rows themselves.
"""

from __future__ import annotations

import math

import numpy as np

from recal.export.graph import BOOL, DOUBLE, INT64, Nodes, onnx, tensor
from recal.export.ties import comparable, lay_out, lay_out_views
from recal.plan import Plan
from recal.runtime.reference import SCALE_RANGE

_LEAST_SCALE, _LARGEST_SCALE = SCALE_RANGE


def add_steps(g: Nodes, drops: str, columns: str, plan: Plan, n_classes: int) -> str:
    """Return the originals' logits after the plan, (n, K) float64.

    Parameters
    ----------
    drops : (1 + m, n, K) float64
        How far each logit lies below the largest of its row, the originals first.
    columns : (1 + m, n) int64
        Where the largest stands.
    """
    if plan.rule.floor is None:
        scale = g.row(_looped(g, _scaled(g, drops, plan), drops, columns, plan, n_classes), 0)  # (n, 1)
        return g.op("Mul", _clip(g, g.op("Mul", scale, g.const(plan.finish))), g.row(drops, 0))
    state = _looped(g, _floored(g, drops, plan), drops, columns, plan, n_classes)
    return _rescale_floored(g, g.row(state, 0), g.const(plan.finish), plan, axis=1)


def _looped(g: Nodes, state: str, drops: str, columns: str, plan: Plan, n_classes: int) -> str:
    views, betas = plan.program
    if not len(views):
        return state
    pairs = g.const(np.stack([np.zeros_like(views), views + 1], axis=1).astype(np.int64))  # (steps, 2)
    # Rows that are only ever scaled are laid out once; what a floor changes must be laid out anew.
    laid = "" if plan.rule.floor is not None else lay_out_views(g, drops, columns, plan, n_classes)
    body = _body(g, plan, n_classes, laid, columns, pairs, g.const(betas))
    return g.op("Loop", g.const(np.int64(len(views))), "", state, body=body)


def _scaled(g: Nodes, drops: str, plan: Plan) -> str:
    """Begin with one scale per sample and view, (1 + m, n, 1)."""
    one = g.part(drops, 0, 1, axis=2)
    begun = np.clip(plan.start, _LEAST_SCALE, _LARGEST_SCALE)
    return g.op("Add", g.op("Mul", one, g.const(0.0)), g.const(np.float64(begun)))


def _floored(g: Nodes, drops: str, plan: Plan) -> str:
    """Begin with dense log-probabilities, (1 + m, n, K)."""
    state = _rescale_floored(g, drops, g.const(1.0), plan, axis=2)
    return _rescale_floored(g, state, g.const(plan.start), plan, axis=2)


def _rescale_floored(g: Nodes, state: str, factors: str, plan: Plan, axis: int) -> str:
    logs = g.op("LogSoftmax", g.op("Mul", state, factors), axis=axis)
    logs = g.op("Max", logs, g.const(math.log(plan.rule.floor or 1.0)))
    return g.op("Sub", logs, g.reduce("ReduceMax", logs, axis))


def _clip(g: Nodes, scales: str) -> str:
    return g.op("Clip", scales, g.const(_LEAST_SCALE), g.const(_LARGEST_SCALE))


def _body(
    parent: Nodes, plan: Plan, n_classes: int, laid: str, columns: str, pairs: str, betas: str
) -> onnx.GraphProto:
    """One step: group by the present logits of the original and of the step's view, and rescale both.

    `laid` holds the rows that scales apply to, and is empty where the state is the rows themselves.
    """
    g = Nodes(parent)
    floored = plan.rule.floor is not None
    iteration, condition, state = g.name(), g.name(), g.name()
    pair = g.op("Gather", pairs, iteration, axis=0)  # the original's place, 0, and the view's
    now, at = (g.op("Gather", stacked, pair, axis=0) for stacked in (state, columns))  # (2, n, ...), (2, n)
    column, seen = g.split(at, [1, 1], axis=0)  # (1, n)
    if floored:
        read = at if plan.rule.confidence_at == "own" else g.op("Concat", column, column, axis=0)
        rows = lay_out(g, now, g.op("Unsqueeze", read, g.const([2])), n_classes, plan.rule, axis=2)
    else:
        rows = g.op("Mul", now, g.op("Gather", laid, pair, axis=0))
    by_class = g.op("Transpose", rows, perm=[2, 0, 1])  # (K, 2, n)
    own, other = g.split(comparable(g, by_class, n_classes, plan.rule), [1, 1], axis=1)
    fell = g.op("Squeeze", g.op("GreaterOrEqual", own, other), g.const([0]))  # (1, n)
    doubled = g.op("Mul", g.cast(g.op("Equal", column, seen), INT64), g.const(np.int64(2)))
    group = g.op("Unsqueeze", g.op("Add", doubled, g.cast(fell, INT64)), g.const([2]))  # (1, n, 1)
    factors = g.op("Gather", g.op("Gather", betas, iteration, axis=0), group, axis=0)
    rescaled = _rescale_floored(g, now, factors, plan, 2) if floored else _clip(g, g.op("Mul", now, factors))
    after = g.op("ScatterND", state, g.op("Unsqueeze", pair, g.const([1])), rescaled)
    goes_on = g.op("Identity", condition)
    shape = [1 + len(plan.transforms), None, n_classes if floored else 1]
    return g.as_graph(
        "recal_step",
        [tensor(iteration, INT64, []), tensor(condition, BOOL, []), tensor(state, DOUBLE, shape)],
        [tensor(goes_on, BOOL, []), tensor(after, DOUBLE, shape)],
    )
