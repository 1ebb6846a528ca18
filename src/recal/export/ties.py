"""The rule for ties as ONNX nodes: which of two confidences is larger, as the reference decides it to the bit.

The last bit of a float32 sum depends on its order, so sums follow numpy's (`recal.runtime.summation`). A runtime pays
for every node: classes are laid out once so that each node adds as many of them as the order allows, and the logit that
is read stands behind them as one row more.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from recal.export.graph import FLOAT, Nodes
from recal.plan import Plan, Rule
from recal.runtime.summation import BLOCK, LANES, half_of, lanes

# Eight lanes are added in pairs, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). In this order each level adds two halves.
_PAIRED = [0, 4, 2, 6, 1, 5, 3, 7]


@lru_cache(maxsize=32)
def _layout(n_classes: int) -> NDArray[np.int64]:
    """Return where classes stand: the rows of eight lanes of all blocks, lane by lane, then what is left over.

    `n_classes` itself stands for a gap that adds nothing.
    """
    if n_classes < LANES:
        return np.arange(n_classes)
    places = lanes(n_classes)  # (blocks, rows, lanes)
    rows = places[:, :, _PAIRED].transpose(1, 2, 0)  # (rows, lanes, blocks)
    return np.concatenate([rows.reshape(-1), np.arange(n_classes - n_classes % LANES, n_classes)])


def lay_out(g: Nodes, rows: str, at: str, n_classes: int, rule: Rule, axis: int = 0) -> str:
    """Return rows, (K, ...), as `comparable` takes them, the values at the classes to read, (1, ...), behind them."""
    read = g.op("GatherElements", rows, at, axis=axis)
    if rule.ties == "exact":
        others = g.op("ScatterElements", rows, at, g.op("Add", read, g.const(-np.inf)), axis=axis)
        return g.op("Concat", others, read, axis=axis)
    layout = _layout(n_classes)
    if (layout == n_classes).any():
        gap = g.op("Add", g.op("Mul", g.part(rows, 0, 1, axis=axis), g.const(0.0)), g.const(-np.inf))
        rows = g.op("Concat", rows, gap, axis=axis)
    if not np.array_equal(layout, np.arange(n_classes)):
        rows = g.op("Gather", rows, g.const(layout), axis=axis)
    return g.op("Concat", rows, read, axis=axis)


def lay_out_views(g: Nodes, drops: str, columns: str, plan: Plan, n_classes: int) -> str:
    """Return the rows of the originals and of all views, (1 + m, n, K), laid out along their last axis."""
    place = np.arange(1 + len(plan.transforms))
    at = g.op("Gather", columns, g.const(place if plan.rule.confidence_at == "own" else 0 * place), axis=0)
    return lay_out(g, drops, g.op("Unsqueeze", at, g.const([2])), n_classes, plan.rule, axis=2)


def comparable(g: Nodes, laid: str, n_classes: int, rule: Rule) -> str:
    """Return what the rule compares, (1, ...), of scaled float64 rows, laid out, whose largest value is 0."""
    if rule.ties == "exact":
        return _log_odds(g, laid, n_classes)
    read, total = _sum32(g, g.cast(g.op("Exp", laid), FLOAT), n_classes)
    return g.op("Div", read, total)


def _log_odds(g: Nodes, laid: str, n_classes: int) -> str:
    """log(p / (1 - p)) without ever forming p, so that nothing saturates."""
    others, read = g.split(laid, [n_classes, 1], axis=0)
    rival = g.reduce("ReduceMax", others, 0)
    total = g.reduce("ReduceSum", g.op("Exp", g.op("Sub", others, rival)), 0)
    return g.op("Sub", read, g.op("Add", rival, g.op("Log", total)))


def _sum32(g: Nodes, values: str, count: int) -> tuple[str, str]:
    """Return what is read, and the sum of float32 values in numpy's order of pairs, (1, ...) each."""
    if count < LANES:
        *parts, read = g.split(values, [1] * (count + 1), axis=0)
        return read, _in_turn(g, parts)
    blocks, rows, _ = lanes(count).shape
    half, rest = LANES // 2 * blocks, count % LANES
    if rows == 1:  # the first pairs are added at once
        first, second, *parts, read = g.split(values, [half, half, *[1] * rest, 1], axis=0)
        total = g.op("Add", first, second)
    else:
        *parts, read = g.split(values, [2 * half] * rows + [1] * (rest + 1), axis=0)
        total = g.op("Add", *g.split(_in_turn(g, parts[:rows]), [half, half], axis=0))
        parts = parts[rows:]
    for size in (2, 1):
        total = g.op("Add", *g.split(total, [size * blocks] * 2, axis=0))
    sums = g.split(total, [1] * blocks, axis=0)
    sums[-1] = _in_turn(g, [sums[-1], *parts])
    return read, _in_pairs(g, sums, count)


def _in_turn(g: Nodes, parts: list[str]) -> str:
    """Add one after the other: what a Sum node does, whose cost is that of one node."""
    return g.op("Sum", *parts) if len(parts) > 1 else parts[0]


def _in_pairs(g: Nodes, parts: list[str], count: int) -> str:
    """Add up the blocks' sums along the tree of halves; takes its blocks from the front of the list."""
    if count <= BLOCK:
        return parts.pop(0)
    left = _in_pairs(g, parts, half_of(count))
    return g.op("Add", left, _in_pairs(g, parts, count - half_of(count)))
