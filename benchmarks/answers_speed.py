"""Cost of an answer and a fit next to other libraries: python -m benchmarks.answers_speed [--small]
[VIEWS.npz ...]

Methods answer made-up logits in float32, or the real logits of the given files: they are fitted on
every second row and answer the others. Each pair of contestants takes turns in one process.
"""

from __future__ import annotations

import sys
import warnings
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
from benchmarks.measuring import made_up, real_views, take_turns
from benchmarks.ratios import Ratio, table
from recal import TemperatureScaling, calibrators

# Each method of recal, and the other libraries that have it.
METHODS: dict[str, tuple[type[calibrators.Calibrator], dict[str, Callable[[], Fit]]]] = {
    "ts": (
        TemperatureScaling,
        {
            "a float32 softmax in numpy": lambda: of_numpy,
            "scikit-learn": of_sklearn,
            "probmetrics": partial(of_probmetrics, "TemperatureScalingCalibrator"),
        },
    ),
    "ets": (
        calibrators.EnsembleTemperatureScaling,
        {"probmetrics": partial(of_probmetrics, "ETSCalibrator")},
    ),
    "vs": (
        calibrators.VectorScaling,
        {"probmetrics": partial(of_probmetrics, "VectorScalingCalibrator")},
    ),
    "svs": (
        calibrators.StructuredVectorScaling,
        {"probmetrics": partial(of_probmetrics, "SVSCalibrator")},
    ),
    "sms": (
        calibrators.StructuredMatrixScaling,
        {"probmetrics": partial(of_probmetrics, "SMSCalibrator")},
    ),
    "histogram": (calibrators.HistogramBinning, {"netcal": of_netcal}),
}
ANSWERS = ((10, 10), (10_000, 10), (10_000, 100), (10_000, 1000))
FITS = {
    "ets": (5000, 10),
    "vs": (5000, 100),
    "svs": (5000, 100),
    "sms": (5000, 100),
    "histogram": (25_000, 100),
}
# Ratios of release 1.0.0rc1, measured separately.
BEFORE = {
    ("ts", 1000, "a float32 softmax in numpy"): 5.9,
    ("ts", 1000, "scikit-learn"): 8.2,
    ("ts", 1000, "probmetrics"): 5.8,
}
BEFORE_FIT = {"ets": 3.6, "histogram": 2.5}


def answers(small: bool) -> list[Ratio]:
    found = []
    for method, (build, others) in METHODS.items():
        # With 1,000 classes, fits of the other methods take minutes, both ours and the peers'.
        for n, k in ANSWERS[:2] if small else ANSWERS if method == "ts" else ANSWERS[:3]:
            logits, _, labels = made_up(n + 2000, k)
            contestants = {"recal": ours(build()), **installed(others)}
            predict = {name: fit(logits[:2000], labels[:2000]) for name, fit in contestants.items()}
            part, what = "Answers: predict_proba", f"{method}, {n:,} x {k:,}"
            before = {
                name: BEFORE[method, k, name] for name in predict if (method, k, name) in BEFORE
            }
            found += _beside(part, what, predict, logits[2000:], before)
    return found


def real_answers(paths: Sequence[Path]) -> list[Ratio]:
    found = []
    for file, views in real_views(paths):
        logits, labels = np.array(views.logits), np.asarray(views.labels)
        # With 1,000 classes, fits of the other methods take minutes, both ours and the peers'.
        for method in ("ts", "vs") if views.n_classes <= 200 else ("ts",):
            build, others = METHODS[method]
            contestants = {"recal": ours(build()), **installed(others)}
            predict = {name: fit(logits[::2], labels[::2]) for name, fit in contestants.items()}
            asked = np.ascontiguousarray(logits[1::2])
            what = f"{method}, {file}, {len(asked):,} x {views.n_classes:,}"
            found += _beside("Answers on real logits", what, predict, asked, {})
    return found


def _beside(
    part: str,
    what: str,
    predict: dict[str, Callable[..., object]],
    logits: np.ndarray,
    before: dict[str, float],
) -> list[Ratio]:
    times = max(1, 30_000 // logits.size)
    best = take_turns({name: _repeated(each, logits, times) for name, each in predict.items()}, 7)
    return [
        Ratio(
            part,
            what,
            name,
            best["recal"].cpu / times,
            best[name].cpu / times,
            1.0,
            before.get(name),
        )
        for name in best
        if name != "recal"
    ]


def _repeated(
    predict: Callable[[np.ndarray], object], logits: np.ndarray, times: int
) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            predict(logits)

    return run


def fits(small: bool) -> list[Ratio]:
    found = []
    for method, (n, k) in FITS.items():
        n = n // 5 if small else n
        build, others = METHODS[method]
        logits, _, labels = made_up(n, k)
        contestants = {"recal": ours(build()), **installed(others)}
        best = take_turns(
            {name: partial(fit, logits, labels) for name, fit in contestants.items()}, 3
        )
        found += [
            Ratio("Fits of other methods", f"{method}, {n:,} x {k:,}", name, best["recal"].cpu, best[name].cpu, 1.0,
                  BEFORE_FIT.get(method))
            for name in best if name != "recal"
        ]  # fmt: skip
    return found


def ratios(small: bool, paths: Sequence[Path] = ()) -> Iterator[Ratio]:
    """Yield the ratios on made-up logits, or on those of these files."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # there are few samples for many classes, but only speed matters here
        if paths:
            yield from real_answers(paths)
            return
        yield from answers(small)
        yield from fits(small)


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:] if name != "--small"]
    print("\n".join(table(ratios("--small" in sys.argv, files))))
