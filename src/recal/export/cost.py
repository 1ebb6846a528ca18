"""How long an exported file takes on this machine: the whole file, and the calibration alone."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from recal.export.calibration import Calibration
from recal.export.network import open_session
from recal.export.traced_calibration import calibration_model

_RUNS = 15


@dataclass(frozen=True)
class Cost:
    """Milliseconds for one row: the whole file (None if it holds no model), and the calibration alone."""

    whole: float | None
    calibration: float


def measure(path: str | os.PathLike[str], calibration: Calibration, n_classes: int, *, with_model: bool) -> Cost:
    """Return how long one row takes: the median of a few runs on one thread, with random inputs."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1, n_classes)).astype(np.float32) * 3
    feeds = {"logits": logits}
    if calibration.transforms:
        noise = rng.normal(size=(len(calibration.transforms), 1, n_classes)).astype(np.float32)
        feeds["transformed"] = logits + noise
    alone = _median(calibration_model(calibration, n_classes).SerializeToString(), feeds)
    return Cost(_median(os.fspath(path), None) if with_model else None, alone)


def _median(model: str | bytes, feeds: dict[str, Any] | None) -> float:
    session = open_session(model)
    if feeds is None:
        own = session.get_inputs()[0]
        kind = {"tensor(float)": "float32", "tensor(double)": "float64"}.get(own.type, own.type[7:-1])
        shape = [1, *(size if isinstance(size, int) else 1 for size in own.shape[1:])]
        feeds = {own.name: np.random.default_rng(0).random(shape).astype(kind)}
    session.run(None, feeds)  # the first run prepares
    times = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))
