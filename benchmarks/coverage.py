"""How often the 95 % intervals of `evaluate` and `compare` contain the truth, if the truth is
known.

    python -m benchmarks.coverage --repeats 200                          # settings with few mistakes, and usual ones
    python -m benchmarks.coverage --repeats 100 --only "rare" "99:1"      # settings whose name contains one of these
    python -m benchmarks.coverage --repeats 200 --differences             # paired differences of two methods
    python -m benchmarks.coverage --repeats 200 --clusters                # equal and unequal clusters
    python -m benchmarks.coverage --repeats 500 --views views.npz --rows 500

The truth of a metric is its value on 1,000,000 synthetic rows; for a calibrated model every
calibration error is 0. A file of views can also be the population: samples are drawn from its rows
with replacement. A metric without an interval, such as the AUROC without mistakes, counts as
refused: "0.96 (0.25 refused)".
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recal import evaluate, read_views
from recal.comparison import compare_probs
from recal.comparison.tables import markdown_table
from recal.metrics import LABELS

Array = NDArray[Any]
Sample = Callable[[int, np.random.Generator], tuple[Array, Array]]
ERRORS = tuple(name for name in LABELS if name.endswith("ece") or name in ("mce", "ks_error"))
_POPULATION = 1_000_000


class Setting(NamedTuple):
    """A model to sample from, the number of rows, and whether the model is calibrated."""

    sample: Sample
    n: int
    calibrated: bool


class Coverage(NamedTuple):
    """Share of the given intervals that hold the truth, and the share of samples without an
    interval.
    """

    held: float
    refused: float

    def __str__(self) -> str:
        return f"{self.held:.2f}" + (f" ({self.refused:.2f} refused)" if self.refused else "")


def softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def labels_of(probs: Array, rng: np.random.Generator) -> Array:
    return np.asarray((probs.cumsum(axis=1) > rng.random((len(probs), 1))).argmax(axis=1))


def common(sharpness: float = 1.0, n_classes: int = 5, scale: float = 1.5) -> Sample:
    """Calibrated probabilities are softmax(z); the model claims softmax(sharpness * z).

    43 % mistakes by default.
    """

    def sample(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        logits = scale * rng.normal(size=(n, n_classes))
        return softmax(sharpness * logits), labels_of(softmax(logits), rng)

    return sample


def rare(rate: float = 0.0015, n_classes: int = 10, sharpness: float = 1.0) -> Sample:
    """An error rate of 0.15 %; most confidences lie near 1, and mistakes concentrate in the others."""

    def sample(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        doubt = np.minimum(rate * rng.exponential(size=n) ** 2 / 2, 0.5)
        others = rng.dirichlet(np.full(n_classes - 1, 0.5), n) * doubt[:, None]
        probs = np.column_stack([1 - doubt, others])
        y = labels_of(probs, rng)
        claimed = probs**sharpness
        return claimed / claimed.sum(axis=1, keepdims=True), y

    return sample


def unrelated(rate: float = 0.0015) -> Sample:
    """An error rate of 0.15 %, and confidences that say nothing about which answers are wrong."""

    def sample(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        confidence = 1 - rate * (1 + rng.uniform(-0.9, 0.9, n))
        return np.column_stack([confidence, 1 - confidence]), (rng.random(n) < rate).astype(np.intp)

    return sample


def imbalanced(share: float = 0.01) -> Sample:
    """Two classes, 99 : 1, and a calibrated model with one feature."""

    def sample(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        y = (rng.random(n) < share).astype(np.intp)
        feature = rng.normal(size=n) + 1.5 * y
        odds = share / (1 - share) * np.exp(1.5 * feature - 1.125)
        return np.column_stack([1 / (1 + odds), odds / (1 + odds)]), y

    return sample


def clustered(
    unequal: bool = False, rows: int = 20, spread: float = 1.5
) -> Callable[[int, np.random.Generator], tuple[Array, Array, Array]]:
    """Clusters of 20 rows, or of 1 to 400: the rows of one have similar logits, and half of them
    are right or wrong together.
    """

    def sample(n_clusters: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        sizes = np.full(n_clusters, rows)
        if unequal:
            sizes = np.clip(rng.lognormal(2.5, 1.0, n_clusters).astype(int), 1, 400)
        cluster = np.repeat(np.arange(n_clusters), sizes)
        centre, shared = spread * rng.normal(size=(n_clusters, 4)), rng.random((n_clusters, 1))
        logits = centre[cluster] + 0.7 * rng.normal(size=(len(cluster), 4))
        own = rng.random((len(cluster), 1))
        mixed = np.where(rng.random((len(cluster), 1)) < 0.5, shared[cluster], own)
        y = (softmax(logits).cumsum(axis=1) > mixed).argmax(axis=1)
        return softmax(1.3 * logits), y, cluster

    return sample


SETTINGS = {
    "rare, n=200": Setting(rare(), 200, True),
    "rare, n=1,000": Setting(rare(), 1000, True),
    "rare, n=5,000": Setting(rare(), 5000, True),
    "rare and sharp, n=1,000": Setting(rare(sharpness=1.3), 1000, False),
    "unrelated, n=200": Setting(unrelated(), 200, False),
    "unrelated, n=1,000": Setting(unrelated(), 1000, False),
    "unrelated, n=5,000": Setting(unrelated(), 5000, False),
    "99:1, n=200": Setting(imbalanced(), 200, True),
    "99:1, n=1,000": Setting(imbalanced(), 1000, True),
    "calibrated, n=50": Setting(common(), 50, True),
    "confident, n=50": Setting(common(scale=4.0), 50, True),
    "sharp, n=50": Setting(common(1.5), 50, False),
    "calibrated, n=1,000": Setting(common(), 1000, True),
    "sharp, n=1,000": Setting(common(1.3), 1000, False),
    "calibrated, n=5,000": Setting(common(), 5000, True),
    "100 classes, n=5,000": Setting(common(n_classes=100, scale=3.0), 5000, True),
    "sharp, n=5,000": Setting(common(1.5), 5000, False),
}
# Two models on the same rows: the sharpness of each, the noise in the second model's logits, and
# the number of rows.
PAIRS = {
    "calibrated and sharp, n=200": (1.0, 1.3, 0.0, 200),
    "calibrated and sharp, n=1,000": (1.0, 1.3, 0.0, 1000),
    "calibrated and noisy, n=1,000": (1.0, 1.0, 0.3, 1000),
    "sharp and sharper, n=1,000": (1.2, 1.3, 0.0, 1000),
    "calibrated and nearly so, n=200": (1.0, 1.05, 0.0, 200),
}
PAIRED = ("ece", "adaptive_ece", "debiased_ece", "ks_error", "nll", "brier", "aurc", "auroc")


def truth_of(setting: Setting, population: int = _POPULATION) -> dict[str, float]:
    truth = dict(evaluate(*setting.sample(population, np.random.default_rng(12345))))
    return truth | (dict.fromkeys(ERRORS, 0.0) if setting.calibrated else {})


def coverage(
    setting: Setting, repeats: int, draws: int = 200, seed: int = 0, population: int = _POPULATION
) -> dict[str, Coverage]:
    """Coverage of each metric's interval."""
    truth, rng = truth_of(setting, population), np.random.default_rng(seed)
    results = []
    for repeat in range(repeats):
        results.append(
            evaluate(
                *setting.sample(setting.n, rng), bootstrap=draws, random_state=repeat
            ).intervals
        )
    return summarise(results, truth)


