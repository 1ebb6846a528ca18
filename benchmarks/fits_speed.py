"""The cost of fits next to scikit-learn and a bare sum: python -m benchmarks.fits_speed [--small]
[VIEWS.npz ...]

It uses made-up logits whose best temperature is close to 1 or far from it, and the real logits of
the given files.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from benchmarks.contestants import installed, of_probmetrics, of_sklearn
from benchmarks.measuring import bare_sum, made_up, real_views, take_turns
from benchmarks.ratios import Ratio, table
from recal import ReCal, TemperatureScaling, Views, ViewStacking
from recal.maps.guard import answer
from recal.maps.steps import calibrated_probs

SIZES = ((5000, 10), (5000, 100), (25_000, 1000))
# Factors for made-up logits; their best beta is divided by the same factor.
FAR = (0.001, 0.05, 50.0)


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


def temperatures(small: bool) -> list[Ratio]:
    found = []
    for n, k in SIZES[:2] if small else SIZES:
        logits, _, y = made_up(n, k)
        target = 0.05 if n * k > 1e7 else None
        found += _temperature(
            "One temperature, made-up logits", f"{n:,} x {k:,}", logits, y, target
        )
    n, k = (2000, 100) if small else (10_000, 1000)
    logits, _, y = made_up(n, k)
    for factor in FAR:
        scaled = logits * np.float32(factor)
        best = take_turns(
            {"recal": lambda z=scaled: TemperatureScaling().fit(z, y), "bare": bare_sum(scaled)}, 3
        )
        found.append(
            Ratio("One temperature far from 1", f"logits times {factor:g}, {n:,} x {k:,}", "a bare sum",
                  best["recal"].cpu, best["bare"].cpu, 36.0, 84.0)
        )  # fmt: skip
    return found


def real_temperatures(paths: Iterable[Path]) -> list[Ratio]:
    found = []
    for name, views in real_views(paths):
        what = f"{name}, {views.n_samples:,} x {views.n_classes:,}"
        logits, labels = np.array(views.logits), np.asarray(views.labels)
        found += _temperature("One temperature, real logits", what, logits, labels, None)
    return found


def _temperature(
    part: str, what: str, logits: np.ndarray, y: np.ndarray, target: float | None
) -> list[Ratio]:
    others = installed(
        {
            "scikit-learn": of_sklearn,
            "probmetrics": lambda: of_probmetrics("TemperatureScalingCalibrator"),
        }
    )
    contestants: dict[str, Callable[[], Any]] = {
        "recal": lambda: TemperatureScaling().fit(logits, y),
        "a bare sum": bare_sum(logits),
        "plain numpy": lambda: numpy_temperature(logits, y),
        **{name: lambda fit=fit: fit(logits, y) for name, fit in others.items()},
    }
    # Do not repeat fits that take seconds: smaller sizes have already loaded the compiled code.
    large = logits.size > 1e7
    best = take_turns(contestants, 1 if large else 2 if logits.size > 1e6 else 7, warm_up=not large)
    return [
        Ratio(part, what, name, best["recal"].cpu, best[name].cpu, target if name == "scikit-learn" else None)
        for name in best if name != "recal"
    ]  # fmt: skip


def whole_fits(small: bool) -> list[Ratio]:
    """200 iterations of ReCal over 20 views, and a fit of ViewStacking, beside one temperature of
    scikit-learn.
    """
    found = []
    for n, k in SIZES[:2] if small else SIZES:
        logits, views, y = made_up(n, k, 20)
        sample = Views(logits, views, y)
        contestants: dict[str, Callable[[], Any]] = {
            "ReCal": lambda s=sample: ReCal(random_state=0, tol=0).fit(s),
            **({"ViewStacking": lambda s=sample: ViewStacking().fit(s)} if n * k < 1e7 else {}),
        }
        for name, fit in installed({"scikit-learn": of_sklearn}).items():
            contestants[name] = lambda fit=fit, z=logits, y=y: fit(z, y)
        best = take_turns(contestants, 2 if n * k < 1e7 else 1, warm_up=n * k < 1e7)
        found += [
            Ratio("Fits with 20 views", f"{name}, {n:,} x {k:,}, 20 views", "one temperature of scikit-learn",
                  best[name].cpu, best["scikit-learn"].cpu, 1.0 if n * k > 1e7 else None, 0.68 if n * k > 1e7 else None)
            for name in best if name != "scikit-learn" and "scikit-learn" in best
        ]  # fmt: skip
    return found


def replays(small: bool) -> list[Ratio]:
    """A plan of 50 steps for one sample and for many, and of 12 views at 1,000 classes."""
    logits, views, y = made_up(5000, 10, 20)
    sample = Views(logits, views, y)
    plan = ReCal(random_state=0, tol=0, max_iter=50).fit(sample).plan_
    stack = [sample.transformed(t)[:1] for t in plan.transforms]
    one = np.ascontiguousarray(logits[:1])
    walls = []
    for _ in range(1000):
        begin = time.perf_counter()
        answer(plan, one, stack, kept=True)
        walls.append(time.perf_counter() - begin)
    part = "Answers of ReCal"
    found = [
        Ratio(
            part,
            "one sample, 10 classes, 50 steps, wall",
            "50 microseconds",
            float(np.median(walls)),
            50e-6,
        )
    ]
    n = 100_000 if small else 1_000_000
    index = np.random.default_rng(0).integers(0, 5000, n)
    many = Views(logits[index], {t: sample.transformed(t)[index] for t in plan.transforms})
    cpu = take_turns({"replay": lambda: calibrated_probs(plan, many)}, 2)["replay"].cpu
    found.append(
        Ratio(part, f"{n:,} x 10, 50 steps", "2 s for a million", cpu, 2.0 * n / 1e6, 1.0, 0.94)
    )
    n, k = (1000, 100) if small else (10_000, 1000)
    logits, views, y = made_up(n, k, 12)
    sample = Views(logits, views, y)
    fitted = ReCal(random_state=0, tol=0, max_iter=60).fit(sample)
    contestants = {
        "ReCal": lambda: fitted.predict_proba(sample),
        "ts": lambda: TemperatureScaling().fit(sample),
    }
    best = take_turns(contestants, 2)
    what = f"predict_proba, {n:,} x {k:,}, {len(fitted.plan_.transforms)} views, 60 steps"
    return [
        *found,
        Ratio(part, what, "one fit of TemperatureScaling", best["ReCal"].cpu, best["ts"].cpu),
    ]


def ratios(small: bool, paths: Iterable[Path] = ()) -> Iterator[Ratio]:
    """Yield the ratios on made-up logits, or on those of these files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if paths:
            yield from real_temperatures(paths)
            return
        yield from temperatures(small)
        yield from replays(small)
        yield from whole_fits(small)


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:] if name != "--small"]
    print("\n".join(table(ratios("--small" in sys.argv, files))))
