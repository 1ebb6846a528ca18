"""Methods without a plan as ONNX nodes: from logits to calibrated probabilities, (n, K) float64, before any guard."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal import calibrators as family
from recal.calibrators.base import Calibrator
from recal.calibrators.ensemble.members import READS, needed_for
from recal.calibrators.imax import CERTAIN
from recal.calibrators.spline import HALVINGS, LOWEST
from recal.errors import InputError
from recal.export import curves
from recal.export.aggregations import AGGREGATIONS
from recal.export.functions import gaussian_process, order_preserving
from recal.export.graph import BOOL, DOUBLE, INT64, Nodes, tensor

# Adds the method's map and returns probabilities; arguments: graph, float64 logits, calibrator, number of classes.
Method = Callable[[Nodes, str, Any, int], str]
_SMALLEST = float(np.finfo(np.float64).tiny)


def method_probs(g: Nodes, logits: str, transformed: str, calibrator: Calibrator, n_classes: int) -> str:
    """Return what the calibrator's own map gives, of logits (n, K), and those of its views, (m, n, K)."""
    wide = g.cast(logits, DOUBLE)
    if type(calibrator) in AGGREGATIONS:
        return AGGREGATIONS[type(calibrator)](g, wide, g.cast(transformed, DOUBLE), calibrator, n_classes)
    return METHODS[type(calibrator)](g, wide, calibrator, n_classes)


def check_exportable(calibrator: Any) -> None:
    """Refuse a method that cannot be written as ONNX operations."""
    if type(calibrator) not in METHODS and type(calibrator) not in AGGREGATIONS:
        raise InputError(
            f"{type(calibrator).__name__} is not one of recal's own methods, and only those can be written as ONNX "
            "operations. Export another, or apply yours in Python."
        )


def _softmax(g: Nodes, scores: str) -> str:
    return g.op("Softmax", scores, axis=1)


def _per_class(g: Nodes, values: NDArray[np.float64]) -> str:
    return g.const(np.asarray(values, dtype=np.float64).reshape(1, -1))


def _diagonal(g: Nodes, features: str, calibrator: Any) -> str:
    scaled = g.op("Mul", features, _per_class(g, calibrator.scales_))
    return _softmax(g, g.op("Add", scaled, _per_class(g, calibrator.shifts_)))


