"""The cost of metrics next to a bare sum, numpy and torchmetrics: python -m
benchmarks.metrics_speed [--small]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measuring import bare_sum, take_turns
from benchmarks.ratios import Ratio, table
from recal import evaluate, metrics

# The cost in release 1.0.0rc1, as a multiple of a bare sum.
BEFORE = {"ece": 10.0, "nll": 15.0, "aurc": 69.0}
TARGETS = {"ece": 4.0, "nll": 4.0}


def ratios(small: bool) -> list[Ratio]:
    n = 100_000 if small else 1_000_000
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(10), n).astype(np.float32)
    y = rng.integers(0, 10, n)
    confidence = probs.max(axis=1)

    def ece_in_numpy() -> float:
        confidence, correct = probs.max(1), probs.argmax(1) == y
        bins = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
        sums = np.bincount(bins, weights=correct - confidence.astype(float), minlength=15)
        return float(np.abs(sums).sum() / n)

    def nll_in_numpy() -> float:
        return float(-np.log(probs[np.arange(n), y].astype(float)).mean())

    contestants: dict[str, Callable[[], Any]] = {
        "a bare sum": bare_sum(probs),
        "ece": lambda: metrics.ece(probs, y),
        "nll": lambda: metrics.nll(probs, y),
        "aurc": lambda: metrics.aurc(probs, y),
        "evaluate": lambda: evaluate(probs, y),
        "ece, four lines of numpy": ece_in_numpy,
        "nll, numpy": nll_in_numpy,
        "aurc, np.argsort of the confidences alone": lambda: np.argsort(confidence),
        **_of_torchmetrics(probs, y),
    }
    best = {name: timing.cpu for name, timing in take_turns(contestants, 5).items()}
    part, size = "Metrics", f"{n:,} x 10"
    found = []
    for name in ("ece", "nll", "aurc", "evaluate"):
        given = TARGETS.get(name), BEFORE.get(name)
        found.append(
            Ratio(part, f"{name}, {size}", "a bare sum", best[name], best["a bare sum"], *given)
        )
        for other in best:
            if other.startswith(f"{name}, "):
                found.append(
                    Ratio(part, f"{name}, {size}", other.split(", ", 1)[1], best[name], best[other])
                )
    few = 10_000 if small else 100_000
    drawn = take_turns({"x": lambda: evaluate(probs[:few], y[:few], bootstrap=1000)}, 2)["x"].cpu
    what = f"evaluate with 1,000 bootstrap draws, {few:,} x 10"
    return [*found, Ratio(part, what, "1 s, as it was", drawn, 1.0, 0.5, 1.0)]


def _of_torchmetrics(probs: np.ndarray, y: np.ndarray) -> dict[str, Callable[[], Any]]:
    try:
        import torch
        from torchmetrics.functional.classification import multiclass_calibration_error
    except ImportError:
        print("torchmetrics is left out: it is not installed", file=sys.stderr)
        return {}
    given, labels = torch.as_tensor(probs), torch.as_tensor(y)
    return {"ece, torchmetrics": lambda: multiclass_calibration_error(given, labels, 10, n_bins=15)}


if __name__ == "__main__":
    print("\n".join(table(ratios("--small" in sys.argv))))
