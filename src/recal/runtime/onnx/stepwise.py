"""The replay one step after the other, as an ONNX loop: for plans with a floor, or with betas beyond all reason.

A floor breaks the proportion between a row's logits, so every step writes them anew and no step can be done before the
last. As in the torch runtime, arithmetic is float64, and the float32 confidences that decide ties are summed in numpy's
order.
"""

from __future__ import annotations

import math

import numpy as np

from recal.plan import Plan
from recal.runtime.onnx.nodes import BOOL, DOUBLE, INT64, Nodes, tensor
from recal.runtime.onnx.ties import comparable, lay_out

_LEAST_SCALE, _LARGEST_SCALE = 1e-100, 1e100


def add_stepwise(g: Nodes, drops: str, columns: str, plan: Plan, n_classes: int) -> str:
    """Return the originals' logits after the plan, (n, K) float64; `drops` and `columns` as in `onnx_replay`."""
    floored = plan.rule.floor is not None
    state = _floored(g, drops, plan) if floored else _scaled(g, drops, plan)
    views, betas = plan.program
    if len(views):
        places = g.const(np.asarray(views + 1, np.int64))
        body = _body(g, plan, n_classes, drops, columns, places, g.const(betas))
        state = g.op("Loop", g.const(np.int64(len(views))), "", state, body=body)
    first = g.row(state, 0)
    if floored:
        return _rescale_floored(g, first, g.const(plan.finish), plan, axis=1)
    scale = _clip(g, g.op("Mul", first, g.const(plan.finish)))
    return g.op("Mul", scale, g.row(drops, 0))


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


def _body(parent: Nodes, plan: Plan, n_classes: int, drops: str, columns: str, views: str, betas: str):  # type: ignore[no-untyped-def]
    """One step: group by the present logits of the original and of the step's view, and rescale both."""
    g = Nodes(parent)
    floored = plan.rule.floor is not None
    iteration, condition, state = g.name(), g.name(), g.name()
    first, view = g.const(np.int64(0)), g.op("Gather", views, iteration, axis=0)

    def at_row(stacked: str, index: str) -> str:
        return g.op("Gather", stacked, index, axis=0)

    def confidence(index: str, column: str) -> str:
        rows = at_row(state, index) if floored else g.op("Mul", at_row(state, index), at_row(drops, index))
        read = g.op("Unsqueeze", column, g.const([0]))
        laid, place = lay_out(g, g.op("Transpose", rows, perm=[1, 0]), read, n_classes)
        return comparable(g, laid, place, n_classes, plan.rule)  # (1, n)

    column, view_column = at_row(columns, first), at_row(columns, view)  # (n,)
    read = view_column if plan.rule.confidence_at == "own" else column
    fell = g.op("GreaterOrEqual", confidence(first, column), confidence(view, read))
    kept = g.op("Equal", column, view_column)
    doubled = g.op("Mul", g.cast(kept, INT64), g.const(np.int64(2)))
    group = g.op("Transpose", g.op("Add", doubled, g.cast(fell, INT64)), perm=[1, 0])  # (n, 1)
    factors = g.op("Gather", at_row(betas, iteration), group, axis=0)
    places = g.const(np.arange(1 + len(plan.transforms)).reshape(-1, 1, 1))
    touched = g.op("Or", g.op("Equal", places, first), g.op("Equal", places, view))
    if floored:
        after = g.op("Where", touched, _rescale_floored(g, state, factors, plan, axis=2), state)
    else:
        after = _clip(g, g.op("Mul", state, g.op("Where", touched, factors, g.const(1.0))))
    goes_on = g.op("Identity", condition)
    shape = [1 + len(plan.transforms), None, n_classes if floored else 1]
    return g.as_graph(
        "recal_step",
        [tensor(iteration, INT64, []), tensor(condition, BOOL, []), tensor(state, DOUBLE, shape)],
        [tensor(goes_on, BOOL, []), tensor(after, DOUBLE, shape)],
    )
