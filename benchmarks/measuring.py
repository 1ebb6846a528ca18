"""Fair measurements: contestants take turns in one process, and the smallest of several CPU times
counts.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from recal import Views, read_views
from recal.engine.compiled import over_rows
from recal.errors import FileError, InputError


@dataclass
class Timing:
    """CPU and wall seconds of the best of several turns, and what the last one returned."""

    cpu: float
    wall: float
    result: Any


def take_turns(
    contestants: dict[str, Callable[[], Any]], turns: int = 3, warm_up: bool = True
) -> dict[str, Timing]:
    """Run every contestant `turns` times, one after the other in each round."""
    if warm_up:
        for run in contestants.values():
            run()
    best: dict[str, Timing] = {}
    for _ in range(turns):
        for name, run in contestants.items():
            gc.collect()
            cpu, wall = time.process_time(), time.perf_counter()
            result = run()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            if name not in best or cpu < best[name].cpu:
                best[name] = Timing(cpu, wall, result)
    return best


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Return p of the power law seconds ~ size**p, by least squares in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def made_up(n_samples: int, n_classes: int, n_views: int = 0, seed: int = 0):
    """Return (logits, {spec: logits}, labels) of an over-confident made-up model in float32."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n_samples)
    rows = np.arange(n_samples)
    evidence = rng.standard_normal((n_samples, n_classes), dtype=np.float32)
    evidence[rows, y] += (
        1.0 + 0.5 * np.log(n_classes) + 1.5 * rng.standard_normal(n_samples).astype(np.float32)
    )
    evidence *= 2.2
    views = {}
    for i in range(n_views):
        keep = np.float32(0.4 + 0.55 * i / n_views)
        noise = rng.standard_normal((n_samples, n_classes), dtype=np.float32)
        views[f"zoom:{0.1 + 0.01 * i:.2f}"] = evidence * keep + noise * (2 * (1 - keep))
    wrong = rng.random(n_samples) < 0.1
    y[wrong] = rng.integers(0, n_classes, int(wrong.sum()))
    return evidence, views, y


def real_views(paths: Iterable[Path]) -> Iterator[tuple[str, Views]]:
    """Yield name and views of the files that hold labelled views; others are named and left out."""
    for path in paths:
        try:
            views = read_views(path)
        except (FileError, InputError) as error:
            print(
                f"{path.name} is left out: it is no file of views ({type(error).__name__})",
                file=sys.stderr,
            )
            continue
        if views.labels is None:
            print(f"{path.name} is left out: it holds no labels", file=sys.stderr)
        else:
            yield path.stem, views


@njit(nogil=True, fastmath=True)
def _bare(values, start, stop, out):
    for i in range(start, stop):
        total = np.float32(0)
        for j in range(values.shape[1]):
            total += values[i, j]
        out[i] = total


def bare_sum(values: np.ndarray) -> Callable[[], None]:
    """The physical limit: add up every value once."""
    out = np.empty(len(values))
    return lambda: over_rows(_bare, values, out)
