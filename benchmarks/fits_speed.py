"""The cost of fits next to scikit-learn, other libraries and a bare sum.

    python -m benchmarks.fits_speed [--small] [VIEWS.npz ...]

It uses made-up logits whose best temperature is close to 1 or far from it, and the real logits of
the given files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from benchmarks.contestants import installed, of_probmetrics, of_sklearn
from benchmarks.measuring import (
    Ratio,
    bare_sum,
    beside_recal,
    made_up,
    real_views,
    show,
    take_turns,
)
from recal import AutoCalibration, ReCal, TemperatureScaling, Views, ViewStacking

SIZES = ((5000, 10), (5000, 100), (25_000, 1000))


def numpy_temperature(logits: np.ndarray, y: np.ndarray) -> float:
    """Newton's method as one would write it in numpy."""
    z, beta = logits.astype(np.float64), 1.0
    drops = z - z.max(axis=1, keepdims=True)
    for _ in range(20):
        p = softmax(beta * drops, axis=1)
        mean = (p * drops).sum(1)
        slope = (mean - drops[np.arange(len(y)), y]).sum()
        step = slope / ((p * drops**2).sum(1) - mean**2).sum()
        beta = max(beta - step, beta / 2)
        if abs(step) < 1e-9:
            break
    return beta


def temperature(part: str, what: str, logits: np.ndarray, y: np.ndarray) -> list[Ratio]:
    others = {
        "scikit-learn": of_sklearn,
        "probmetrics": partial(of_probmetrics, "TemperatureScalingCalibrator"),
    }
    contestants: dict[str, Callable[[], Any]] = {
        "recal": lambda: TemperatureScaling().fit(logits, y),
        "a bare sum": bare_sum(logits),
        "plain numpy": lambda: numpy_temperature(logits, y),
        **{name: partial(fit, logits, y) for name, fit in installed(others).items()},
    }
    # Do not repeat fits that take seconds: smaller sizes have already loaded the compiled code.
    if logits.size > 1e7:
        return beside_recal(part, what, contestants, turns=1, warm_up=False)
    return beside_recal(part, what, contestants, turns=2 if logits.size > 1e6 else 7)


def temperatures(small: bool) -> Iterator[Ratio]:
    for n, k in SIZES[:2] if small else SIZES:
        views = made_up(n, k)
        part = "One temperature, made-up logits"
        yield from temperature(part, f"{n:,} x {k:,}", views.logits, views.labels)
    n, k = (2000, 100) if small else (10_000, 1000)
    views = made_up(n, k)
    for factor in (0.001, 0.05, 50.0):  # the best beta is divided by the same factor
        logits = views.logits * np.float32(factor)
        runs = {
            "recal": partial(TemperatureScaling().fit, logits, views.labels),
            "a bare sum": bare_sum(logits),
        }
        what = f"logits times {factor:g}, {n:,} x {k:,}"
        yield from beside_recal("One temperature far from 1", what, runs)


def fits_with_views(small: bool) -> Iterator[Ratio]:
    """200 iterations of ReCal over 20 views, ViewStacking and the default, beside one temperature
    of scikit-learn.
    """
    for n, k in SIZES[:2] if small else SIZES:
        sample = made_up(n, k, 20)
        large = n * k > 1e7
        peer = installed({"scikit-learn": of_sklearn})
        runs: dict[str, Callable[[], Any]] = {
            name: partial(fit, sample.logits, sample.labels) for name, fit in peer.items()
        }
        runs["ReCal"] = lambda s=sample: ReCal(random_state=0, tol=0).fit(s)
        if not large:
            runs["ViewStacking"] = lambda s=sample: ViewStacking().fit(s)
            runs["AutoCalibration"] = lambda s=sample: AutoCalibration().fit(s)
        best = take_turns(runs, 1 if large else 2, warm_up=not large)
        theirs = best.pop("scikit-learn", None)
        for name, ours in best.items() if theirs else ():
            what = f"{name}, {n:,} x {k:,}, 20 views"
            beside = "one temperature of scikit-learn"
            yield Ratio("Fits with 20 views", what, beside, ours, theirs)


def recal_answers(small: bool) -> Iterator[Ratio]:
    """A plan of 50 steps for one sample and for many, and of 12 views at 1,000 classes."""
    part = "Answers of ReCal"
    sample = made_up(5000, 10, 20)
    fitted = ReCal(random_state=0, tol=0, max_iter=50).fit(sample)
    one = sample[:1]
    walls = []
    for _ in range(1000):
        begin = time.perf_counter()
        fitted.predict_proba(one)
        walls.append(time.perf_counter() - begin)
    wall = float(np.median(walls))
    yield Ratio(part, "one sample, 10 classes, 50 steps, wall", "1 ms", wall, 1e-3)
    n = 100_000 if small else 1_000_000
    index = np.random.default_rng(0).integers(0, 5000, n)
    transforms = fitted.plan_.transforms
    many = Views(sample.logits[index], {t: sample.transformed(t)[index] for t in transforms})
    cpu = take_turns({"recal": lambda: fitted.predict_proba(many)}, 2)["recal"]
    yield Ratio(part, f"{n:,} x 10, 50 steps", "2 s for a million", cpu, 2.0 * n / 1e6)
    n, k = (1000, 100) if small else (10_000, 1000)
    sample = made_up(n, k, 12)
    fitted = ReCal(random_state=0, tol=0, max_iter=60).fit(sample)
    runs = {
        "recal": lambda: fitted.predict_proba(sample),
        "one fit of TemperatureScaling": lambda: TemperatureScaling().fit(sample),
    }
    what = f"predict_proba, {n:,} x {k:,}, {len(fitted.plan_.transforms)} views, 60 steps"
    yield from beside_recal(part, what, runs, turns=2)


def ratios(small: bool, paths: Sequence[Path] = ()) -> Iterator[Ratio]:
    """Yield the ratios on made-up logits, or on those of these files."""
    for name, views in real_views(paths):
        what = f"{name}, {views.n_samples:,} x {views.n_classes:,}"
        logits, labels = np.array(views.logits), np.asarray(views.labels)
        yield from temperature("One temperature, real logits", what, logits, labels)
    if not paths:
        yield from temperatures(small)
        yield from recal_answers(small)
        yield from fits_with_views(small)


if __name__ == "__main__":
    show(ratios, __doc__)
