"""What calibration costs at run time: CalibratedModule with k views against 1 + k bare forward passes.

Run it with ``python -m benchmarks.torch_runtime``. CPU seconds of one thread, the two interleaved, best of several
rounds; the target is a ratio of at most 1.1.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from recal import CalibratedModule, Plan, Step, pool
from recal.runtime.torch.replay import Replay


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


def cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def plan_for(specs: str, n_steps: int) -> Plan:
    rng = np.random.default_rng(0)
    transforms = pool(specs)
    steps = [Step(t, tuple(rng.uniform(0.7, 1.2, 4))) for t in transforms]  # type: ignore[arg-type]
    while len(steps) < n_steps:
        steps.append(Step(transforms[rng.integers(len(transforms))], tuple(rng.uniform(0.7, 1.2, 4))))  # type: ignore[arg-type]
    return Plan(tuple(steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases = [
        ("residual 3 blocks, 32 x 32, 10 classes", residual(3, 1, 10), (32, 3, 32, 32), "zoom:0.5-0.9:4", 50),
        ("residual 3 blocks, 32 x 32, 10 classes", residual(3, 1, 10), (32, 3, 32, 32), "zoom:0.1-0.9:10", 50),
        ("residual 3 blocks, 32 x 32, 10 classes", residual(3, 1, 10), (1, 3, 32, 32), "zoom:0.5-0.9:4", 50),
        ("residual 9 blocks, 32 x 32, 100 classes", residual(9, 1, 100), (32, 3, 32, 32), "zoom+brightness", 50),
        ("residual 9 blocks, 224 x 224, 1000 classes", residual(9, 4, 1000), (8, 3, 224, 224), "zoom:0.5-0.9:4", 50),
    ]
    print(f"{'model':<44} {'batch':>5} {'k':>3} {'bare s':>8} {'ours s':>8} {'replay s':>8} {'ratio':>6}")
    for name, model, shape, specs, n_steps in cases:
        plan = plan_for(specs, n_steps)
        module, images, k = CalibratedModule(model, plan), torch.rand(shape), len(plan.transforms)
        replay = Replay(plan)
        with torch.no_grad():
            stack = torch.stack([model(images)] * (1 + k))
            module(images)
            bare, ours, alone = [], [], []
            for _ in range(rounds):
                bare.append(cpu_seconds(lambda: [model(images) for _ in range(1 + k)]))  # noqa: B023
                ours.append(cpu_seconds(lambda: module(images)))  # noqa: B023
                alone.append(cpu_seconds(lambda: replay(stack[0], stack[1:])))  # noqa: B023
        best = min(bare), min(ours), min(alone)
        print(f"{name:<44} {shape[0]:>5} {k:>3} {best[0]:8.3f} {best[1]:8.3f} {best[2]:8.3f} {best[1] / best[0]:6.2f}")


if __name__ == "__main__":
    main()
