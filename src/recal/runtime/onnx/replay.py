"""The replay of steps as an ONNX graph: all steps at once, until nothing changes.

A step compares two confidences and multiplies two scales by one of two betas, so a sample's whole replay is known from
one outcome per step. A runtime pays for every node, not for every number in it. So the outcomes of all steps are
guessed, all scales follow by running sums of log betas, all comparisons are made at these scales in one go, and
their outcomes are the next guess. A guess that comes out unchanged is what the steps give one after the other: its
first outcome does not depend on any other, and each one only on those before it. Every round makes at least one more
outcome final, so the rounds end; on real networks three or four suffice for hundreds of steps.

Logarithms of betas are rounded to multiples of a power of two, so that their sums are exact in any order: rows that are
equal then have scales that are equal to the last bit, however a library adds them up.

Float32 exponentials cost a tenth of those that decide ties, and are almost always right. So with few classes the first
rounds are made in float32, and the rest, mostly one, by the rule.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.plan import Plan
from recal.runtime.onnx.nodes import BOOL, DOUBLE, FLOAT, INT64, Nodes, tensor
from recal.runtime.onnx.stepwise import stepwise_scale
from recal.runtime.onnx.table import MOST_SPENT, REACH, Table
from recal.runtime.onnx.ties import comparable, lay_out_views, nearly_comparable

Matrix = NDArray[np.float64]
Places = NDArray[np.int64]
# From how many classes on comparisons are made from a table first.
FEWEST_CLASSES_FOR_TABLE = 64
# Rounds after which a plan of many classes is given up as chaotic, and replayed one step after the other.
_MOST_ROUNDS = 40
# How much farther than a table reaches scales may go, if all betas pulled one way, for rounds to be tried.
_FAR_BEYOND = 6.0
# Rounds in float32 before those by the rule, where the sums of so many steps are still a small matrix.
_QUICK_ROUNDS, _MOST_QUICK_STEPS = 3, 512
# Beyond this the reference bounds scales, which a sum of logarithms cannot do.
_LARGEST_LOG_SCALE = 200.0


def is_parallel(plan: Plan, n_classes: int) -> bool:
    """Whether all steps can be done at once: there is no floor, and no scale can reach the reference's bounds.

    With many classes, scales should also stay near what a table can hold, or all would be compared in full.
    """
    _, betas = plan.program
    reach = np.abs(np.log(betas)).max(axis=1).sum() + abs(np.log(plan.start)) + abs(np.log(plan.finish))
    most = _LARGEST_LOG_SCALE if n_classes < FEWEST_CLASSES_FOR_TABLE else _FAR_BEYOND * REACH
    return plan.rule.floor is None and bool(reach < most)


def add_steps(g: Nodes, drops: str, columns: str, plan: Plan, n_classes: int) -> str:
    """Return the originals' scales, (1, n), after the steps.

    Parameters
    ----------
    drops : (1 + m, n, K) float64
        How far each logit lies below the largest of its row, the originals first.
    columns : (1 + m, n) int64
        Where the largest stands.
    """
    started = drops if plan.start == 1.0 else g.op("Mul", drops, g.const(np.float64(plan.start)))
    steps = _Steps(g, columns, plan)
    if n_classes < FEWEST_CLASSES_FOR_TABLE:
        compare = _Dense(g, started, columns, plan, steps, n_classes)
        return _scale(g, plan, _rounds(g, steps, compare, _quick_rounds(g, steps, compare), len(steps.views) + 2)[0])
    tabled = _Tabled(g, started, columns, plan, steps, n_classes)
    final, unsettled = _rounds(g, steps, tabled, steps.fell, _MOST_ROUNDS)
    slow, quick = Nodes(g), Nodes(g)
    by_steps, by_rounds = stepwise_scale(slow, drops, columns, plan, n_classes), _scale(quick, plan, final)
    return g.choose(unsettled, slow, quick, [(by_steps, by_rounds, DOUBLE)])[0]


def _scale(g: Nodes, plan: Plan, final: str) -> str:
    scale = g.op("Exp", g.reduce("ReduceSum", final, 1, keepdims=0))
    return scale if plan.start == 1.0 else g.op("Mul", scale, g.const(np.float64(plan.start)))


class _Steps:
    """The steps of a plan, view by view, in the order of time within a view; all arrays are (1, steps, n).

    `fell` and `rose` are the log betas of either outcome: of what a view that lost something mostly does, and of what
    it seldom does.
    """

    def __init__(self, g: Nodes, columns: str, plan: Plan) -> None:
        views, betas = plan.program
        self.order = np.argsort(views, kind="stable")
        self.views = views[self.order]
        logs = _exact_logs(betas)[self.order]
        seen = g.op("Gather", columns, g.const((self.views + 1)[None]), axis=0)
        kept = g.op("Equal", g.op("Gather", columns, g.const([[0]]), axis=0), seen)
        # By group: CHANGED_ROSE, CHANGED_FELL, KEPT_ROSE, KEPT_FELL.
        self.rose = g.op("Where", kept, g.const(logs[:, 2:3]), g.const(logs[:, 0:1]))
        self.fell = g.op("Where", kept, g.const(logs[:, 3:4]), g.const(logs[:, 1:2]))

    @property
    def rows(self) -> Places:
        """Which rows each step compares: the originals' for all of them, and then the views'."""
        return np.concatenate([np.zeros(len(self.views), np.int64), self.views + 1])

    def log_scales(self, g: Nodes, factors: str) -> str:
        """Return the log scales that all steps meet, the originals' and then the views', (1, 2 * steps, n).

        The originals' are running sums over all steps as they were made, the views' over the steps of the view.
        """
        axis = g.const(np.int64(1))
        in_time = g.op("Gather", factors, g.const(np.argsort(self.order)), axis=1)
        own = g.op("Gather", g.op("CumSum", in_time, axis, exclusive=1), g.const(self.order), axis=1)
        running = g.op("CumSum", factors, axis, exclusive=1)
        begun = g.op("Gather", running, g.const(np.searchsorted(self.views, self.views)), axis=1)
        return g.op("Concat", own, g.op("Sub", running, begun), axis=1)

    def before(self) -> NDArray[np.bool_]:
        """Say of each log scale which steps it is the sum of, (2 * steps, steps)."""
        earlier = self.order[:, None] > self.order
        return np.concatenate([earlier, earlier & (self.views[:, None] == self.views)])


def _quick_rounds(g: Nodes, steps: _Steps, compare: _Dense) -> str:
    """Return the log betas after some rounds in float32; without them where they are not worth it."""
    if compare.laid32 is None:
        return steps.fell
    fell, rose = g.cast(steps.fell, FLOAT), g.cast(steps.rose, FLOAT)
    sums, factors, outcome = g.cast(g.const(steps.before()), FLOAT), fell, ""  # few bytes in the file, cast when loaded
    for number in range(_QUICK_ROUNDS):
        factors = fell if number == 0 else g.op("Where", outcome, fell, rose)
        outcome = compare.nearly_fell(g, g.op("MatMul", sums, factors))
    return g.op("Where", outcome, steps.fell, steps.rose)


def _rounds(g: Nodes, steps: _Steps, compare: _Dense | _Tabled, guess: str, most: int) -> tuple[str, str]:
    """Return the log betas that the rounds end with, and whether they ended unsettled: for tables alone."""
    body = Nodes(g)
    number, going, factors, before, spent = (body.name() for _ in range(5))
    outcome, now = compare.fell(body, steps.log_scales(body, factors), spent)
    after = body.op("Where", outcome, steps.fell, steps.rose)
    changed = body.cast(body.op("ReduceSumSquare", body.op("Sub", after, factors), keepdims=0), BOOL)
    inputs = [tensor(number, INT64, []), tensor(going, BOOL, []), tensor(factors, DOUBLE, [1, len(steps.views), None])]
    outputs = [tensor(changed, BOOL, []), tensor(after, DOUBLE, [1, len(steps.views), None])]
    rounds, true = g.const(np.int64(most)), g.const(np.bool_(True))
    if now is None:
        return g.op("Loop", rounds, true, guess, body=body.as_graph("recal_round", inputs, outputs)), ""
    lost = body.op("Greater", now, body.const(np.float32(MOST_SPENT)))
    outputs[0] = tensor(body.op("And", changed, body.op("Not", lost)), BOOL, [])
    inputs += [tensor(before, BOOL, []), tensor(spent, FLOAT, [])]
    outputs += [tensor(body.op("Or", changed, lost), BOOL, []), tensor(now, FLOAT, [])]
    begun = (guess, true, g.const(np.float32(0)))
    loop = body.as_graph("recal_round", inputs, outputs)
    final, unsettled, _ = g.ops("Loop", rounds, true, *begun, outputs=3, body=loop)
    return final, unsettled


def _exact_logs(betas: Matrix) -> Matrix:
    """Return log betas on a grid so coarse that their sums are exact, and no coarser: 1e-15 for betas near 1."""
    logs = np.log(betas)
    largest = max(float(np.abs(logs).max(axis=1).sum()), 1e-3)
    grid = 2.0 ** (np.ceil(np.log2(largest)) - 52)
    return np.asarray(np.round(logs / grid) * grid)


class _Dense:
    """Compares all confidences in full, as they are laid out once for all rounds."""

    def __init__(self, g: Nodes, drops: str, columns: str, plan: Plan, steps: _Steps, n_classes: int) -> None:
        self.plan, self.n_classes, self.half = plan, n_classes, [len(steps.views)] * 2
        # Rows are picked as a whole before the classes come first: single numbers are slow to pick.
        laid = lay_out_views(g, drops, columns, plan, n_classes)
        picked = g.op("Gather", laid, g.const(steps.rows), axis=0)
        self.laid = g.op("Transpose", picked, perm=[2, 0, 1])  # (K + 1, 2 * steps, n)
        quick = plan.rule.ties != "exact" and len(steps.views) <= _MOST_QUICK_STEPS
        self.laid32 = g.cast(self.laid, FLOAT) if quick else None

    def fell(self, g: Nodes, log_scales: str, spent: str) -> tuple[str, None]:
        """Whether the confidence fell or stayed, (1, steps, n), at these log scales, (1, 2 * steps, n)."""
        scaled = g.op("Mul", self.laid, g.op("Exp", log_scales))
        values = comparable(g, scaled, self.n_classes, self.plan.rule)
        return g.op("GreaterOrEqual", *g.split(values, self.half, axis=1)), None

    def nearly_fell(self, g: Nodes, log_scales: str) -> str:
        """The same in float32."""
        assert self.laid32 is not None
        values = nearly_comparable(g, g.op("Mul", self.laid32, g.op("Exp", log_scales)), self.n_classes)
        return g.op("GreaterOrEqual", *g.split(values, self.half, axis=1))


class _Tabled:
    """Compares from a table, and in full only what is too close to call."""

    def __init__(self, g: Nodes, drops: str, columns: str, plan: Plan, steps: _Steps, n_classes: int) -> None:
        self.rule, rows = plan.rule, steps.rows
        read = rows if plan.rule.confidence_at == "own" else np.zeros_like(rows)
        at = g.op("Gather", columns, g.const(read), axis=0)  # (2 * steps, n)
        self.at = g.op("Unsqueeze", at, g.const([0]))
        self.table = Table(g, drops, columns, at, rows, plan.program[1], n_classes)

    def fell(self, g: Nodes, log_scales: str, spent: str) -> tuple[str, str]:
        """As above, and how many comparisons were made in full so far."""
        return self.table.fell(g, log_scales, self.at, self.rule, spent)
