"""What the gate of an exported file saves: python -m benchmarks.onnx_gate [--small]

A model with two views is exported with gates that send 10, 45, 60 and 100 % of a batch through the
views. The file's CPU seconds are compared with those of the model alone on the same batch, times
the passes that such a share needs: 1 + share x views. Runs use one thread; the smallest of several
turns counts. The networks have random weights, which cost as much as trained ones.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from benchmarks.measuring import take_turns
from benchmarks.ratios import Ratio, table
from recal import Blend
from recal.export import export_onnx

PART = "The gate of an exported ONNX file"
SHARES = (0.1, 0.45, 0.6, 1.0)
TARGET = 1.1
VIEWS = (("flip", 0.4), ("shift", 0.3))
# Measured in the same way when views were computed inside a branch (`If`), which runs convolutions
# unfused.
BEFORE = {
    "ResNet-8, 32 x 32": (1.05, 1.06, 1.08, 1.11),
    "MobileNet, 96 x 96": (1.08, 1.11, 1.16, 1.17),
    "MobileNet, 224 x 224": (1.09, 1.22, 1.25, 1.30),
    "ResNet-8, 32 x 32, one at a time": (1.30, 1.23, 1.17, 1.18),
}


class Network:
    """Layers as exporters write them: convolution, normalisation and activation as nodes of their
    own.
    """

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> str:
        values = self.rng.normal(size=shape) * scale + shift
        self.weights.append(
            numpy_helper.from_array(values.astype(np.float32), f"w{len(self.weights)}")
        )
        return str(self.weights[-1].name)

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def conv(
        self,
        x: str,
        into: int,
        out: int,
        size: int = 3,
        stride: int = 1,
        group: int = 1,
        clip: bool = True,
    ):
        weight = self.weight(
            out, into // group, size, size, scale=(2 / (size * size * into / group)) ** 0.5
        )
        pads = [size // 2] * 4
        x = self.add(
            "Conv", x, weight, strides=[stride] * 2, pads=pads, kernel_shape=[size] * 2, group=group
        )
        scale, shift, mean = (self.weight(out, scale=0.1, shift=shift) for shift in (1, 0, 0))
        x = self.add(
            "BatchNormalization", x, scale, shift, mean, self.weight(out, scale=0.0, shift=1.0)
        )
        return self.add("Relu", x) if clip else x

    def saved(self, x: str, channels: int, side: int, path: Path, n_classes: int = 10) -> Path:
        pooled = self.add("Flatten", self.add("GlobalAveragePool", x))
        out = self.add(
            "Gemm", pooled, self.weight(channels, n_classes, scale=3.0), self.weight(n_classes)
        )
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, side, side])],
            [helper.make_tensor_value_info(out, TensorProto.FLOAT, ["n", n_classes])],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path.write_bytes(model.SerializeToString())
        return path


def resnet8(path: Path, side: int = 32) -> Path:
    net = Network()
    x, into = net.conv("images", 3, 16), 16
    for out, stride in ((16, 1), (32, 2), (64, 2)):
        inner = net.conv(net.conv(x, into, out, stride=stride), out, out, clip=False)
        beside = x if out == into else net.conv(x, into, out, size=1, stride=stride, clip=False)
        x, into = net.add("Relu", net.add("Add", inner, beside)), out
    return net.saved(x, into, side, path)


def mobilenet(path: Path, side: int) -> Path:
    """Depthwise and pointwise convolutions in residual blocks, at half of MobileNetV2's width."""
    net = Network()
    x, into = net.conv("images", 3, 16, stride=2), 16
    for out, stride in (
        (8, 1),
        (16, 2),
        (16, 1),
        (16, 2),
        (16, 1),
        (32, 2),
        (32, 1),
        (48, 1),
        (80, 2),
        (80, 1),
    ):
        inner = net.conv(
            net.conv(x, into, 6 * into, size=1), 6 * into, 6 * into, stride=stride, group=6 * into
        )
        narrow = net.conv(inner, 6 * into, out, size=1, clip=False)
        x, into = net.add("Add", narrow, x) if stride == 1 and out == into else narrow, out
    return net.saved(net.conv(x, into, 640, size=1), 640, side, path)


def session_of(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def ratios(small: bool = False) -> list[Ratio]:
    """Return the file's CPU time beside that of the passes it needs."""
    cases = [
        ("ResNet-8, 32 x 32", resnet8, 32, 64),
        ("MobileNet, 96 x 96", partial(mobilenet, side=96), 96, 16),
    ]
    if not small:
        cases.append(("MobileNet, 224 x 224", partial(mobilenet, side=224), 224, 8))
        cases.append(("ResNet-8, 32 x 32, one at a time", resnet8, 32, 1))
    return [ratio for case in cases for ratio in _case(*case, turns=5 if small else 15)]


def _case(name: str, make: Any, side: int, batch: int, turns: int) -> list[Ratio]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        alone = session_of(make(Path(folder) / "model.onnx"))
        count = max(batch, 40)
        images = np.random.default_rng(1).random((count, 3, side, side), dtype=np.float32)
        batches = [images[i : i + batch] for i in range(0, count, batch)]
        logits = np.concatenate([alone.run(None, {"images": each})[0] for each in batches])
        start = 1.5 / float(logits.std())
        wide = np.exp(start * (logits - logits.max(1, keepdims=True)).astype(np.float64))
        confidence = np.sort(1 / wide.sum(1))
        runs, needed = {"model": partial(_run, alone, "images", batches)}, {}
        for share in SHARES:
            below = round(share * count)
            gate = 1.0 if below == count else float(confidence[below - 1 : below + 1].mean())
            blend = Blend(0.5, VIEWS, (), 1e-4, gate=gate, gated_own=1.0)
            path = export_onnx(
                Path(folder) / "model.onnx",
                path=Path(folder) / f"{share}.onnx",
                plan=replace(blend, start=start),
            )
            session = session_of(path)
            passes = np.concatenate(
                [session.run(["passes"], {"inputs": each})[0] for each in batches]
            )
            needed[share] = float(passes.mean())
            runs[f"{share}"] = partial(_run, session, "inputs", batches)
        times = take_turns(runs, turns=turns)
        for share in SHARES:
            work = f"{name}, {share:.0%} of rows with {len(VIEWS)} views"
            beside = f"{needed[share]:.2f} passes of the model alone"
            ours, theirs = times[f"{share}"].cpu, times["model"].cpu * needed[share]
            found.append(
                Ratio(PART, work, beside, ours, theirs, TARGET, BEFORE[name][SHARES.index(share)])
            )
    return found


def _run(session: onnxruntime.InferenceSession, name: str, batches: list[np.ndarray]) -> None:
    for batch in batches:
        session.run(None, {name: batch})


if __name__ == "__main__":
    print("\n".join(table(ratios(small="--small" in sys.argv))))
