"""The replay of steps as an ONNX graph: all steps at once, until nothing changes.

A step compares two confidences and multiplies two scales by one of two betas, so a sample's whole replay is known from
one outcome per step. A runtime pays for every node, not for every number in it. So the outcomes of all steps are
guessed, all scales follow by running sums of log betas, all comparisons are made at these scales in one go, and
their outcomes are the next guess. A guess that comes out unchanged is what the steps give one after the other: its
first outcome does not depend on any other, and each one only on those before it. Every round makes at least one more
outcome final, so the rounds end; on real networks three or four suffice for hundreds of steps.

Logarithms of betas are rounded to multiples of a power of two, so that their sums are exact in any order: rows that are
equal then have scales that are equal to the last bit, however a library adds them up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.plan import Plan
from recal.runtime.onnx.nodes import BOOL, DOUBLE, FLOAT, INT64, Nodes, tensor
from recal.runtime.onnx.table import Table
from recal.runtime.onnx.ties import comparable, lay_out

Matrix = NDArray[np.float64]
# From how many classes on comparisons are made from a table first.
FEWEST_CLASSES_FOR_TABLE = 64
# Beyond this the reference bounds scales, which a sum of logarithms cannot do.
_LARGEST_LOG_SCALE = 200.0


def is_parallel(plan: Plan) -> bool:
    """Whether all steps can be done at once: there is no floor, and no scale can reach the reference's bounds."""
    _, betas = plan.program
    reach = np.abs(np.log(betas)).max(axis=1).sum() + abs(np.log(plan.start)) + abs(np.log(plan.finish))
    return plan.rule.floor is None and bool(reach < _LARGEST_LOG_SCALE)


def add_steps(g: Nodes, drops: str, columns: str, plan: Plan, n_classes: int) -> str:
    """Return the originals' scales, (1, n), before `finish`.

    Parameters
    ----------
    drops : (1 + m, n, K) float64
        How far each logit lies below the largest of its row, the originals first.
    columns : (1 + m, n) int64
        Where the largest stands.
    """
    views, betas = plan.program
    order = np.argsort(views, kind="stable")  # steps of one view stand together from here on, in their own order
    views, logs = views[order], _exact_logs(betas)[order]
    own, seen = g.row(columns, 0), g.op("Gather", columns, g.const(views + 1), axis=0)
    kept = g.op("Equal", own, seen)  # (steps, n)
    # By group: CHANGED_ROSE, CHANGED_FELL, KEPT_ROSE, KEPT_FELL.
    rose = g.op("Where", kept, g.const(logs[:, 2:3]), g.const(logs[:, 0:1]))
    fell = g.op("Where", kept, g.const(logs[:, 3:4]), g.const(logs[:, 1:2]))
    guess = g.op("Unsqueeze", fell, g.const([0]))  # what a view that lost something mostly does

    started = g.op("Mul", drops, g.const(np.float64(plan.start)))
    compare = _Comparison(g, started, columns, plan, views, n_classes)
    body = Nodes(g)
    number, going, factors = body.name(), body.name(), body.name()
    outcome = compare.fell(body, _log_scales(body, factors, views, order))
    after = body.op("Where", outcome, fell, rose)
    same = body.cast(body.op("Equal", after, factors), FLOAT)
    changed = body.op("Less", body.op("ReduceMin", same, keepdims=0), body.const(np.float32(1)))
    shape = [1, len(views), None]
    steps = body.as_graph(
        "recal_round",
        [tensor(number, INT64, []), tensor(going, BOOL, []), tensor(factors, DOUBLE, shape)],
        [tensor(changed, BOOL, []), tensor(after, DOUBLE, shape)],
    )
    final = g.op("Loop", g.const(np.int64(len(views) + 2)), g.const(np.bool_(True)), guess, body=steps)
    return g.op("Mul", g.op("Exp", g.reduce("ReduceSum", final, 1, keepdims=0)), g.const(np.float64(plan.start)))


def _exact_logs(betas: Matrix) -> Matrix:
    """Return log betas on a grid so coarse that their sums are exact, and no coarser: 1e-15 for betas near 1."""
    logs = np.log(betas)
    largest = max(float(np.abs(logs).max(axis=1).sum()), 1e-3)
    grid = 2.0 ** (np.ceil(np.log2(largest)) - 52)
    return np.asarray(np.round(logs / grid) * grid)


def _log_scales(g: Nodes, factors: str, views: NDArray[np.intp], order: NDArray[np.intp]) -> str:
    """Return the log scales that each step meets, the originals' and then the views': (1, steps, n) to (1, 2 steps, n).

    The originals' are running sums over all steps as they were made, the views' over the steps of the view.
    """
    count = len(views)
    both = g.op("Gather", factors, g.const(np.stack([np.argsort(order), np.arange(count)])), axis=1)  # (1, 2, steps, n)
    running = g.op("CumSum", both, g.const(np.int64(2)), exclusive=1)
    flat = g.op("Reshape", running, g.const([1, 2 * count, -1]))
    met = np.concatenate([order, count + np.arange(count)])
    begun = np.concatenate([np.zeros(count, np.int64), count + np.searchsorted(views, views)])
    return g.op("Sub", g.op("Gather", flat, g.const(met), axis=1), g.op("Gather", flat, g.const(begun), axis=1))


class _Comparison:
    """What all rounds share: the rows that each step compares, laid out once."""

    def __init__(self, g: Nodes, drops: str, columns: str, plan: Plan, views: NDArray[np.intp], n_classes: int) -> None:
        self.plan, self.n_classes, self.steps = plan, n_classes, len(views)
        rows = np.concatenate([np.zeros(len(views), np.int64), views + 1])
        read = rows if plan.rule.confidence_at == "own" else np.zeros_like(rows)
        at = g.op("Gather", columns, g.const(read), axis=0)  # (2 * steps, n)
        self.at = g.op("Unsqueeze", at, g.const([0]))
        self.table: Table | None = None
        if n_classes < FEWEST_CLASSES_FOR_TABLE:
            pairs = g.op("Gather", drops, g.const(rows), axis=0)
            by_class = g.op("Transpose", pairs, perm=[2, 0, 1])  # (K, 2 * steps, n)
            self.pairs, self.at = lay_out(g, by_class, self.at, n_classes)
        else:
            self.table = Table(g, drops, columns, at, rows, plan.program[1], n_classes)
            self.drops, self.rows = drops, rows

    def fell(self, g: Nodes, log_scales: str) -> str:
        """Whether the confidence fell or stayed, (1, steps, n), at these scales, (1, 2 * steps, n)."""
        if self.table is not None:
            return self.table.fell(g, log_scales, self.at, self.plan.rule)
        scaled = g.op("Mul", self.pairs, g.op("Exp", log_scales))
        values = comparable(g, scaled, self.at, self.n_classes, self.plan.rule)
        own, seen = g.split(values, [self.steps, self.steps], axis=1)
        return g.op("GreaterOrEqual", own, seen)
