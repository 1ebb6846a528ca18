"""The parametric rivals' speed and NLL beside other libraries, on synthetic logits, in CPU seconds.

    python -m benchmarks.rivals_speed [--large] [--out docs/results]

Needs the extra `peers`; a library that is not installed is left out. Threads are kept to one so that CPU seconds mean
the same for all. `--large` adds one fit of each method at 25,000 x 1,000 and the memory it takes.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import recal
from recal.comparison.tables import markdown_table

Fit = Callable[[np.ndarray, np.ndarray], Callable[[np.ndarray], np.ndarray]]


def synthetic(n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Over-confident logits whose classes are mixed and shifted, and labels drawn from the honest ones."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(scale=2.0, size=(n, k))
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    mixing = np.eye(k) + 0.3 / np.sqrt(k) * rng.normal(size=(k, k))
    return (1.7 * honest @ mixing + 0.3 * rng.normal(size=k)).astype(np.float32), labels


def ours(model: recal.calibrators.Calibrator) -> Fit:
    return lambda logits, labels: model.fit(logits, labels).predict_proba


def of_probmetrics(name: str) -> Fit:
    import torch
    from probmetrics import calibrators
    from probmetrics.distributions import CategoricalLogits

    torch.set_num_threads(1)

    def fit(logits: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        model = getattr(calibrators, name)()
        model.fit_torch(CategoricalLogits(torch.tensor(logits)), torch.tensor(labels))
        return lambda x: model.predict_proba_torch(CategoricalLogits(torch.tensor(x))).get_probs().double().numpy()

    return fit


def of_sklearn() -> Fit:
    from sklearn.calibration import _TemperatureScaling

    def fit(logits: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return _TemperatureScaling().fit(logits.astype(np.float64), labels).predict

    return fit


def of_netcal() -> Fit:
    from netcal.scaling import TemperatureScaling

    def probs(logits: np.ndarray) -> np.ndarray:
        values = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        return values / values.sum(axis=1, keepdims=True)

    def fit(logits: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        model = TemperatureScaling()
        model.fit(probs(logits), labels)
        return lambda x: model.transform(probs(x))

    return fit


# method, library, how to build its fit
CONTENDERS: tuple[tuple[str, str, Callable[[], Fit]], ...] = (
    ("temperature", "recal", lambda: ours(recal.TemperatureScaling())),
    ("temperature", "probmetrics", lambda: of_probmetrics("TemperatureScalingCalibrator")),
    ("temperature", "scikit-learn", of_sklearn),
    ("temperature", "netcal (float64)", of_netcal),
    ("vector scaling", "recal", lambda: ours(recal.calibrators.VectorScaling())),
    ("vector scaling", "probmetrics", lambda: of_probmetrics("VectorScalingCalibrator")),
    ("SVS", "recal", lambda: ours(recal.calibrators.StructuredVectorScaling())),
    ("SVS", "probmetrics", lambda: of_probmetrics("SVSCalibrator")),
    ("SMS", "recal", lambda: ours(recal.calibrators.StructuredMatrixScaling())),
    ("SMS", "probmetrics", lambda: of_probmetrics("SMSCalibrator")),
    ("Platt", "recal", lambda: ours(recal.calibrators.PlattScaling())),
    ("beta", "recal", lambda: ours(recal.calibrators.BetaCalibration())),
    ("latent GP", "recal", lambda: ours(recal.calibrators.GaussianProcessCalibration(random_state=0))),
    ("MS-ODIR, whole search", "recal", lambda: ours(recal.calibrators.MatrixScaling(random_state=0))),
    ("Dir-ODIR, whole search", "recal", lambda: ours(recal.calibrators.DirichletCalibration(random_state=0))),
)
LARGE = (
    ("vector scaling", recal.calibrators.VectorScaling()),
    ("SVS", recal.calibrators.StructuredVectorScaling()),
    ("SMS", recal.calibrators.StructuredMatrixScaling()),
    ("MS-ODIR, one lambda and mu", recal.calibrators.MatrixScaling(penalty=1e6, intercept_penalty=1e3)),
    ("Dir-ODIR, one lambda and mu", recal.calibrators.DirichletCalibration(penalty=1e6, intercept_penalty=1e3)),
)


def nll(probs: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(np.maximum(probs[np.arange(len(labels)), labels], 1e-300)).mean())


def best_of(fit: Fit, logits: np.ndarray, labels: np.ndarray) -> tuple[float, Callable[[np.ndarray], np.ndarray]]:
    """Return the least CPU seconds of up to three fits, after one that pays for compilation, and the predictor."""
    seconds = []
    for repeat in range(4):
        start = time.process_time()
        predict = fit(logits, labels)
        seconds.append(time.process_time() - start)
        if repeat and sum(seconds) > 10.0:
            break
    return min(seconds), predict


@dataclass(frozen=True)
class Timing:
    """One library's method on one problem."""

    method: str
    library: str
    seconds: float
    inside: float
    outside: float


