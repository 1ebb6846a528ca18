"""The cost of calibration at run time in torch: python -m benchmarks.torch_runtime [--small]

It compares CalibratedModule with k views to 1 + k bare forward passes, and measures what one
temperature adds to a single answer. Times are CPU seconds of one thread; contestants take turns,
and the smallest of several times counts.
"""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import torch

from benchmarks.measuring import take_turns
from benchmarks.ratios import Ratio, table
from recal import CalibratedModule, Plan, Step, pool

PART = "CalibratedModule in torch"
# The time for a single answer with one temperature in release 1.0.0rc1.
BEFORE_SECONDS = 0.8e-3


class Block(torch.nn.Module):
    """Two convolutions and a shortcut, as in a residual network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(width, width, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(width),
            torch.nn.ReLU(),
            torch.nn.Conv2d(width, width, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


def residual(blocks: int, stride: int, n_classes: int) -> torch.nn.Module:
    """A residual network of 32 channels; `stride` shrinks large images first."""
    stem = torch.nn.Conv2d(3, 32, max(3, stride), stride=stride, padding=1)
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, n_classes)]
    return torch.nn.Sequential(stem, *(Block(32) for _ in range(blocks)), *head).eval()


def plan_for(specs: str, n_steps: int) -> Plan:
    rng = np.random.default_rng(0)
    transforms = pool(specs)
    steps = [Step(t, tuple(rng.uniform(0.7, 1.2, 4))) for t in transforms]  # type: ignore[arg-type]
    while len(steps) < n_steps:
        steps.append(
            Step(transforms[rng.integers(len(transforms))], tuple(rng.uniform(0.7, 1.2, 4)))
        )  # type: ignore[arg-type]
    return Plan(tuple(steps))


def passes(model: torch.nn.Module, images: torch.Tensor, count: int) -> None:
    for _ in range(count):
        model(images)


def with_views(small: bool) -> list[Ratio]:
    cases = [
        ("3 blocks, 32 x 32, 10 classes", residual(3, 1, 10), (32, 3, 32, 32), "zoom:0.5-0.9:4"),
        ("3 blocks, 32 x 32, 10 classes", residual(3, 1, 10), (1, 3, 32, 32), "zoom:0.5-0.9:4"),
        ("9 blocks, 32 x 32, 100 classes", residual(9, 1, 100), (32, 3, 32, 32), "zoom:0.1-0.9:10"),
        (
            "9 blocks, 224 x 224, 1000 classes",
            residual(9, 4, 1000),
            (8, 3, 224, 224),
            "zoom:0.5-0.9:4",
        ),
    ]
    found = []
    for name, model, shape, specs in cases[:2] if small else cases:
        plan = plan_for(specs, 50)
        k, images = len(plan.transforms), torch.rand(shape)
        runs = {
            "bare": partial(passes, model, images, 1 + k),
            "ours": partial(CalibratedModule(model, plan), images),
        }
        best = take_turns(runs, 3)
        what = f"residual network, {name}, batch of {shape[0]}, {k} views, 50 steps"
        found.append(
            Ratio(PART, what, f"{1 + k} bare passes", best["ours"].cpu, best["bare"].cpu, 1.1)
        )
    return found


def one_temperature() -> Ratio:
    """Return what a temperature adds to a single answer, beside what it added in release 1.0.0rc1."""
    model, image, count = residual(3, 1, 10), torch.rand(1, 3, 32, 32), 100
    module = CalibratedModule(model, Plan(start=0.7))
    runs = {
        "bare": partial(passes, model, image, count),
        "ours": partial(passes, module, image, count),
    }
    best = take_turns(runs, 7)
    added = max(best["ours"].cpu - best["bare"].cpu, 0.0) / count
    return Ratio(PART, "one temperature, what a single answer takes longer", "0.8 ms, as it was", added, BEFORE_SECONDS,
                 before=1.0)  # fmt: skip


def ratios(small: bool) -> list[Ratio]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad():
        return [*with_views(small), one_temperature()]


if __name__ == "__main__":
    print("\n".join(table(ratios("--small" in sys.argv))))
