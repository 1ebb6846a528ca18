"""Small ONNX files in the style of each exporter: how it writes batches, weights, outputs, opsets
and reshapes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
BYTE, INT64 = TensorProto.UINT8, TensorProto.INT64
CLASSES = 5
_rng = np.random.default_rng(0)
KERNEL = _rng.normal(size=(4, 3, 3, 3)).astype(np.float32) * 0.4
DENSE = _rng.normal(size=(4 * 6 * 6, CLASSES)).astype(np.float32) * 0.5
BIAS = _rng.normal(size=CLASSES).astype(np.float32)
POOLED = _rng.normal(size=(4, CLASSES)).astype(np.float32) * 6


class Graph:
    """Nodes in order; `weight` keeps constants as initialisers, or as Constant nodes, as older
    exporters do.
    """

    def __init__(self, constant_nodes: bool = False, prefix: str = "") -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.constant_nodes, self.prefix = constant_nodes, prefix

    def weight(self, values: Any, dtype: Any = None) -> str:
        array = np.asarray(values, dtype)
        name = f"{self.prefix}w{len(self.nodes)}_{len(self.constants)}"
        held = numpy_helper.from_array(array, name)
        if self.constant_nodes:
            self.nodes.append(helper.make_node("Constant", [], [name], value=held))
        else:
            self.constants.append(held)
        return name

    def op(self, kind: str, *inputs: str, to: str = "", outputs: int = 1, **attributes: Any) -> Any:
        names = [to or f"{self.prefix}{kind}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def model(
        self, shape, outputs, opset=17, ir=8, kind=FLOAT, name="x", domains=None, listed=False
    ) -> onnx.ModelProto:
        """`outputs` are shapes by name, or value infos; `listed` lists weights among the inputs
        too, as once.
        """
        infos = [
            value
            if isinstance(value, onnx.ValueInfoProto)
            else helper.make_tensor_value_info(key, kind, value)
            for key, value in outputs.items()
        ]
        inputs = [helper.make_tensor_value_info(name, kind, shape)]
        if listed:
            inputs += [
                helper.make_tensor_value_info(c.name, c.data_type, list(c.dims))
                for c in self.constants
            ]
        graph = helper.make_graph(self.nodes, "net", inputs, infos, self.constants)
        imports = [
            helper.make_opsetid(domain, v) for domain, v in {"": opset, **(domains or {})}.items()
        ]
        return helper.make_model(graph, opset_imports=imports, ir_version=ir)


def conv(g: Graph, x: str) -> str:
    """A convolution of 8 x 8 images to (n, 4, 6, 6)."""
    return g.op("Relu", g.op("Conv", x, g.weight(KERNEL), kernel_shape=[3, 3]))


def dense(g: Graph, flat: str, to: str = "scores") -> str:
    return g.op("Add", g.op("MatMul", flat, g.weight(DENSE)), g.weight(BIAS), to=to)


def paddle2onnx(batch: Any = -1) -> onnx.ModelProto:
    """The open batch is -1, weights are Constant nodes, and a Reshape copies the batch and leaves
    the rest open.
    """
    g = Graph(constant_nodes=True, prefix="p2o.")
    scale, shift, mean, var = (
        g.weight(np.full(4, value, np.float32)) for value in (1.1, 0.1, 0.2, 0.9)
    )
    x = g.op("BatchNormalization", conv(g, "x"), scale, shift, mean, var)
    flat = g.op("Reshape", x, g.weight([0, -1], np.int64))
    dense(g, flat, to="fetch_name_0")
    return g.model([batch, 3, 8, 8], {"fetch_name_0": [batch, CLASSES]}, opset=11, ir=7)


def tf2onnx() -> onnx.ModelProto:
    """Channels last, transposes around convolutions, names with slashes; some files also have a
    softmax output.
    """
    g = Graph(prefix="model/")
    x = g.op("Transpose", "x", perm=[0, 3, 1, 2])
    x = g.op("Transpose", conv(g, x), perm=[0, 2, 3, 1])
    flat = g.op("Reshape", x, g.weight([-1, 144], np.int64))
    dense(g, flat, to="dense/BiasAdd:0")
    outputs = {"dense/BiasAdd:0": ["unk__6", CLASSES]}
    return g.model(["unk__5", 8, 8, 3], outputs, opset=15)


def skl2onnx(*, zipmap: bool) -> onnx.ModelProto:
    """A logistic regression: labels and probabilities, as an array or as one dictionary per row."""
    g = Graph()
    weights, bias = POOLED.T.reshape(-1).tolist(), BIAS.tolist()
    label, raw = g.op(
        "LinearClassifier", "x", outputs=2, domain="ai.onnx.ml", coefficients=weights,
        classlabels_ints=list(range(CLASSES)), intercepts=bias, multi_class=1,
        post_transform="SOFTMAX",
    )  # fmt: skip
    normal = g.op("Normalizer", raw, to="probability_tensor", domain="ai.onnx.ml", norm="L1")
    outputs: dict[str, Any] = {"label": helper.make_tensor_value_info("label", INT64, [None])}
    g.op("Identity", label, to="label")
    if zipmap:
        g.op(
            "ZipMap",
            normal,
            to="probabilities",
            domain="ai.onnx.ml",
            classlabels_int64s=list(range(CLASSES)),
        )
        entry = helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
        outputs["probabilities"] = helper.make_value_info(
            "probabilities", helper.make_sequence_type_proto(entry)
        )
    else:
        g.op("Identity", normal, to="probabilities")
        outputs["probabilities"] = [None, CLASSES]
    return g.model([None, 4], outputs, domains={"ai.onnx.ml": 1})


def torch_dynamo(opset: int = 18) -> onnx.ModelProto:
    """`x.view(x.size(0), -1)`: the batch's size is read from the shape."""
    g = Graph()
    x = conv(g, "x")
    n = g.op("Shape", x, start=0, end=1)
    flat = g.op("Reshape", x, g.op("Concat", n, g.weight([-1], np.int64), axis=0), allowzero=0)
    dense(g, flat)
    return g.model(["s77", 3, 8, 8], {"scores": ["s77", CLASSES]}, opset=opset, ir=10)