def compare(n: int, k: int) -> list[Timing]:
    logits, labels = synthetic(2 * n, k)
    timings = []
    for method, library, build in CONTENDERS:
        try:
            fit = build()
        except ImportError:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seconds, predict = best_of(fit, logits[:n], labels[:n])
            inside, outside = nll(predict(logits[:n]), labels[:n]), nll(predict(logits[n:]), labels[n:])
        timings.append(Timing(method, library, seconds, inside, outside))
        print(f"{n} x {k}  {method:<24} {library:<18} {seconds:8.3f} s  NLL {inside:.4f}", flush=True)
    return timings


def table(n: int, k: int, timings: list[Timing]) -> list[str]:
    """Return the table of one problem, and how each method stands beside probmetrics'."""
    lines = [
        f"\n## {n:,} x {k:,}\n",
        *markdown_table(
            ["method", "library", "CPU s", "NLL, fitted", "NLL, held out"],
            [[t.method, t.library, f"{t.seconds:.3f}", f"{t.inside:.4f}", f"{t.outside:.4f}"] for t in timings],
            align="llrrr",
        ),
    ]
    ours, theirs = ({t.method: t for t in timings if t.library == name} for name in ("recal", "probmetrics"))
    ratios = [
        f"{method} {theirs[method].seconds / ours[method].seconds:.1f} times as fast, NLL "
        f"{100 * (ours[method].inside / theirs[method].inside - 1):+.3f} % "
        f"({100 * (ours[method].outside / theirs[method].outside - 1):+.3f} % held out)"
        for method in theirs
    ]
    return [*lines, "", "Beside probmetrics: " + "; ".join(ratios) + "."] if ratios else lines


def large(n: int = 25_000, k: int = 1_000) -> list[str]:
    logits, labels = synthetic(n, k)
    rows = []
    for method, model in LARGE:
        start = time.process_time()
        model.fit(logits, labels)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append([method, f"{time.process_time() - start:.1f}", f"{memory:.2f}"])
        print(*rows[-1], flush=True)
    head = ["method", "CPU s", "most memory so far, GB"]
    return [f"\n## One fit at {n:,} x {k:,}\n", *markdown_table(head, rows, align="lrr")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    settings = parser.parse_args()
    lines = [
        "# The rivals' speed",
        "",
        "Made by `python -m benchmarks.rivals_speed --large`: synthetic logits, one thread, CPU seconds, the best of",
        "up to three fits after one to warm up, on a machine that others used too. The searches are whole: the default",
        "grid and five folds (the paper: 77,354 and 43,002 s for MS-ODIR and Dir-ODIR with 10 classes,",
        "320,285 and 134,318 s with 100).",
    ]
    with threadpool_limits(1):
        for n, k in ((5_000, 10), (5_000, 100)):
            lines += table(n, k, compare(n, k))
        lines += large() if settings.large else []
    settings.out.mkdir(parents=True, exist_ok=True)
    (settings.out / "methods-speed.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
