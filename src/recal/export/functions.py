"""Methods that are functions learned by a small network, a curve or a Gaussian process, as ONNX nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from recal.export import curves
from recal.export.graph import Nodes
from recal.maps.order import unpack

# As in the reference: squares of saturated log-probabilities stay finite.
_LOWEST_LOG = -1e6


def order_preserving(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    """The gaps between sorted logits stretched by positive factors, or log-probabilities sent along a curve."""
    if calibrator.inputs_.ndim == 1:
        return g.op("Softmax", _along_curve(g, logits, calibrator), axis=1)
    network = calibrator.map_
    weights, offsets, out_weights, out_offsets = unpack(network.parameters, network.shapes)
    n_gaps = network.inputs.shape[1]
    n_ranks = n_gaps + 1
    values, columns = g.ops("TopK", logits, g.const([n_ranks]), outputs=2, axis=1)
    ends = ((0, 1), (1, n_ranks), (0, n_gaps))
    top, lower, higher = (g.part(values, first, last, axis=1) for first, last in ends)
    features = curves.log1p(g, g.op("Sub", top, lower))
    scaled = g.op("Div", g.op("Sub", features, g.const(network.inputs[:1])), g.const(network.inputs[1:]))
    hidden = g.op("Tanh", g.op("Add", g.op("MatMul", scaled, g.const(weights)), g.const(offsets[None])))
    factors = curves.softplus(g, g.op("Add", g.op("MatMul", hidden, g.const(out_weights)), g.const(out_offsets[None])))
    stretched = g.op("Mul", g.op("Sub", higher, lower), g.part(factors, 0, n_gaps, axis=1))
    sums = g.op("Neg", g.op("CumSum", stretched, g.const(np.int64(1))))
    levels = g.op("Concat", g.op("Sub", top, top), sums, axis=1)
    mapped = logits
    if n_classes > n_ranks:
        last = g.part(values, n_gaps, n_gaps + 1, axis=1)
        below = g.op("Max", g.op("Sub", last, logits), g.const(0.0))
        under = g.op("Mul", g.part(factors, n_gaps, n_gaps + 1, axis=1), below)
        mapped = g.op("Sub", g.part(levels, n_gaps, n_gaps + 1, axis=1), under)
    return g.op("Softmax", g.op("ScatterElements", mapped, columns, levels, axis=1), axis=1)


def _along_curve(g: Nodes, logits: str, calibrator: Any) -> str:
    """Each piece of the curve adds its slope times how much of it lies above the value."""
    knots = -calibrator.inputs_
    lengths = np.append(np.diff(knots), np.inf)
    depth = g.op("Unsqueeze", g.op("Neg", curves.log_softmax(g, logits)), g.const([2]))
    inside = g.op("Min", g.op("Max", g.op("Sub", depth, g.const(knots)), g.const(0.0)), g.const(lengths))
    return g.op("Neg", g.reduce("ReduceSum", g.op("Mul", inside, g.const(np.exp(calibrator.parameters_))), 2, 0))


def gaussian_process(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    """The mean answer of the functions that were drawn from the posterior."""
    logs = g.op("Unsqueeze", curves.log_softmax(g, logits, float(calibrator.beta_)), g.const([2]))  # (n, K, 1)
    far = g.op("Sub", g.op("Max", logs, g.const(_LOWEST_LOG)), g.const(calibrator.points_))
    far = g.op("Div", far, g.const(float(calibrator.length_)))
    kernel = g.op("Exp", g.op("Mul", g.op("Mul", far, far), g.const(-0.5)))  # (n, K, points)
    bends = g.op("MatMul", kernel, g.const(np.ascontiguousarray(calibrator.draws_.T)))  # (n, K, draws)
    return g.reduce("ReduceMean", g.op("Softmax", g.op("Add", logs, bends), axis=1), 2, 0)