def torch_legacy() -> onnx.ModelProto:
    """Opset 9: attributes in place of inputs, weights as Constant nodes and also listed as inputs
    by some.
    """
    g = Graph(constant_nodes=True)
    x = conv(g, "x")
    n = g.op("Unsqueeze", g.op("Gather", g.op("Shape", x), g.weight(0, np.int64), axis=0), axes=[0])
    flat = g.op("Reshape", x, g.op("Concat", n, g.weight([-1], np.int64), axis=0))
    dense(g, flat)
    return g.model(["batch_size", 3, 8, 8], {"scores": ["batch_size", CLASSES]}, opset=9, ir=4)


def at_opset(opset: int) -> onnx.ModelProto:
    """Nothing but nodes that every opset has; weights listed among the inputs, as up to IR version
    3.
    """
    g = Graph()
    dense(g, g.op("Flatten", conv(g, "x")))
    return g.model(
        ["n", 3, 8, 8],
        {"scores": ["n", CLASSES]},
        opset=opset,
        ir=3 if opset < 10 else 8,
        listed=opset < 10,
    )


def quantised_operators() -> onnx.ModelProto:
    """Bytes in, QLinearConv and QLinearMatMul inside, and a last DequantizeLinear: many equal
    scores.
    """
    g = Graph()
    small, tenth = g.weight(1 / 255, np.float32), g.weight(0.1, np.float32)
    zero, middle = g.weight(0, np.uint8), g.weight(128, np.uint8)
    kernel = np.clip(np.round(KERNEL / 0.01) + 128, 0, 255).astype(np.uint8)
    hundredth = g.weight(0.01, np.float32)
    read = ("x", small, zero, g.weight(kernel), hundredth, middle, tenth, middle)
    x = g.op("QLinearConv", *read, kernel_shape=[3, 3])
    matrix = np.clip(np.round(DENSE / 0.01) + 128, 0, 255).astype(np.uint8)
    half = g.weight(0.5, np.float32)
    read = (g.op("Flatten", x), tenth, middle, g.weight(matrix), hundredth, middle, half, middle)
    y = g.op("QLinearMatMul", *read)
    g.op("DequantizeLinear", y, half, middle, to="scores")
    scores = helper.make_tensor_value_info("scores", FLOAT, ["n", CLASSES])
    return g.model(["n", 3, 8, 8], {"scores": scores}, opset=13, kind=BYTE)


