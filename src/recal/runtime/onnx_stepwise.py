"""The replay as an ONNX graph, written node by node: small, without Python at run time, and within 1e-6 of numpy.

The steps are one ONNX loop, so the graph's size does not grow with the plan. As in the torch runtime, arithmetic is
float64, and the float32 confidences that decide ties are summed in numpy's order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.errors import InputError, MissingExtraError
from recal.plan import Plan
from recal.runtime.summation import BLOCK, half_of, lanes

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError:
    raise MissingExtraError("onnx", "onnx", "Writing ONNX files") from None

OPSET, IR_VERSION = 18, 8  # the oldest that hold every node used here
_LEAST_SCALE, _LARGEST_SCALE = 1e-100, 1e100
ROWS, PROBS = "recal_rows", "probs"


def replay_model(plan: Plan, n_classes: int) -> onnx.ModelProto:
    """Return an ONNX model from logits to calibrated probabilities.

    Its inputs are `logits` (n, n_classes) and, where the plan has steps, `transformed` (m, n, n_classes), the logits
    through each of ``plan.transforms`` in that order; its output is `probs` (n, n_classes), all float32.
    """
    n_views = len(plan.transforms)
    graph = Nodes()
    stack = graph.op("Unsqueeze", "logits", graph.const([0]))
    inputs = [_tensor("logits", ["batch", n_classes])]
    if n_views:
        stack = graph.op("Concat", stack, "transformed", axis=0)
        inputs.append(_tensor("transformed", [n_views, "batch", n_classes]))
    return _model(graph, _probs(graph, stack, plan, n_classes), inputs, n_classes)


def replay_after_model(plan: Plan, n_classes: int, element_type: int, opset: int) -> onnx.ModelProto:
    """Return the same from one input of the shape ((1 + m) * n, n_classes): what is put behind a model.

    The originals' rows come first, then those of each transformation. `element_type` is that of the model's logits.
    """
    graph = Nodes()
    stack = graph.op("Reshape", ROWS, graph.const([1 + len(plan.transforms), -1, n_classes]))
    inputs = [helper.make_tensor_value_info(ROWS, element_type, ["rows", n_classes])]
    return _model(graph, _probs(graph, stack, plan, n_classes), inputs, n_classes, opset)


class Nodes:
    """A graph in the making: nodes in order, constants beside them, every name new."""

    def __init__(self, parent: Nodes | None = None) -> None:
        self.nodes: list[onnx.NodeProto] = []
        root = self if parent is None else parent.root
        self.root: Nodes = root
        if parent is None:
            self.constants: dict[str, onnx.TensorProto] = {}
            self.count = 0

    def name(self) -> str:
        self.root.count += 1
        return f"recal_{self.root.count}"

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        output = self.name()
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=f"{output}_{kind}", **attributes))
        return output

    def const(self, values: ArrayLike) -> str:
        """Return the name of a constant; a loop's body reads those of the graph around it."""
        name = self.name()
        self.root.constants[name] = numpy_helper.from_array(np.asarray(values), name)
        return name


