"""A calibration as ONNX nodes: its map is traced, from logits to probabilities, prediction and confidence."""

from __future__ import annotations

from recal.export.calibration import Calibration
from recal.export.graph import DOUBLE, FLOAT, OPSET, Nodes, model_of, onnx, tensor
from recal.export.tracer import OPEN, Functions, Graph, Symbol
from recal.maps.guard import keep_answers


def own_probs(calibration: Calibration, g: Nodes, logits: str, transformed: str, n_classes: int) -> str:
    """Return the map's own probabilities, (n, K) float64, from logits, (n, K), and those of all views, (m, n, K).

    Without views, all samples are taken to be above the gate.
    """
    graph, count, views = Graph(g, OPSET), len(calibration.transforms), []
    if transformed:
        stack = _wide(graph, transformed, (count, OPEN, n_classes))
        views = [stack[number] for number in range(count)]
    return str(calibration.map.probs(_wide(graph, logits, (OPEN, n_classes)), views).name)


def needs_views(calibration: Calibration, g: Nodes, logits: str, n_classes: int) -> str:
    """Return whether each sample's views must be computed, (n,)."""
    return str(calibration.map.needs_views(_wide(Graph(g, OPSET), logits, (OPEN, n_classes))).name)


def answers(calibration: Calibration, g: Nodes, own: str, logits: str, n_classes: int) -> tuple[str, str, str]:
    """Return probabilities, (n, K), the index of the prediction and the confidence in it, both (n, 1).

    All are made from the map's own probabilities. The confidence is what the map gives the prediction before the guard
    lifts it.
    """
    graph = Graph(g, OPSET)
    probs = Symbol(graph, own, "float64", (OPEN, n_classes))
    scores = _wide(graph, logits, (OPEN, n_classes)) if calibration.kept else probs
    answer = Functions.argmax(scores, axis=1, keepdims=True)
    confidence = Functions.take_along_axis(probs, answer, axis=1)
    if calibration.kept and not calibration.map.keeps_order:
        probs = keep_answers(probs, answer)
    return probs.name, answer.name, confidence.name


def _wide(graph: Graph, name: str, shape: tuple[int, ...]) -> Symbol:
    return Symbol(graph, graph.nodes.cast(name, DOUBLE), "float64", shape)


def calibration_model(calibration: Calibration, n_classes: int) -> onnx.ModelProto:
    """Return an ONNX model from logits to calibrated probabilities.

    Its inputs are `logits` (n, n_classes) and, if views are needed, `transformed` (m, n, n_classes), the logits through
    each of ``calibration.transforms`` in that order; its outputs are `probs` (n, n_classes) and `confidence` (n,), all
    float32.
    """
    calibration.check_classes(n_classes)
    g, n_views = Nodes(), len(calibration.transforms)
    own = own_probs(calibration, g, "logits", "transformed" if n_views else "", n_classes)
    probs, _, confidence = answers(calibration, g, own, "logits", n_classes)
    g.rename(g.cast(probs, FLOAT), "probs")
    g.rename(g.cast(g.op("Squeeze", confidence, g.const([1])), FLOAT), "confidence")
    inputs = [tensor("logits", FLOAT, ["batch", n_classes])]
    if n_views:
        inputs.append(tensor("transformed", FLOAT, [n_views, "batch", n_classes]))
    outputs = [tensor("probs", FLOAT, ["batch", n_classes]), tensor("confidence", FLOAT, ["batch"])]
    return model_of(g, inputs, outputs)
