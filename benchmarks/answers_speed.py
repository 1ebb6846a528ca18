"""Cost of an answer and a fit next to other libraries.

    python -m benchmarks.answers_speed [--small] [VIEWS.npz ...]

Methods answer made-up logits in float32, or the real logits of the given files: they are fitted on
every second row and answer the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.contestants import (
    Fit,
    installed,
    of_netcal,
    of_numpy,
    of_probmetrics,
    of_sklearn,
    ours,
)
from benchmarks.measuring import Ratio, beside_recal, made_up, real_views, show
from recal.calibrators import find_method

# Methods of recal, and the other libraries that have them.
PEERS: dict[str, dict[str, Callable[[], Fit]]] = {
    "ts": {
        "a float32 softmax in numpy": lambda: of_numpy,
        "scikit-learn": of_sklearn,
        "probmetrics": partial(of_probmetrics, "TemperatureScalingCalibrator"),
    },
    "ets": {"probmetrics": partial(of_probmetrics, "ETSCalibrator")},
    "vs": {"probmetrics": partial(of_probmetrics, "VectorScalingCalibrator")},
    "svs": {"probmetrics": partial(of_probmetrics, "SVSCalibrator")},
    "sms": {"probmetrics": partial(of_probmetrics, "SMSCalibrator")},
    "histogram": {"netcal": of_netcal},
}


def contestants(method: str) -> dict[str, Fit]:
    return {"recal": ours(find_method(method)[0]()), **installed(PEERS[method])}


def answers(
    part: str, what: str, method: str, known: tuple[np.ndarray, np.ndarray], asked: np.ndarray
) -> list[Ratio]:
    """Fit every contestant on the known rows and measure its answers for the others."""
    times = max(1, 30_000 // asked.size)

    def repeat(predict: Callable[[np.ndarray], object]) -> None:
        for _ in range(times):
            predict(asked)

    fitted = {name: fit(*known) for name, fit in contestants(method).items()}
    runs = {name: partial(repeat, predict) for name, predict in fitted.items()}
    return beside_recal(part, what, runs, turns=7)


def ratios(small: bool, paths: Sequence[Path] = ()) -> Iterator[Ratio]:
    """Yield the ratios on made-up logits, or on those of these files."""
    # With 1,000 classes, fits of other methods than ts take minutes, both ours and the peers'.
    for file, views in real_views(paths):
        logits, labels = np.array(views.logits), np.asarray(views.labels)
        asked = np.ascontiguousarray(logits[1::2])
        for method in ("ts", "vs") if views.n_classes <= 200 else ("ts",):
            what = f"{method}, {file}, {len(asked):,} x {views.n_classes:,}"
            known = logits[::2], labels[::2]
            yield from answers("Answers on real logits", what, method, known, asked)
    if paths:
        return
    for method in PEERS:
        sizes = ((10, 10), (10_000, 10), (10_000, 100), (10_000, 1000))
        for n, k in sizes[:2] if small else sizes[: 4 if method == "ts" else 3]:
            views = made_up(n + 2000, k)
            known = views.logits[:2000], views.labels[:2000]
            what = f"{method}, {n:,} x {k:,}"
            yield from answers("Answers: predict_proba", what, method, known, views.logits[2000:])
    for method in PEERS:
        if method == "ts":  # see fits_speed
            continue
        n, k = (1000, 10) if small else (5000, 10 if method == "ets" else 100)
        views = made_up(n, k)
        runs = {
            name: partial(fit, views.logits, views.labels)
            for name, fit in contestants(method).items()
        }
        yield from beside_recal("Fits of other methods", f"{method}, {n:,} x {k:,}", runs)


if __name__ == "__main__":
    show(ratios, __doc__)