def _temperature(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    drops = g.op("Sub", logits, g.reduce("ReduceMax", logits, 1))
    return _softmax(g, g.op("Mul", drops, g.const(float(calibrator.beta_))))


def _vector(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    limit = float(getattr(calibrator, "limit_", np.inf))
    moved = g.op("Max", g.op("Sub", logits, g.reduce("ReduceMax", logits, 1)), g.const(-limit))
    beyond = g.op("Greater", g.reduce("ReduceMax", g.op("Abs", logits), 1), g.const(limit))
    return _diagonal(g, g.op("Where", beyond, moved, logits), calibrator)


def _linear(g: Nodes, features: str, weights: NDArray[np.float64], intercept: NDArray[np.float64]) -> str:
    mixed = g.op("MatMul", features, g.const(np.ascontiguousarray(weights.T)))
    return _softmax(g, g.op("Add", mixed, _per_class(g, intercept)))


def _maps(g: Nodes, features: str, calibrator: Any) -> str:
    """The mean over the folds' maps."""
    features = g.op("Clip", features, g.const(-1e9), g.const(1e9))
    total = ""
    for weights, intercept in zip(calibrator.weights_, calibrator.intercepts_):
        probs = _linear(g, features, weights, intercept)
        total = g.op("Add", total, probs) if total else probs
    return g.op("Mul", total, g.const(1.0 / len(calibrator.weights_)))


def _matrix(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    return _maps(g, logits, calibrator)


def _dirichlet(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    return _maps(g, curves.log_softmax(g, logits), calibrator)


def _robust(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    """Log-probabilities at the temperature, mixed with 1 part in n + 1 of the uniform answer."""
    share = 1.0 / (calibrator.n_fitted_ + 1.0)
    probs = _softmax(g, g.op("Mul", logits, g.const(float(calibrator.beta_))))
    return g.op("Log", g.op("Add", g.op("Mul", probs, g.const(1.0 - share)), g.const(share / n_classes)))


def _structured_vector(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    return _diagonal(g, _robust(g, logits, calibrator, n_classes), calibrator)


def _structured_matrix(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    return _linear(g, _robust(g, logits, calibrator, n_classes), calibrator.weights_, calibrator.intercept_)


def _ensemble(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    scaled, own, uniform = (float(weight) for weight in calibrator.weights_)
    first = g.op("Mul", _softmax(g, g.op("Mul", logits, g.const(float(calibrator.beta_)))), g.const(scaled))
    both = g.op("Add", first, g.op("Mul", _softmax(g, logits), g.const(own)))
    return g.op("Add", both, g.const(uniform / n_classes))


def _packed(values: NDArray[np.float64], offsets: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    return [values[begin:end] for begin, end in pairwise(offsets)]


def _isotonic(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    scores = curves.class_scores(g, logits, n_classes, getattr(calibrator, "beta_", 1.0))
    knots, values = (_packed(each, calibrator.offsets_) for each in (calibrator.knots_, calibrator.values_))
    return curves.normalise(g, curves.line_values(g, scores, knots, values), n_classes)


def _shared_isotonic(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    scores = curves.class_scores(g, logits, n_classes)
    lines = curves.line_values(g, scores, [calibrator.knots_], [calibrator.values_])
    slope = g.op("Mul", g.op("Sigmoid", scores), g.const(float(calibrator.slope)))
    return curves.normalise(g, g.op("Add", lines, slope), n_classes)


def _histogram(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    scores = curves.class_scores(g, logits, n_classes)
    steps = curves.step_values(g, scores, list(calibrator.edges_), list(calibrator.values_))
    return curves.normalise(g, steps, n_classes)


def _quantiles(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    scores = curves.class_scores(g, logits, n_classes)
    edges, values = (_packed(each, calibrator.offsets_) for each in (calibrator.edges_, calibrator.values_))
    steps = curves.step_values(g, scores, [each[:-1] for each in edges], values)  # the last edge is endless
    return curves.normalise(g, steps, n_classes)


def _information(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    odds = curves.log_odds(g, curves.log_softmax(g, logits), n_classes)
    odds = g.op("Clip", odds, g.const(-CERTAIN), g.const(CERTAIN))
    steps = curves.step_values(g, odds, list(calibrator.edges_), list(calibrator.values_))
    nudge = g.op("Add", g.op("Mul", g.op("Sigmoid", odds), g.const(1e-9)), g.const(1.0))
    return curves.normalise(g, g.op("Mul", steps, nudge), n_classes)


def _logistic(g: Nodes, scores: str) -> str:
    """Softmax of the logarithms of sigmoids."""
    return _softmax(g, g.op("Neg", curves.softplus(g, g.op("Neg", scores))))


def _platt(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    limit = float(calibrator.limit_)
    scores = g.op("Clip", curves.class_scores(g, logits, n_classes), g.const(-limit), g.const(limit))
    scaled = g.op("Mul", scores, _per_class(g, calibrator.slopes_))
    return _logistic(g, g.op("Add", scaled, _per_class(g, calibrator.intercepts_)))


def _beta(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    limit = float(calibrator.limit_)
    scores = curves.class_scores(g, logits, n_classes)
    log_p = g.op("Neg", curves.softplus(g, g.op("Neg", scores)))
    rest = g.op("Min", g.op("Sub", scores, log_p), g.const(limit))
    a, b, c = (_per_class(g, row) for row in calibrator.coefficients_)
    first = g.op("Mul", g.op("Max", log_p, g.const(-limit)), a)
    return _logistic(g, g.op("Add", g.op("Add", first, g.op("Mul", rest, b)), c))


def _affine(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    """A line or a parabola of the log-odds, between their bounds."""
    low, high = (_per_class(g, row) for row in calibrator.bounds_)
    scores = g.op("Min", g.op("Max", curves.class_scores(g, logits, n_classes), low), high)
    mapped = g.op("Mul", scores, _per_class(g, calibrator.coefficients_[0]))
    if len(calibrator.coefficients_) == 3:
        bend = g.op("Mul", g.op("Mul", scores, scores), _per_class(g, calibrator.coefficients_[1]))
        mapped = g.op("Add", mapped, bend)
    return _logistic(g, g.op("Add", mapped, _per_class(g, calibrator.coefficients_[-1])))


def _venn_abers(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    scores = curves.class_scores(g, logits, n_classes)
    low, high = (
        curves.step_values(g, scores, [each[:-1] for each in _packed(edges, offsets)], _packed(values, offsets))
        for edges, values, offsets in (
            (calibrator.low_edges_, calibrator.low_values_, calibrator.low_offsets_),
            (calibrator.high_edges_, calibrator.high_values_, calibrator.high_offsets_),
        )
    )
    both = g.op("Add", g.op("Sub", g.const(1.0), low), high)
    return curves.normalise(g, g.op("Div", high, both), n_classes)


def _spline(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    """Give the prediction its confidence; the others share the rest, none of them more than the prediction."""
    top = g.op("ArgMax", logits, axis=1, keepdims=1)
    here = g.op("Equal", g.const(np.arange(n_classes).reshape(1, -1)), top)
    score = g.op("GatherElements", _softmax(g, logits), top, axis=1)
    confidence = curves.line_values(g, score, [calibrator.scores_], [calibrator.values_])
    confidence = g.op("Max", confidence, g.const(1.0 / n_classes))
    others = g.op("Where", here, g.const(-np.inf), logits)
    logs = g.op("Mul", g.op("Sub", others, g.reduce("ReduceMax", others, 1)), g.const(float(calibrator.beta_)))
    logs = g.op("Where", here, g.const(-np.inf), g.op("Max", logs, g.const(LOWEST)))
    left = g.op("Sub", g.const(1.0), confidence)
    factor = _largest_factor(g, logs, here, g.op("Div", confidence, left))
    shares = _softmax(g, g.op("Where", here, g.const(-np.inf), g.op("Mul", logs, factor)))
    return g.op("Where", here, confidence, g.op("Mul", shares, left))


def _largest_factor(g: Nodes, logs: str, here: str, most: str) -> str:
    """Return the largest factor, (n, 1) in [0, 1], at which no share exceeds `most`, by halving."""
    body = Nodes(g)
    number, going, low, high = (body.name() for _ in range(4))

    def crowded(inside: Nodes, factor: str) -> str:
        drawn = inside.op("Where", here, inside.const(-np.inf), inside.op("Mul", logs, factor))
        total = inside.reduce("ReduceSum", inside.op("Exp", drawn), 1)
        return inside.op("Greater", inside.op("Div", inside.const(1.0), total), most)

    middle = body.op("Mul", body.op("Add", low, high), body.const(0.5))
    above = crowded(body, middle)
    lower, upper = body.op("Where", above, low, middle), body.op("Where", above, middle, high)
    goes_on = body.op("Identity", going)
    shape = [None, 1]
    halving = body.as_graph(
        "recal_halving",
        [tensor(number, INT64, []), tensor(going, BOOL, []), tensor(low, DOUBLE, shape), tensor(high, DOUBLE, shape)],
        [tensor(goes_on, BOOL, []), tensor(lower, DOUBLE, shape), tensor(upper, DOUBLE, shape)],
    )
    zero = g.op("Mul", most, g.const(0.0))
    zero = g.op("Where", g.op("IsNaN", zero), g.const(0.0), zero)  # an endless `most` times 0
    one = g.op("Add", zero, g.const(1.0))
    found = g.ops("Loop", g.const(np.int64(HALVINGS)), "", zero, one, outputs=2, body=halving)[0]
    return g.op("Where", crowded(g, one), found, one)


def mixture(g: Nodes, logits: str, calibrator: Any, n_classes: int) -> str:
    """The weighted mean of what an ensemble's members answer, in float64."""
    answers: dict[str, str] = {}
    for name in needed_for(calibrator.weights_):
        source = READS.get(name)
        given = logits if source is None else g.op("Log", g.op("Max", answers[source], g.const(_SMALLEST)))
        member = calibrator.members_[name]
        answers[name] = METHODS[type(member)](g, given, member, n_classes)
    total = ""
    for name, weight in calibrator.weights_.items():
        part = g.op("Mul", answers[name], g.const(weight))
        total = g.op("Add", total, part) if total else part
    return total


METHODS: dict[type[Calibrator], Method] = {
    family.TemperatureScaling: _temperature,
    family.CalibrationEnsemble: mixture,
    family.VectorScaling: _vector,
    family.MatrixScaling: _matrix,
    family.DirichletCalibration: _dirichlet,
    family.StructuredVectorScaling: _structured_vector,
    family.StructuredMatrixScaling: _structured_matrix,
    family.EnsembleTemperatureScaling: _ensemble,
    family.IsotonicCalibration: _isotonic,
    family.IsotonicOneVsAll: _isotonic,
    family.IsotonicMulticlass: _shared_isotonic,
    family.HistogramBinning: _histogram,
    family.BayesianBinning: _quantiles,
    family.MutualInformationBinning: _information,
    family.PlattScaling: _platt,
    family.BetaCalibration: _beta,
    family.AffineScaling: _affine,
    family.QuadraticScaling: _affine,
    family.CentredIsotonic: _isotonic,
    family.VennAbers: _venn_abers,
    family.SplineCalibration: _spline,
    family.OrderPreserving: order_preserving,
    family.GaussianProcessCalibration: gaussian_process,
}
