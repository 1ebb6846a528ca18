"""Tables as ONNX nodes: steps and broken lines through which scores are sent, one for each class or one for all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recal.export.graph import DOUBLE, INT64, Nodes

Vector = NDArray[np.float64]


def step_values(g: Nodes, scores: str, edges: Sequence[Vector], values: Sequence[Vector]) -> str:
    """Return each score's value on the steps of its column, (n, K); a step holds its upper edge.

    `edges` and `values` have one entry for each column, or one for all; there is one value more than there are edges.
    """
    starts, _, below = _search(g, scores, edges, "Less")
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in values])[:-1]])
    shift = g.const((offsets - starts).astype(np.int64).reshape(1, -1))
    place = g.op("Add", g.op("Add", below, g.const(np.int64(1))), shift)  # how many edges lie below, and the offset
    return g.op("Gather", g.const(np.concatenate(values)), place, axis=0)


def line_values(g: Nodes, scores: str, knots: Sequence[Vector], values: Sequence[Vector]) -> str:
    """Return each score sent through the broken line of its column, level beyond its ends, as numpy's interp does."""
    knots, values = zip(*(_two(x, y) for x, y in zip(knots, values)))
    starts, ends, last = _search(g, scores, knots, "LessOrEqual")
    first = g.op("Min", g.op("Max", last, g.const(starts.reshape(1, -1))), g.const((ends - 2).reshape(1, -1)))
    second = g.op("Add", first, g.const(np.int64(1)))
    all_knots, all_values = g.const(np.concatenate(knots)), g.const(np.concatenate(values))
    x0, x1 = (g.op("Gather", all_knots, place, axis=0) for place in (first, second))
    y0, y1 = (g.op("Gather", all_values, place, axis=0) for place in (first, second))
    width = g.op("Max", g.op("Sub", x1, x0), g.const(1e-300))
    part = g.op("Clip", g.op("Div", g.op("Sub", scores, x0), width), g.const(0.0), g.const(1.0))
    return g.op("Add", y0, g.op("Mul", part, g.op("Sub", y1, y0)))


def _two(knots: Vector, values: Vector) -> tuple[Vector, Vector]:
    """A line has two corners at least."""
    return (knots, values) if len(knots) > 1 else (knots + np.array([0.0, 1.0]), np.repeat(values, 2))


def _search(
    g: Nodes, scores: str, edges: Sequence[Vector], relation: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], str]:
    """Return where columns begin and end among all edges, and the place of the last edge below each score.

    The place is one before the column's first where no edge is. Halving takes a handful of nodes for each doubling of
    the table, where comparing with all edges would take memory for each of them.
    """
    sizes = np.array([len(each) for each in edges], dtype=np.int64)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    # An endless edge at the end, so that there is something to read in a table without edges.
    table = g.const(np.append(np.concatenate(edges), np.inf))
    end = g.const(ends.reshape(1, -1))
    zero = g.op("Mul", g.cast(g.op("IsNaN", scores), INT64), g.const(np.int64(0)))  # of the scores' shape
    place = g.op("Add", zero, g.const((starts - 1).reshape(1, -1)))
    step = 1 << max(0, int(sizes.max(initial=0)).bit_length() - 1)
    while step and sizes.max(initial=0):
        further = g.op("Add", place, g.const(np.int64(step)))
        edge = g.op("Gather", table, g.op("Min", further, g.const(np.int64(ends[-1]))), axis=0)
        goes_on = g.op("And", g.op("Less", further, end), g.op(relation, edge, scores))
        place = g.op("Where", goes_on, further, place)
        step //= 2
    return starts, ends, place


def class_scores(g: Nodes, logits: str, n_classes: int, beta: float = 1.0) -> str:
    """Return each class's log-odds, (n, K) float64, with digits where its probability has saturated."""
    wide = g.cast(logits, DOUBLE)
    if n_classes == 2:
        first, second = g.split(wide, [1, 1], axis=1)
        margin = g.op("Mul", g.op("Sub", second, first), g.const(float(beta)))
        return g.op("Concat", g.op("Neg", margin), margin, axis=1)
    return log_odds(g, log_softmax(g, wide, beta), n_classes)


def log_softmax(g: Nodes, wide: str, beta: float = 1.0) -> str:
    """Return log softmax(beta z) of float64 rows."""
    drops = g.op("Mul", g.op("Sub", wide, g.reduce("ReduceMax", wide, 1)), g.const(float(beta)))
    return g.op("Sub", drops, g.op("Log", g.reduce("ReduceSum", g.op("Exp", drops), 1)))


def log_odds(g: Nodes, log_probs: str, n_classes: int) -> str:
    """Return log(p / (1 - p)); 1 - p of the likeliest class is the sum of the others."""
    top = g.op("ArgMax", log_probs, axis=1, keepdims=1)
    here = g.op("Equal", g.const(np.arange(n_classes).reshape(1, -1)), top)
    others = g.op("Where", here, g.const(-np.inf), log_probs)
    second = g.reduce("ReduceMax", others, 1)
    rest = g.op("Log", g.reduce("ReduceSum", g.op("Exp", g.op("Sub", others, second)), 1))
    small = log1p(g, g.op("Neg", g.op("Exp", others)))
    return g.op("Sub", log_probs, g.op("Where", here, g.op("Add", second, rest), small))


def log1p(g: Nodes, x: str) -> str:
    """Return log(1 + x) for |x| < 1 without losing a small x: ONNX has no node for it."""
    one = g.op("Add", x, g.const(1.0))
    lost = g.op("Sub", x, g.op("Sub", one, g.const(1.0)))
    return g.op("Add", g.op("Log", one), g.op("Div", lost, one))


def softplus(g: Nodes, x: str) -> str:
    """Return log(1 + e**x) without overflow."""
    small = log1p(g, g.op("Exp", g.op("Neg", g.op("Abs", x))))
    return g.op("Add", g.op("Max", x, g.const(0.0)), small)


def normalise(g: Nodes, scores: str, n_classes: int) -> str:
    """Divide rows of scores >= 0 by their sums; a row of zeros becomes uniform."""
    total = g.reduce("ReduceSum", scores, 1)
    some = g.op("Greater", total, g.const(0.0))
    divided = g.op("Div", scores, g.op("Where", some, total, g.const(1.0)))
    return g.op("Where", some, divided, g.const(1.0 / n_classes))