def summarise(
    results: Sequence[Mapping[str, tuple[float, float]]], truth: Mapping[str, float]
) -> dict[str, Coverage]:
    table = {}
    for name in results[0]:
        given = [one[name] for one in results if not np.isnan(one[name][0])]
        held = [low - 1e-12 <= truth[name] <= high + 1e-12 for low, high in given]
        table[name] = Coverage(
            float(np.mean(held)) if held else float("nan"), 1 - len(given) / len(results)
        )
    return table


def coverage_of_differences(
    name: str, repeats: int, draws: int = 200, seed: int = 0, population: int = _POPULATION
) -> dict[str, Coverage]:
    """Coverage of the paired differences of two models."""
    one, two, noise, n = PAIRS[name]

    def sample(size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        logits = 1.5 * rng.normal(size=(size, 5))
        second = two * logits + noise * rng.normal(size=logits.shape)
        return softmax(one * logits), softmax(second), labels_of(softmax(logits), rng)

    first, second, y = sample(population, np.random.default_rng(12345))
    values = [dict(evaluate(probs, y)) for probs in (first, second)]
    if one == 1.0:
        values[0] |= dict.fromkeys(ERRORS, 0.0)
    truth = {metric: values[1][metric] - values[0][metric] for metric in PAIRED}
    rng, results = np.random.default_rng(seed), []
    for repeat in range(repeats):
        first, second, y = sample(n, rng)
        result = compare_probs(
            {"one": first, "two": second}, y, bootstrap=draws, random_state=repeat
        )
        results.append({metric: result.row(metric, "two").difference_interval for metric in PAIRED})
    return summarise(results, truth)


def coverage_of_clusters(
    repeats: int, n_clusters: int, *, unequal: bool, draws: int = 200, population: int = 20_000
) -> dict[str, Coverage]:
    """Coverage with clusters; the truth is that of `population` clusters."""
    sample, rng, results = clustered(unequal), np.random.default_rng(0), []
    probs, y, _ = sample(population, np.random.default_rng(12345))
    truth = dict(evaluate(probs, y))
    for repeat in range(repeats):
        probs, y, clusters = sample(n_clusters, rng)
        result = evaluate(probs, y, bootstrap=draws, clusters=clusters, random_state=repeat)
        results.append(result.intervals)
    return summarise(results, truth)


def coverage_of_rows(path: Path, n: int, repeats: int, draws: int = 200) -> dict[str, Coverage]:
    """Coverage for samples of a file's rows."""
    views = read_views(path)
    probs, y = softmax(views.logits.astype(np.float64)), np.asarray(views.labels)
    rng, results = np.random.default_rng(0), []
    for repeat in range(repeats):
        rows = rng.integers(len(y), size=n)
        results.append(
            evaluate(probs[rows], y[rows], bootstrap=draws, random_state=repeat).intervals
        )
    return summarise(results, evaluate(probs, y))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--differences", action="store_true")
    parser.add_argument("--clusters", action="store_true")
    parser.add_argument("--views", type=Path, nargs="*", default=[])
    parser.add_argument("--rows", type=int, default=500)
    options = parser.parse_args()
    repeats, metrics = options.repeats, tuple(PAIRED if options.differences else LABELS)
    runs: dict[str, Callable[[], dict[str, Coverage]]]
    if options.views:
        runs = {
            path.stem: lambda path=path: coverage_of_rows(path, options.rows, repeats)
            for path in options.views
        }
    elif options.differences:
        runs = {name: lambda name=name: coverage_of_differences(name, repeats) for name in PAIRS}
    elif options.clusters:
        runs = {
            f"{n} clusters, {'1 to 400 rows' if unequal else '20 rows'}": (
                lambda n=n, unequal=unequal: coverage_of_clusters(repeats, n, unequal=unequal)
            )
            for n, unequal in ((30, False), (100, False), (60, True), (200, True))
        }
    else:
        runs = {name: lambda one=one: coverage(one, repeats) for name, one in SETTINGS.items()}
    head = ["setting", *(LABELS[metric] for metric in metrics)]
    print(*markdown_table(head, []), sep="\n", flush=True)
    for name, run in runs.items():
        if any(word in name for word in options.only):
            table = run()
            cells = [name, *(str(table[metric]) for metric in metrics)]
            print(markdown_table(head, [cells])[-1], flush=True)


if __name__ == "__main__":
    main()