def _tensor(name: str, shape: list[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _model(
    graph: Nodes, probs: str, inputs: list[onnx.ValueInfoProto], n_classes: int, opset: int = OPSET
) -> onnx.ModelProto:
    graph.nodes.append(helper.make_node("Cast", [probs], [PROBS], name="recal_probs", to=TensorProto.FLOAT))
    outputs = [_tensor(PROBS, ["batch", n_classes])]
    built = helper.make_graph(graph.nodes, "recal", inputs, outputs, initializer=list(graph.constants.values()))
    model = helper.make_model(built, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
    model.producer_name = "recal"
    return model


def _probs(graph: Nodes, stack: str, plan: Plan, n_classes: int) -> str:
    """Add the whole replay and return the name of the float64 probabilities."""
    if n_classes < 2:
        raise InputError(f"A classifier has at least two classes, got {n_classes}.")
    wide = graph.op("Cast", stack, to=TensorProto.DOUBLE)
    drops = graph.op("Sub", wide, graph.op("ReduceMax", wide, graph.const([2]), keepdims=1))
    columns = graph.op("ArgMax", wide, axis=2, keepdims=1)  # (1 + m, n, 1)
    state = _floored(graph, drops, plan) if plan.rule.floor is not None else _scaled(graph, drops, plan)
    steps = [step for step in plan.steps if not step.is_neutral]
    if steps:
        place = {transform: index for index, transform in enumerate(plan.transforms, 1)}
        views = graph.const(np.array([place[step.transform] for step in steps], dtype=np.int64))
        betas = graph.const(np.array([step.betas for step in steps]))
        body = _body(graph, plan, n_classes, drops, columns, views, betas)
        looped = graph.name()
        graph.nodes.append(
            helper.make_node(
                "Loop", [graph.const(np.int64(len(steps))), "", state], [looped], name="recal_steps", body=body
            )
        )
        state = looped
    first = graph.op("Gather", state, graph.const(np.int64(0)), axis=0)
    if plan.rule.floor is not None:
        return graph.op("Softmax", _rescale_floored(graph, first, graph.const(plan.finish), plan, axis=1), axis=1)
    scale = _clip(graph, graph.op("Mul", first, graph.const(plan.finish)))
    return graph.op("Softmax", graph.op("Mul", scale, _row(graph, drops, graph.const(np.int64(0)))), axis=1)


def _scaled(graph: Nodes, drops: str, plan: Plan) -> str:
    """Begin with one scale per sample and view, (1 + m, n, 1)."""
    one = graph.op("Slice", drops, graph.const([0]), graph.const([1]), graph.const([2]))
    begun = np.clip(plan.start, _LEAST_SCALE, _LARGEST_SCALE)
    return graph.op("Add", graph.op("Mul", one, graph.const(0.0)), graph.const(np.float64(begun)))


def _floored(graph: Nodes, drops: str, plan: Plan) -> str:
    """Begin with dense log-probabilities, (1 + m, n, K)."""
    state = _rescale_floored(graph, drops, graph.const(1.0), plan, axis=2)
    return _rescale_floored(graph, state, graph.const(plan.start), plan, axis=2)


def _rescale_floored(graph: Nodes, state: str, factors: str, plan: Plan, axis: int) -> str:
    logs = graph.op("LogSoftmax", graph.op("Mul", state, factors), axis=axis)
    logs = graph.op("Max", logs, graph.const(math.log(plan.rule.floor or 1.0)))
    return graph.op("Sub", logs, graph.op("ReduceMax", logs, graph.const([axis]), keepdims=1))


def _clip(graph: Nodes, scales: str) -> str:
    return graph.op("Clip", scales, graph.const(_LEAST_SCALE), graph.const(_LARGEST_SCALE))


def _row(graph: Nodes, stacked: str, index: str) -> str:
    return graph.op("Gather", stacked, index, axis=0)


def _body(
    parent: Nodes, plan: Plan, n_classes: int, drops: str, columns: str, views: str, betas: str
) -> onnx.GraphProto:
    """One step: group by the present logits of the original and of the step's view, and rescale both."""
    g = Nodes(parent)
    iteration, condition, state = g.name(), g.name(), g.name()
    first, view = g.const(np.int64(0)), g.op("Gather", views, iteration, axis=0)

    def present(index: str) -> str:
        rows = _row(g, state, index)
        return rows if plan.rule.floor is not None else g.op("Mul", rows, _row(g, drops, index))

    column, view_column = _row(g, columns, first), _row(g, columns, view)
    at = view_column if plan.rule.confidence_at == "own" else column
    confidence = _log_odds if plan.rule.ties == "exact" else _confidence32
    fell = g.op(
        "GreaterOrEqual", confidence(g, present(first), column, n_classes), confidence(g, present(view), at, n_classes)
    )
    kept = g.op("Equal", column, view_column)
    group = g.op(
        "Add",
        g.op("Mul", g.op("Cast", kept, to=TensorProto.INT64), g.const(np.int64(2))),
        g.op("Cast", fell, to=TensorProto.INT64),
    )
    factors = g.op("Gather", _row(g, betas, iteration), group, axis=0)  # (n, 1)
    places = g.const(np.arange(1 + len(plan.transforms)).reshape(-1, 1, 1))
    touched = g.op("Or", g.op("Equal", places, first), g.op("Equal", places, view))
    if plan.rule.floor is None:
        after = _clip(g, g.op("Mul", state, g.op("Where", touched, factors, g.const(1.0))))
    else:
        after = g.op("Where", touched, _rescale_floored(g, state, factors, plan, axis=2), state)
    goes_on = g.op("Identity", condition)
    width = n_classes if plan.rule.floor is not None else 1
    shape = [1 + len(plan.transforms), None, width]
    return helper.make_graph(
        g.nodes,
        "recal_step",
        [
            helper.make_tensor_value_info(iteration, TensorProto.INT64, []),
            helper.make_tensor_value_info(condition, TensorProto.BOOL, []),
            helper.make_tensor_value_info(state, TensorProto.DOUBLE, shape),
        ],
        [
            helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []),
            helper.make_tensor_value_info(after, TensorProto.DOUBLE, shape),
        ],
    )


def _confidence32(g: Nodes, rows: str, column: str, n_classes: int) -> str:
    """A float32 softmax at `column`: each exp rounded to float32, divided in float32 by their float32 sum."""
    weights = g.op("Cast", g.op("Exp", rows), to=TensorProto.FLOAT)
    return g.op("Div", g.op("GatherElements", weights, column, axis=1), _sum32(g, weights, n_classes))


def _log_odds(g: Nodes, rows: str, column: str, n_classes: int) -> str:
    """log(p / (1 - p)) at `column` without ever forming p, so that nothing saturates."""
    here = g.op("Equal", g.const(np.arange(n_classes).reshape(1, -1)), column)
    others = g.op("Where", here, g.const(-np.inf), rows)
    rival = g.op("ReduceMax", others, g.const([1]), keepdims=1)
    total = g.op("ReduceSum", g.op("Exp", g.op("Sub", others, rival)), g.const([1]), keepdims=1)
    return g.op("Sub", g.op("GatherElements", rows, column, axis=1), g.op("Add", rival, g.op("Log", total)))


def _sum32(g: Nodes, values: str, count: int) -> str:
    """Sum float32 rows in numpy's order of pairs: (n, K) to (n, 1)."""
    if count < 8:
        return _in_turn(g, [_columns(g, values, [j]) for j in range(count)])
    places: NDArray[np.int64] = lanes(count)
    padded = g.op("Pad", values, g.const([0, 0, 0, 1]))  # the zero that fills up short blocks
    blocks = g.op("Reshape", _columns(g, padded, places.reshape(-1)), g.const([-1, *places.shape]))
    totals = _in_turn(g, [g.op("Gather", blocks, g.const(np.int64(row)), axis=2) for row in range(places.shape[1])])
    for pairs in (4, 2, 1):  # eight lanes, summed in pairs
        even, odd = np.arange(pairs) * 2, np.arange(pairs) * 2 + 1
        totals = g.op(
            "Add", g.op("Gather", totals, g.const(even), axis=2), g.op("Gather", totals, g.const(odd), axis=2)
        )
    sums = g.op("Reshape", totals, g.const([-1, len(places)]))
    parts = [_columns(g, sums, [block]) for block in range(len(places))]
    rest = [_columns(g, values, [j]) for j in range(count - count % 8, count)]
    parts[-1] = _in_turn(g, [parts[-1], *rest])
    return _in_pairs(g, parts, count)


def _columns(g: Nodes, values: str, columns: ArrayLike) -> str:
    return g.op("Gather", values, g.const(np.asarray(columns, dtype=np.int64)), axis=1)


def _in_turn(g: Nodes, parts: list[str]) -> str:
    total = parts[0]
    for part in parts[1:]:
        total = g.op("Add", total, part)
    return total


def _in_pairs(g: Nodes, parts: list[str], count: int) -> str:
    if count <= BLOCK:
        return parts.pop(0)
    left = _in_pairs(g, parts, half_of(count))
    return g.op("Add", left, _in_pairs(g, parts, count - half_of(count)))