def several_outputs() -> onnx.ModelProto:
    """Features of four axes beside the scores: only one output can be the classes'."""
    g = Graph()
    features = g.op("Identity", conv(g, "x"), to="features")
    dense(g, g.op("Flatten", features))
    return g.model(["n", 3, 8, 8], {"features": ["n", 4, 6, 6], "scores": ["n", CLASSES]})


def half_floats() -> onnx.ModelProto:
    g = Graph()
    x = g.op("Relu", g.op("Conv", "x", g.weight(KERNEL, np.float16), kernel_shape=[3, 3]))
    flat = g.op("Flatten", x)
    product = g.op("MatMul", flat, g.weight(DENSE, np.float16))
    g.op("Add", product, g.weight(BIAS, np.float16), to="scores")
    return g.model(["n", 3, 8, 8], {"scores": ["n", CLASSES]}, kind=HALF)


def fixed_batch(rows: int) -> onnx.ModelProto:
    """So many rows, said everywhere: in the input, in a Reshape, in the output."""
    g = Graph()
    dense(g, g.op("Reshape", conv(g, "x"), g.weight([rows, -1], np.int64)))
    return g.model([rows, 3, 8, 8], {"scores": [rows, CLASSES]})


def no_empty_batch() -> onnx.ModelProto:
    """A product with a matrix from the left, which onnxruntime refuses for a batch of no rows."""
    g = Graph()
    columns = g.op("Reshape", conv(g, "x"), g.weight([-1, 144, 1], np.int64))
    product = g.op("MatMul", g.weight(DENSE.T), columns)
    g.op("Squeeze", product, g.weight([2], np.int64), to="scores")
    return g.model(["n", 3, 8, 8], {"scores": ["n", CLASSES]})


def fixed_token() -> onnx.ModelProto:
    """One row, and a learned token of one row joined to it: more rows do not fit."""
    g = Graph()
    flat = g.op("Reshape", conv(g, "x"), g.weight([1, 1, 144], np.int64))
    token = g.weight(np.ones((1, 1, 144), np.float32))
    mean = g.op("ReduceMean", g.op("Concat", token, flat, axis=1), axes=[1], keepdims=0)
    dense(g, mean)
    return g.model([1, 3, 8, 8], {"scores": [1, CLASSES]})


def linear(path, shape=(1, 6, 6), n_classes=CLASSES, *, softmax=False, opset=15, domain=""):
    """Save a model whose scores are linear in its inputs; return its path and its weights."""
    size = (int(np.prod(shape)), n_classes)
    weights = np.random.default_rng(0).normal(size=size).astype(np.float32)
    g = Graph()
    g.constants.append(numpy_helper.from_array(weights, "w"))
    scores = g.op("MatMul", g.op("Flatten", "x"), "w", to="" if softmax else "scores")
    if softmax:
        g.op("Identity", g.op("Softmax", scores), to="scores")
    domains = {domain: opset} if domain else None
    onnx.save(g.model(["n", *shape], {"scores": ["n", n_classes]}, opset, domains=domains), path)
    return path, weights


def outputs_of(source: Path | bytes, inputs: np.ndarray) -> dict[str, Any]:
    """Run an exported file; return what it answers by name."""
    source = source if isinstance(source, bytes) else str(source)
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, {session.get_inputs()[0].name: inputs})))


def with_views(path: Path, inputs: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """Run an exported file; return the views, which it joins with the inputs, and its answers."""
    model = onnx.load(path)
    joins = (node for node in model.graph.node if node.op_type == "Concat")
    views = [node for node in joins if node.input[0] == "inputs"][-1].input[1:]
    kind = helper.np_dtype_to_tensor_dtype(inputs.dtype)
    for name in views:
        model.graph.output.append(helper.make_tensor_value_info(name, kind, None))
    found = outputs_of(model.SerializeToString(), inputs)
    return np.concatenate([found.pop(name) for name in views]), found


IMAGES: dict[str, Callable[[], onnx.ModelProto]] = {
    "paddle2onnx": paddle2onnx,
    "batch unsaid": lambda: paddle2onnx(None),
    "tf2onnx": tf2onnx,
    "torch dynamo": torch_dynamo,
    "torch legacy": torch_legacy,
    "QOperator": quantised_operators,
    "several outputs": several_outputs,
    "float16": half_floats,
    "batch of 1": lambda: fixed_batch(1),
    "batch of 4": lambda: fixed_batch(4),
    **{f"opset {opset}": lambda opset=opset: at_opset(opset) for opset in (7, 9, 12, 21)},
}
