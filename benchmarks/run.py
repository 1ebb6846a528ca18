"""Speed, beside the peers and the physical limit: `make bench`.

    python -m benchmarks.run --out docs/benchmarks [--small] [--disk]

Every table holds contestants that took turns in one process; ratios are of CPU seconds. `--disk` adds the fit of
100,000 x 1,000 logits through a zarr folder of 8 GB, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import njit
from scipy.optimize import brentq
from scipy.special import softmax

from benchmarks.measuring import Timing, exponent, made_up, take_turns
from benchmarks.page import write_page
from recal import ReCal, TemperatureScaling, Views, ViewStacking, metrics
from recal.calibrators.machinery.common_scale import fit_temperature
from recal.engine.kernels.threads import over_rows
from recal.engine.replay import calibrate_arrays, calibrated_scales
from recal.engine.scaled import ScaledLogits

SIZES = [(5000, 10), (5000, 100), (25000, 1000)]


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


def root(logits: np.ndarray, y: np.ndarray, near: float) -> float:
    """The best beta in float64, by scipy's root finder: what every contestant is measured against."""
    z = logits.astype(np.float64)
    z -= z.max(axis=1, keepdims=True)
    truth = z[np.arange(len(y)), y]
    return float(
        brentq(lambda b: ((softmax(b * z, axis=1) * z).sum(1) - truth).mean(), near - 0.01, near + 0.01, xtol=1e-13)
    )


def peers(logits: np.ndarray, y: np.ndarray) -> dict[str, Callable[[], float]]:
    """One temperature fit by each library that is installed; each returns its beta."""
    found: dict[str, Callable[[], float]] = {}
    try:
        from sklearn.calibration import _TemperatureScaling

        found["scikit-learn"] = lambda: float(_TemperatureScaling().fit(logits, y).beta_)
    except ImportError:
        pass
    try:
        import torch
        from probmetrics.calibrators import TemperatureScalingCalibrator
        from probmetrics.distributions import CategoricalLogits

        def probmetrics_fit() -> float:
            calibrator = TemperatureScalingCalibrator()
            calibrator.fit_torch(CategoricalLogits(torch.as_tensor(logits)), torch.as_tensor(y))
            given = torch.as_tensor(logits[:1])
            out = calibrator.predict_proba_torch(CategoricalLogits(given)).get_logits()
            return float((out.max() - out.min()) / (given.max() - given.min()))

        probmetrics_fit()
        found["probmetrics"] = probmetrics_fit
    except Exception as error:  # a peer that is missing or has changed must not stop the others
        print(f"probmetrics is left out: {type(error).__name__}: {error}", file=sys.stderr)
    return found


