"""Functions of the array API give the same numbers traced to ONNX as in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from recal.export import traced_functions
from recal.export.tracer import OPEN, Graph

K = 5


def constant(z: Any, values: Any) -> Any:
    return values if isinstance(z, np.ndarray) else z.namespace.asarray(values, device=z.device)


def reduced(xp: Any, z: Any) -> Any:
    least, total = xp.min(z, axis=1)[:, None], xp.sum(z, axis=1)[:, None]
    return z - xp.max(z, axis=1, keepdims=True) + least + total


def quantified(xp: Any, z: Any) -> Any:
    return xp.where(xp.any(z > 1.0, axis=1, keepdims=True), z, -z)


def rearranged(xp: Any, z: Any) -> Any:
    stacked = xp.reshape(xp.stack([z, -z, z * 2.0], axis=1), (-1, 3, K))
    return xp.moveaxis(stacked, 2, 1)[:, :, 1]


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "arithmetic": lambda xp, z: (2.0 * z - 1.0 / (z * z + 1.0)) ** 2 + 3.0 - z / 2.0 + (-z) ** 3.0,
    "exp and log": lambda xp, z: xp.log(xp.exp(z) + 1.0) + xp.abs(z) + xp.tanh(z),
    "log1p": lambda xp, z: xp.log1p(xp.exp(z * 20.0)) + xp.log1p(xp.exp(z * 20.0 - 30.0)) * 1e9,
    "comparisons": lambda xp, z: xp.where((z > 0.0) & (z <= 1.0) | ~(z >= -1.0), z, -z),
    "equal": lambda xp, z: xp.where(z == 2.0, z, -z),
    "clip": lambda xp, z: xp.clip(z, -1.0, 1.0) + xp.maximum(z, 0.5 * z),
    "minimum": lambda xp, z: xp.minimum(z, constant(z, np.ones(K))),
    "softmax": lambda xp, z: _softmax(xp, z * 0.5),
    "reductions": reduced,
    "argmax": lambda xp, z: (
        z * xp.astype(xp.argmax(z, axis=1)[:, None] == constant(z, np.arange(K)), xp.float64)
    ),
    "any": quantified,
    "matmul": lambda xp, z: xp.matmul(z, constant(z, np.arange(K * K, dtype=float).reshape(K, K))),
    "layout": rearranged,
    "concat": lambda xp, z: xp.concat([z[:, 3:], z[:, :1], z[:, 1:3]], axis=1),
    "expand_dims": lambda xp, z: z + xp.expand_dims(z[:, 2], axis=1),
    "take": lambda xp, z: xp.take(z, constant(z, np.array([4, 0, 0, 2, 1])), axis=1),
    "sort": lambda xp, z: xp.sort(z, axis=1) + xp.take_along_axis(z, xp.argsort(z, axis=1), axis=1),
    "cumulative_sum": lambda xp, z: xp.cumulative_sum(z, axis=1),
    "filled": lambda xp, z: xp.zeros_like(z) + xp.ones_like(z) * 3.0 + xp.full_like(z, 0.5) + z,
}


def _softmax(xp: Any, z: Any) -> Any:
    if hasattr(xp, "softmax"):
        return xp.softmax(z, 1)
    weights = xp.exp(z - xp.max(z, axis=1, keepdims=True))
    return weights / xp.sum(weights, axis=1, keepdims=True)


def trace(function: Callable[[Any, Any], Any]) -> onnx.ModelProto:
    z = Graph().input("z", "float64", (OPEN, K))
    model = z.device.model([z], {"out": function(traced_functions, z)})
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, z: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"z": z})[0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_traced_function_gives_what_numpy_gives(name: str) -> None:
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.normal(size=(40, K)) * 2.0, [[-1.0, 0.0, 0.0, 0.0, 1.5], np.zeros(K)]])
    model = trace(FUNCTIONS[name])
    for rows in (z, z[:1], z[:0]):
        expected = FUNCTIONS[name](np, rows)
        found = run(model, rows)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)


def test_equal_constants_are_written_once_and_unused_nodes_not_at_all() -> None:
    def twice(xp: Any, z: Any) -> Any:
        xp.tanh(z)
        return xp.exp(z * 2.0) + z * 2.0

    graph = trace(twice).graph
    assert [node.op_type for node in graph.node] == ["Mul", "Exp", "Mul", "Add", "Identity"]
    assert len(graph.initializer) == 1
    assert [node.op_type for node in trace(_softmax).graph.node] == ["Softmax", "Identity"]


def test_a_loop_applies_its_step_as_often_as_asked() -> None:
    added = np.arange(6.0)

    def looped(xp: Any, z: Any) -> Any:
        return xp.repeated(
            6, lambda number, state: state * 0.5 + xp.take(constant(z, added), number), z
        )

    z = np.random.default_rng(0).normal(size=(7, K))
    expected = z
    for value in added:
        expected = expected * 0.5 + value
    np.testing.assert_allclose(run(trace(looped), z), expected, rtol=1e-15)


def test_a_decision_on_traced_values_is_refused() -> None:
    with pytest.raises(TypeError, match=r"where\(condition, a, b\)"):
        trace(lambda xp, z: z if xp.any(z > 0.0) else -z)
