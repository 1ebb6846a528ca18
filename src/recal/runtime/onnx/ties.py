"""The rule for ties as ONNX nodes: which of two confidences is larger, as the reference decides it to the bit.

The last bit of a float32 sum depends on its order, so sums follow numpy's (`recal.runtime.summation`). A runtime pays
for every node: classes are laid out once so that each node adds as many of them as the order allows.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from recal.plan import Rule
from recal.runtime.onnx.nodes import FLOAT, Nodes
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


def lay_out(g: Nodes, rows: str, at: str, n_classes: int) -> tuple[str, str]:
    """Return rows, (K, ...), and the classes to read, (1, ...), in the layout that `comparable` takes."""
    layout = _layout(n_classes)
    if (layout == n_classes).any():
        gap = g.op("Add", g.op("Mul", g.part(rows, 0, 1, axis=0), g.const(0.0)), g.const(-np.inf))
        rows = g.op("Concat", rows, gap, axis=0)
    place = np.empty(n_classes + 1, np.int64)
    place[layout] = np.arange(len(layout))
    laid = g.op("Gather", rows, g.const(layout), axis=0)
    return laid, g.op("Gather", g.const(place[:-1]), at, axis=0)


def comparable(g: Nodes, rows: str, at: str, n_classes: int, rule: Rule) -> str:
    """Return what the rule compares, (1, ...), of scaled float64 rows whose largest value is 0, laid out."""
    return _log_odds(g, rows, at) if rule.ties == "exact" else _confidence32(g, rows, at, n_classes)


def _confidence32(g: Nodes, rows: str, at: str, n_classes: int) -> str:
    """A float32 softmax: each exp rounded to float32, divided in float32 by their float32 sum."""
    weights = g.cast(g.op("Exp", rows), FLOAT)
    return g.op("Div", g.op("GatherElements", weights, at, axis=0), _sum32(g, weights, n_classes))


def _log_odds(g: Nodes, rows: str, at: str) -> str:
    """log(p / (1 - p)) without ever forming p, so that nothing saturates."""
    here = g.op("GatherElements", rows, at, axis=0)
    others = g.op("ScatterElements", rows, at, g.op("Add", here, g.const(-np.inf)), axis=0)
    rival = g.reduce("ReduceMax", others, 0)
    total = g.reduce("ReduceSum", g.op("Exp", g.op("Sub", others, rival)), 0)
    return g.op("Sub", here, g.op("Add", rival, g.op("Log", total)))


def _sum32(g: Nodes, values: str, count: int) -> str:
    """Sum float32 values that are laid out in numpy's order of pairs: (K, ...) to (1, ...)."""
    if count < LANES:
        return _in_turn(g, g.split(values, [1] * count, axis=0))
    blocks, rows, _ = lanes(count).shape
    rest = count % LANES
    parts = g.split(values, [LANES * blocks] * rows + [1] * rest, axis=0)
    total = _in_turn(g, parts[:rows])
    for size in (4, 2, 1):
        total = g.op("Add", *g.split(total, [size * blocks] * 2, axis=0))
    sums = g.split(total, [1] * blocks, axis=0)
    sums[-1] = _in_turn(g, [sums[-1], *parts[rows:]])
    return _in_pairs(g, sums, count)


def _in_turn(g: Nodes, parts: list[str]) -> str:
    total = parts[0]
    for part in parts[1:]:
        total = g.op("Add", total, part)
    return total


def _in_pairs(g: Nodes, parts: list[str], count: int) -> str:
    """Add up the blocks' sums along the tree of halves; takes its blocks from the front of the list."""
    if count <= BLOCK:
        return parts.pop(0)
    left = _in_pairs(g, parts, half_of(count))
    return g.op("Add", left, _in_pairs(g, parts, count - half_of(count)))
