"""Comparisons of confidences with many classes: from a table of each row's log-partition, in full only where close.

The table is that of the fit (`recal.engine.kernels.table`), whose error is proven: between nodes a factor exp(h) apart,
g(s) = log sum over all classes but the likeliest of exp(s (z - rival)) is taken as the polynomial of degree five with
g's value and two derivatives at either end. Here it is filled in float32, and its nodes cover the scales that the plan
can give. What it cannot decide for certain is compared in full, by the rule for ties.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.engine.kernels.grouping import CLOSE
from recal.engine.kernels.table import SPACING, error_bound
from recal.plan import Rule
from recal.runtime.onnx.nodes import BOOL, DOUBLE, FLOAT, INT64, Nodes, tensor
from recal.runtime.onnx.ties import comparable, lay_out

# Twice as far apart as in a fit, for which a table pays off over many more passes.
_SPACING = 2 * SPACING
_MOST_NODES = 40
REACH = _MOST_NODES * _SPACING  # of log scales
# How far float32 sums and moments can take the polynomial from that of exact ones.
_ROUNDING = 2e-4
# Below these log-odds against it, a prediction's float32 confidence is 1 in any order of summation (2**-24).
_SATURATED = -16.8
_FAR = -1e4
# How many full comparisons rounds may cost before one step after the other is tried instead, in replays of all steps.
MOST_SPENT = 1.0


class Table:
    """The polynomials of all rows, and the rows themselves for what is too close to call."""

    def __init__(
        self,
        g: Nodes,
        drops: str,
        columns: str,
        at: str,
        rows: NDArray[np.int64],
        betas: NDArray[np.float64],
        n_classes: int,
    ) -> None:
        self.n_classes, self.steps = n_classes, len(rows) // 2
        logs = np.log(betas)
        self.lowest = min(0.0, float(logs.min(axis=1).sum())) - 1e-9
        highest = max(0.0, float(logs.max(axis=1).sum())) + 1e-9
        self.nodes = int(min(_MOST_NODES, max(2, np.ceil((highest - self.lowest) / _SPACING) + 1)))
        self.lowest = max(self.lowest, -0.6 * (self.nodes - 1) * _SPACING)
        self.bound = error_bound(n_classes) * (np.expm1(_SPACING) / np.expm1(SPACING)) ** 6 + _ROUNDING
        self._flat = g.op("Reshape", drops, g.const([-1, n_classes]))
        count = g.op("Gather", g.op("Shape", drops), g.const(np.int64(1)), axis=0)
        samples = g.op("Range", g.const(np.int64(0)), count, g.const(np.int64(1)))
        self.row_of = g.op("Add", g.op("Mul", g.const(rows[:, None]), count), samples)  # (2 * steps, n)
        here = g.op("Equal", g.const(np.arange(n_classes).reshape(1, 1, -1)), g.op("Unsqueeze", columns, g.const([2])))
        others = g.op("Where", here, g.const(-np.inf), drops)
        gaps = g.reduce("ReduceMax", others, 2)  # (1 + m, n, 1), rival - top
        below = g.cast(g.op("Max", g.op("Sub", others, gaps), g.const(_FAR)), FLOAT)
        self._pieces(g, below)
        flat_gaps = g.op("Reshape", gaps, g.const([-1]))
        self.gaps = g.op("Gather", flat_gaps, self.row_of, axis=0)  # (2 * steps, n)
        place = g.op("Add", g.op("Mul", self.row_of, g.const(np.int64(n_classes))), at)
        self.read = g.op("Gather", g.op("Reshape", drops, g.const([-1])), place, axis=0)
        self.base = g.op("Mul", self.row_of, g.const(np.int64(self.nodes - 1)))

    def _pieces(self, g: Nodes, below: str) -> None:
        """Fill the six coefficients of every row's pieces, (rows * pieces, 6)."""
        scales = np.exp(self.lowest + _SPACING * np.arange(self.nodes))
        body = Nodes(g)
        row = body.name()  # (n, K) of one view
        wide = body.op("Unsqueeze", row, body.const([2]))
        ones = body.op("Add", body.op("Mul", wide, body.const(np.float32(0))), body.const(np.float32(1)))
        moments = body.op("Concat", ones, wide, body.op("Mul", wide, wide), axis=2)
        nodes = body.const(scales.astype(np.float32).reshape(1, -1, 1))
        weights = body.op("Exp", body.op("Mul", body.op("Unsqueeze", row, body.const([1])), nodes))
        sums = body.op("MatMul", weights, moments)  # (n, nodes, 3)
        scan = body.as_graph(
            "recal_table", [tensor(row, FLOAT, [None, self.n_classes])], [tensor(sums, FLOAT, [None, self.nodes, 3])]
        )
        filled = g.cast(g.op("Scan", below, body=scan, num_scan_inputs=1), DOUBLE)
        total, first, second = g.split(filled, [1, 1, 1], axis=3)
        value, slope = g.op("Log", total), g.op("Div", first, total)
        bend = g.op("Sub", g.op("Div", second, total), g.op("Mul", slope, slope))
        # The nodes as float32 knows them are where the sums were taken.
        exact = scales.astype(np.float32).astype(np.float64)
        self.node_scales = exact
        width = g.const(np.diff(exact).reshape(1, 1, -1, 1))
        last = self.nodes

        def ends(values: str, power: int) -> tuple[str, str]:
            low, high = g.part(values, 0, last - 1, axis=2), g.part(values, 1, last, axis=2)
            for _ in range(power):
                low, high = g.op("Mul", low, width), g.op("Mul", high, width)
            return low, high

        (f0, f1), (d0, d1), (c0, c1) = ends(value, 0), ends(slope, 1), ends(bend, 2)
        terms = g.op("Concat", f0, f1, d0, d1, c0, c1, axis=3)  # (1 + m, n, pieces, 6)
        # From values, slopes and curvatures at both ends to the coefficients of t**0 .. t**5.
        matrix = np.array(
            [
                [1, 0, 0, 0, 0, 0],
                [0, 0, 1, 0, 0, 0],
                [0, 0, 0, 0, 0.5, 0],
                [-10, 10, -6, -4, -1.5, 0.5],
                [15, -15, 8, 7, 1.5, -1],
                [-6, 6, -3, -3, -0.5, 0.5],
            ],
            dtype=np.float64,
        )
        self.pieces = g.op("Reshape", g.op("MatMul", terms, g.const(matrix.T)), g.const([-1, 6]))

    def fell(self, g: Nodes, log_scales: str, at: str, rule: Rule, spent: str) -> tuple[str, str]:
        """Whether the confidence fell or stayed, (1, steps, n), at these scales, (1, 2 * steps, n).

        `spent` tells how many comparisons were made in full so far, counted in replays of all steps; what comes to it
        is returned with the outcome. Once more than one is spent, no more are made.
        """
        scales = g.op("Exp", log_scales)
        against, outside = self._log_odds_against(g, log_scales, scales)
        partition = g.op("Softplus", against)
        log_confidence = g.op("Sub", g.op("Mul", scales, self.read), partition)
        half = [self.steps, self.steps]
        own, seen = g.split(log_confidence, half, axis=1)
        margin = g.op("Sub", own, seen)
        # An error in the log-odds reaches the log-partition times 1 - p, which is at most the log-partition, and 1.
        doubt = g.op("Add", *g.split(g.op("Min", partition, g.const(1.0)), half, axis=1))
        slack = g.op("Add", g.op("Mul", doubt, g.const(1.01 * self.bound)), g.const(CLOSE))
        close = g.op("LessOrEqual", g.op("Abs", margin), slack)
        if rule.ties == "exact":
            close = g.op("Or", close, g.op("Greater", own, g.const(-CLOSE)))
        else:  # a confidence of 1 is never exceeded
            saturated = g.op("Less", g.part(against, 0, self.steps, axis=1), g.const(_SATURATED))
            close = g.op("And", close, g.op("Not", saturated))
        unknown = g.op("Or", *g.split(outside, half, axis=1))
        close = g.op("Or", close, unknown)
        outcome = g.op("GreaterOrEqual", margin, g.const(0.0))
        if rule.ties != "exact":
            outcome = g.op("Or", outcome, saturated)
        now = g.op("Add", spent, g.op("ReduceMean", g.cast(close, FLOAT), keepdims=0))
        some = g.op("And", g.op("Greater", now, spent), g.op("LessOrEqual", now, g.const(np.float32(MOST_SPENT))))
        return self._mended(g, outcome, close, some, scales, at, rule), now

    def _log_odds_against(self, g: Nodes, log_scales: str, scales: str) -> tuple[str, str]:
        """Return log of the odds against each row's prediction, and where the scale lies beyond the table."""
        steps = g.op("Mul", g.op("Sub", log_scales, g.const(self.lowest)), g.const(1.0 / _SPACING))
        piece = g.op("Clip", g.op("Floor", steps), g.const(0.0), g.const(float(self.nodes - 2)))
        number = g.cast(piece, INT64)
        low = g.op("Gather", g.const(self.node_scales[:-1]), number, axis=0)
        per_width = g.op("Gather", g.const(1.0 / np.diff(self.node_scales)), number, axis=0)
        t = g.op("Mul", g.op("Sub", scales, low), per_width)
        found = g.op("Gather", self.pieces, g.op("Add", self.base, number), axis=0)  # (1, 2 * steps, n, 6)
        coefficients = g.split(found, [1] * 6, axis=3)
        wide = g.op("Unsqueeze", t, g.const([3]))
        value = coefficients[5]
        for coefficient in reversed(coefficients[:5]):
            value = g.op("Add", g.op("Mul", value, wide), coefficient)
        value = g.op("Squeeze", value, g.const([3]))
        outside = g.op("Greater", g.op("Abs", g.op("Sub", t, g.const(0.5))), g.const(0.501))
        return g.op("Add", g.op("Mul", scales, self.gaps), value), outside

    def _mended(self, g: Nodes, outcome: str, close: str, some: str, scales: str, at: str, rule: Rule) -> str:
        """Return the outcomes with those that are too close to call decided in full, where there are `some`."""
        then, otherwise = Nodes(g), Nodes(g)
        where = then.op("Transpose", then.op("NonZero", close), perm=[1, 0])  # (ties, 3)
        first = then.op("Slice", where, then.const([1]), then.const([3]), then.const([1]))  # step, sample
        second = then.op("Add", first, then.const(np.array([self.steps, 0], np.int64)))
        both = then.op("Concat", first, second, axis=0)  # (2 * ties, 2)

        def picked(values: str) -> str:
            return then.op("GatherND", values, both)

        flat = then.op("Squeeze", scales, then.const([0]))
        rows = then.op("Gather", self._flat, picked(self.row_of), axis=0)
        scaled = then.op("Mul", rows, then.op("Unsqueeze", picked(flat), then.const([1])))
        by_class = then.op("Transpose", scaled, perm=[1, 0])  # (K, 2 * ties)
        columns = then.op("Unsqueeze", picked(then.op("Squeeze", at, then.const([0]))), then.const([0]))
        laid = lay_out(then, by_class, columns, self.n_classes, rule)
        values = comparable(then, laid, self.n_classes, rule)
        own, seen = then.ops("Split", values, outputs=2, axis=1, num_outputs=2)
        decided = then.op("Squeeze", then.op("GreaterOrEqual", own, seen), then.const([0]))
        mended = then.op("ScatterND", outcome, where, decided)
        as_it_is = otherwise.op("Identity", outcome)
        return g.choose(some, then, otherwise, [(mended, as_it_is, BOOL)])[0]
