"""What an exported file costs here, measured: the whole of it, and the calibration alone."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from recal.export.heads import Head, head_model
from recal.export.rows import open_session

_RUNS = 15


@dataclass(frozen=True)
class Cost:
    """Milliseconds of one answer: of the whole file, None where it holds no model, and of the calibration alone."""

    whole: float | None
    calibration: float


def measure(path: str | os.PathLike[str], head: Head, n_classes: int, *, with_model: bool) -> Cost:
    """Return what one answer costs on this machine, the median of some runs on one thread.

    Inputs are random: views that differ, logits of middling confidence.
    """
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1, n_classes)).astype(np.float32) * 3
    feeds = {"logits": logits}
    if head.transforms:
        noise = rng.normal(size=(len(head.transforms), 1, n_classes)).astype(np.float32)
        feeds["transformed"] = logits + noise
    calibration = _median(head_model(head, n_classes).SerializeToString(), feeds)
    return Cost(_median(os.fspath(path), None) if with_model else None, calibration)


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
        begun = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - begun)
    return 1000 * float(np.median(times))
