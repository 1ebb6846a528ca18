"""The cost of metrics next to a bare sum, numpy and torchmetrics.

python -m benchmarks.metrics_speed [--small]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.measuring import Ratio, bare_sum, beside_recal, show, take_turns
from recal import evaluate, metrics


def ratios(small: bool) -> Iterator[Ratio]:
    n = 100_000 if small else 1_000_000
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(10), n).astype(np.float32)
    y = rng.integers(0, 10, n)
    rows = np.arange(n)

    def ece() -> float:
        confidence, correct = probs.max(1), probs.argmax(1) == y
        bins = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
        sums = np.bincount(bins, weights=correct - confidence.astype(float), minlength=15)
        return float(np.abs(sums).sum() / n)

    def nll() -> float:
        return float(-np.log(probs[rows, y].astype(float)).mean())

    def brier() -> float:
        return float(((probs - np.eye(probs.shape[1])[y]) ** 2).mean())

    def error_rate() -> float:
        return float((probs.argmax(1) != y).mean())

    def aurc() -> float:
        wrong = (probs.argmax(1) != y)[np.argsort(-probs.max(1))]
        return float((np.cumsum(wrong) / (rows + 1)).mean())

    plain = (ece, nll, brier, error_rate, aurc)
    peers: dict[str, dict[str, Callable[[], Any]]] = {
        function.__name__: {"four lines of numpy": function} for function in plain
    }
    peers["ece"].update(_of_torchmetrics(probs, y))
    peers["evaluate"] = {}
    for name, others in peers.items():
        function = evaluate if name == "evaluate" else getattr(metrics, name)
        runs = {
            "recal": lambda function=function: function(probs, y),
            "a bare sum": bare_sum(probs),
            **others,
        }
        yield from beside_recal("Metrics", f"{name}, {n:,} x 10", runs, turns=5)
    few = n // 10
    cpu = take_turns({"recal": lambda: evaluate(probs[:few], y[:few], bootstrap=1000)}, 2)["recal"]
    yield Ratio("Metrics", f"evaluate, 1,000 bootstrap draws, {few:,} x 10", "1 s", cpu, 1.0)


def _of_torchmetrics(probs: np.ndarray, y: np.ndarray) -> dict[str, Callable[[], Any]]:
    try:
        import torch
        from torchmetrics.functional.classification import multiclass_calibration_error
    except ImportError:
        print("torchmetrics is left out: it is not installed", file=sys.stderr)
        return {}
    given, labels = torch.as_tensor(probs), torch.as_tensor(y)
    return {"torchmetrics": lambda: multiclass_calibration_error(given, labels, 10, n_bins=15)}


if __name__ == "__main__":
    show(ratios, __doc__)