def temperatures(sizes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    rows = []
    for n, k in sizes:
        logits, _, y = made_up(n, k)
        contestants: dict[str, Callable[[], Any]] = {
            "a bare sum": bare_sum(logits),
            "recal": lambda z=logits, y=y: TemperatureScaling().fit(z, y).beta_,
            "plain numpy": lambda z=logits, y=y: numpy_temperature(z, y),
            **peers(logits, y),
        }
        best = take_turns(contestants, 2 if n * k > 1e6 else 7)
        true = root(logits, y, best["plain numpy"].result)
        rows += [
            entry(f"{n} x {k}", name, t, best["recal"], error=None if t.result is None else abs(t.result - true))
            for name, t in best.items()
        ]
    return rows


def passes(n: int, k: int) -> dict[str, Any]:
    """How often one temperature reads the logits, and what a reading costs beside a bare sum."""
    logits, _, y = made_up(n, k)
    state, ones = ScaledLogits(logits), np.ones(n)
    contestants = {
        "bare": bare_sum(logits),
        "float64": lambda: state.slopes(ones),
    }
    best = take_turns(contestants, 9)
    counts = {"float64": fit_temperature(logits, y).passes}
    return {
        "size": f"{n} x {k}",
        "rows": [{"kind": kind, "passes": counts[kind], "ratio": best[kind].cpu / best["bare"].cpu} for kind in counts],
    }


def entry(size: str, name: str, timing: Timing, reference: Timing, **more: Any) -> dict[str, Any]:
    return {
        "size": size, "who": name, "cpu": timing.cpu, "wall": timing.wall, "ratio": timing.cpu / reference.cpu, **more
    }  # fmt: skip


def whole_fits(sizes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """200 iterations over 20 views, beside one temperature fit of scikit-learn on the same logits."""
    rows = []
    for n, k in sizes:
        logits, views, y = made_up(n, k, 20)
        sample = Views(logits, views, y)
        contestants: dict[str, Callable[[], Any]] = {
            "recal, the whole fit": lambda s=sample: ReCal(random_state=0, tol=0).fit(s),
            "recal, one temperature": lambda s=sample: TemperatureScaling().fit(s),
        }
        if "scikit-learn" in (others := peers(logits, y)):
            contestants["scikit-learn, one temperature"] = others["scikit-learn"]
        best = take_turns(contestants, 3)
        rows += [entry(f"{n} x {k} x 20", name, t, best["recal, the whole fit"]) for name, t in best.items()]
    return rows


def stacks(small: bool) -> list[dict[str, Any]]:
    """A whole fit of ViewStacking, its choice of views included."""
    rows = []
    for n, k, n_views in [(5000, 10, 30)] if small else [(5000, 10, 30), (5000, 1000, 8)]:
        logits, views, y = made_up(n, k, n_views)
        sample = Views(logits, views, y)
        run = lambda s=sample: ViewStacking(random_state=0).fit(s)  # noqa: E731
        rows.append({"what": f"{n} x {k} x {n_views}", "cpu": take_turns({"fit": run}, 2)["fit"].cpu})
    return rows


def growth(small: bool) -> list[dict[str, Any]]:
    """How the cost of a fit grows in each dimension, the others fixed: ReCal's, and that of stacking."""
    base = {"samples": 2000, "classes": 100, "views": 10, "iterations": 50}
    axes = {
        "samples": [1000, 2000, 4000, 8000, 16000],
        "classes": [50, 100, 200, 400, 800],
        "views": [2, 5, 10, 20, 40],
        "iterations": [25, 50, 100, 200],
    }
    rows = []
    for who in ("ReCal", "ViewStacking"):
        for axis, values in axes.items():
            if who == "ViewStacking" and axis == "iterations":
                continue
            seconds = []
            for value in values[: 3 if small else None]:
                size = {**base, axis: value}
                logits, views, y = made_up(size["samples"], size["classes"], size["views"])
                sample = Views(logits, views, y)
                seconds.append(take_turns({"fit": _fit_of(who, sample, size["iterations"])}, 3)["fit"].cpu)
            sizes = values[: len(seconds)]
            rows.append(
                {"who": who, "axis": axis, "sizes": sizes, "cpu": seconds, "exponent": exponent(sizes, seconds)}
            )
    return rows


def _fit_of(who: str, sample: Views, iterations: int) -> Callable[[], Any]:
    if who == "ViewStacking":
        return lambda: ViewStacking(random_state=0).fit(sample)
    return lambda: ReCal(random_state=0, tol=0, max_iter=iterations).fit(sample)


def replays(small: bool) -> list[dict[str, Any]]:
    """A 50-step plan for one sample, and for a million."""
    logits, views, y = made_up(5000, 10, 20)
    sample = Views(logits, views, y)
    plan = ReCal(random_state=0, tol=0, max_iter=50).fit(sample).plan_
    stack = np.stack([sample.transformed(t)[:1] for t in plan.transforms])
    one = np.ascontiguousarray(logits[:1])
    calibrate_arrays(plan, one, stack)
    walls = []
    for _ in range(2000):
        begin = time.perf_counter()
        calibrate_arrays(plan, one, stack)
        walls.append(time.perf_counter() - begin)
    n = 100_000 if small else 1_000_000
    index = np.random.default_rng(0).integers(0, 5000, n)
    many = Views(logits[index], {t: sample.transformed(t)[index] for t in plan.transforms})
    best = take_turns({"replay": lambda: calibrated_scales(plan, many), "bare": bare_sum(many.logits)}, 2)
    return [
        {"what": "one sample, 10 classes, 50 steps: median wall", "seconds": float(np.median(walls)), "target": 50e-6},
        {"what": f"{n:,} x 10, 50 steps: CPU", "seconds": best["replay"].cpu, "target": 2.0 * n / 1_000_000},
    ]


def ece_speed(small: bool) -> list[dict[str, Any]]:
    n = 100_000 if small else 1_000_000
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(10), n).astype(np.float32)
    y = rng.integers(0, 10, n)

    def four_lines() -> float:
        confidence, correct = probs.max(1), probs.argmax(1) == y
        bins = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
        sums = np.bincount(bins, weights=correct - confidence.astype(float), minlength=15)
        return float(np.abs(sums).sum() / n)

    contestants = {
        "a bare sum": bare_sum(probs),
        "recal": lambda: metrics.ece(probs, y),
        "four lines of numpy": four_lines,
    }
    best = take_turns(contestants, 5)
    return [entry(f"{n:,} x 10", name, t, best["recal"]) for name, t in best.items()]


def start_up() -> list[dict[str, Any]]:
    """CPU seconds of processes from start to end, beside an interpreter that only imports numpy."""

    def cpu(*command: str, cache: str | None = None) -> float:
        environment = {**os.environ, **({"NUMBA_CACHE_DIR": cache} if cache else {})}
        before = os.times()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=environment)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    def fit(n_classes: int) -> str:
        # Sharp logits, so that the rule for ties is compiled too.
        return (
            f"import numpy as np; from recal import ReCal, Views; r = np.random.default_rng(0); k = {n_classes};"
            "y = r.integers(0, k, 999); z = (r.normal(size=(999, k)) * 9 + 9 * np.eye(k)[y]).astype('f4');"
            "v = Views(z, {'zoom:0.5': z * np.float32(0.9)}, y); c = ReCal(random_state=0, max_iter=20, tol=0).fit(v)"
        )

    answer = fit(10) + "; c.predict_proba(v)"
    numpy_alone = min(cpu("-c", "import numpy") for _ in range(3))
    with tempfile.TemporaryDirectory() as fresh, tempfile.TemporaryDirectory() as other:
        first, second = cpu("-c", fit(10), cache=fresh), min(cpu("-c", fit(10), cache=fresh) for _ in range(3))
        answered, again = cpu("-c", answer, cache=fresh), cpu("-c", answer, cache=fresh)
        wide, wide_again = cpu("-c", fit(1000), cache=other), cpu("-c", fit(1000), cache=other)
    return [
        {
            "what": "import recal, beyond numpy",
            "seconds": max(min(cpu("-c", "import recal") for _ in range(3)) - numpy_alone, 0.0),
            "target": 0.3,
        },
        {"what": "recal --help", "seconds": min(cpu("-m", "recal", "--help") for _ in range(3)), "target": 0.5},
        {"what": "first fit after installing: compilation", "seconds": first - second, "target": 2.0},
        {"what": "the same with 1,000 classes", "seconds": wide - wide_again, "target": 2.0},
        {"what": "first answer of a ReCal after that: compilation", "seconds": answered - again},
        {"what": "first fit in a new process, beyond numpy", "seconds": second - numpy_alone},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--small", action="store_true", help="a minute's trial of everything on small sizes")
    parser.add_argument("--disk", action="store_true", help="add the fit through a zarr folder (8 GB of disk)")
    arguments = parser.parse_args()
    sizes = SIZES[:2] if arguments.small else SIZES
    results: dict[str, Any] = {
        "machine": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "numba": numba.__version__,
            "cores": os.cpu_count(),
        },
        "small": arguments.small,
    }
    parts: dict[str, Callable[[], Any]] = {
        "temperature": lambda: temperatures(sizes),
        "passes": lambda: passes(*sizes[-1]),
        "fit": lambda: whole_fits(sizes),
        "stack": lambda: stacks(arguments.small),
        "growth": lambda: growth(arguments.small),
        "replay": lambda: replays(arguments.small),
        "ece": lambda: ece_speed(arguments.small),
        "start_up": start_up,
    }
    if arguments.disk:
        from benchmarks.disk import fits_from_disk

        parts["disk"] = lambda: fits_from_disk(arguments.small)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        results[name] = part()
        (arguments.out / "speed.json").write_text(json.dumps(results, indent=1) + "\n")
    print(write_page(results, arguments.out))


if __name__ == "__main__":
    main()
