"""Methods that combine the answers to several views without a plan, as ONNX nodes, (n, K) float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from recal import calibrators as family
from recal.calibrators.base import Calibrator
from recal.calibrators.machinery.probabilities import SMALLEST
from recal.export.graph import DOUBLE, INT64, Nodes, tensor
from recal.maps.aggregation import LARGEST_SCORE, STEP, TINY

# Arguments: graph, float64 logits (n, K), those of all views (m, n, K), calibrator, number of classes.
Aggregation = Callable[[Nodes, str, str, Any, int], str]


def _all(g: Nodes, logits: str, transformed: str) -> str:
    return g.op("Concat", g.op("Unsqueeze", logits, g.const([0])), transformed, axis=0)


def _tamed(g: Nodes, scores: str) -> str:
    return g.op("Clip", scores, g.const(-LARGEST_SCORE), g.const(LARGEST_SCORE))


def _weighed(g: Nodes, layers: str, weights: Any) -> str:
    """Return the sum of layers, (m, n, K), by weights, (m, 1) or (m, K)."""
    return g.reduce("ReduceSum", g.op("Mul", layers, g.const(np.asarray(weights)[:, None, :])), 0, 0)


def _averaging(g: Nodes, logits: str, transformed: str, calibrator: Any, n_classes: int) -> str:
    mean = g.reduce("ReduceMean", g.op("Softmax", _all(g, logits, transformed), axis=2), 0, 0)
    beta = float(getattr(calibrator, "beta_", 1.0))
    if beta == 1.0:
        return mean
    logs = g.op("Log", g.op("Max", mean, g.const(SMALLEST)))
    return g.op("Softmax", g.op("Mul", logs, g.const(beta)), axis=1)


def _learned(g: Nodes, logits: str, transformed: str, calibrator: Any, n_classes: int) -> str:
    layers = g.op("Mul", _all(g, logits, transformed), g.const(float(calibrator.beta_)))
    return g.op("Softmax", _weighed(g, _tamed(g, layers), calibrator.weights_), axis=1)


def _mixture(g: Nodes, logits: str, transformed: str, calibrator: Any, n_classes: int) -> str:
    """The views' answer, by a share that is lowered in steps until the model's own answer wins."""
    own = g.op("Softmax", logits, axis=1)
    other = g.op("Softmax", _weighed(g, _tamed(g, transformed), calibrator.weights_), axis=1)
    top = g.op("ArgMax", logits, axis=1, keepdims=1)
    lead = g.op("Sub", g.op("GatherElements", own, top, axis=1), own)
    lag = g.op("Sub", other, g.op("GatherElements", other, top, axis=1))
    passed = g.op("Div", lead, g.op("Max", g.op("Add", lead, lag), g.const(TINY)))
    limit = g.reduce("ReduceMin", g.op("Where", g.op("Greater", lag, g.const(0.0)), passed, g.const(np.inf)), 1)
    share = float(calibrator.share_)
    excess = g.op("Max", g.op("Sub", g.const(share), limit), g.const(0.0))
    steps = g.op("Ceil", g.op("Sub", g.op("Div", excess, g.const(STEP)), g.const(1e-9)))
    allowed = g.op("Clip", g.op("Sub", g.const(share), g.op("Mul", steps, g.const(STEP))), g.const(0.0), g.const(1.0))
    mixed = g.op("Mul", g.op("Sub", g.const(1.0), allowed), own)
    return g.op("Add", mixed, g.op("Mul", allowed, other))


def _consistency(g: Nodes, logits: str, transformed: str, calibrator: Any, n_classes: int) -> str:
    """How often each class wins when the noise of the fit is added, one draw after the other."""
    layers, n_layers = _all(g, logits, transformed), 1 + len(calibrator.transforms_)
    total = max(calibrator.draws, n_layers)
    drawn = np.random.default_rng(calibrator.seed_).standard_normal((total, n_classes))
    body = Nodes(g)
    counts, layer, noise = (body.name() for _ in range(3))
    noisy = body.op("Add", body.op("Gather", layers, layer, axis=0), noise)
    winner = body.op("ArgMax", noisy, axis=1, keepdims=1)
    won = body.cast(body.op("Equal", body.const(np.arange(n_classes).reshape(1, -1)), winner), DOUBLE)
    after = body.op("Add", counts, won)
    shape = [None, n_classes]
    draw = body.as_graph(
        "recal_draw",
        [tensor(counts, DOUBLE, shape), tensor(layer, INT64, []), tensor(noise, DOUBLE, [n_classes])],
        [tensor(after, DOUBLE, shape)],
    )
    none = g.op("Mul", g.op("Sub", logits, logits), g.const(0.0))
    which = g.const(np.arange(total, dtype=np.int64) % n_layers)
    votes = g.op("Scan", none, which, g.const(calibrator.noise_ * drawn), body=draw, num_scan_inputs=2)
    return g.op("Div", g.op("Add", votes, g.const(1.0 / n_classes)), g.const(float(total + 1)))


AGGREGATIONS: dict[type[Calibrator], Aggregation] = {
    family.ViewAveraging: _averaging,
    family.LearnedAggregation: _learned,
    family.VATTA: _mixture,
    family.MATTA: _mixture,
    family.ConsistencyCalibration: _consistency,
}
