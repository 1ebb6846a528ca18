"""How often the bootstrap intervals of `evaluate` hold the truth, where the truth is known.

    python -m benchmarks.coverage --repeats 400
    python -m benchmarks.coverage --repeats 500 --views views.npz --rows 500

On synthetic data the truth of a metric is its value on 2,000,000 rows (debiased and smooth errors of so many are the
truth to 1e-3). The rows of a file of views are a population, too: samples are drawn from them with replacement.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recal import read_views
from recal.comparison.tables import markdown_table
from recal.metrics import LABELS, evaluate


def sample(n: int, sharpness: float, rng: np.random.Generator, k: int = 5) -> tuple[NDArray, NDArray]:
    """Draw rows whose honest probabilities are softmax(z) and which claim softmax(sharpness * z)."""
    logits = rng.normal(size=(n, k)) * 1.5
    honest = np.exp(logits)
    honest /= honest.sum(1, keepdims=True)
    y = (honest.cumsum(1) > rng.random((n, 1))).argmax(1)
    claimed = np.exp(sharpness * logits)
    return claimed / claimed.sum(1, keepdims=True), y


def coverage(n: int, sharpness: float, repeats: int, draws: int = 500, seed: int = 0) -> dict[str, float]:
    """Share of repeats in which each metric's interval holds its truth."""
    rng = np.random.default_rng(seed)
    truth = dict(evaluate(*sample(2_000_000, sharpness, rng)))
    if sharpness == 1.0:
        truth |= dict.fromkeys([name for name in LABELS if name.endswith("ece") or name in ("mce", "ks_error")], 0.0)
    held = dict.fromkeys(LABELS, 0)
    for repeat in range(repeats):
        found = evaluate(*sample(n, sharpness, rng), bootstrap=draws, random_state=repeat)
        for name in LABELS:
            low, high = found.intervals[name]
            held[name] += low <= truth[name] <= high
    return {name: count / repeats for name, count in held.items()}


def coverage_of_rows(path: Path, n: int, repeats: int, draws: int = 200) -> dict[str, float]:
    """The same for samples of a file's rows."""
    views = read_views(path)
    weights = np.exp(views.logits.astype(np.float64) - views.logits.max(axis=1, keepdims=True))
    probs, labels = weights / weights.sum(axis=1, keepdims=True), np.asarray(views.labels)
    truth, rng, held = evaluate(probs, labels), np.random.default_rng(0), dict.fromkeys(LABELS, 0)
    for repeat in range(repeats):
        rows = rng.integers(len(labels), size=n)
        found = evaluate(probs[rows], labels[rows], bootstrap=draws, random_state=repeat)
        for name, (low, high) in found.intervals.items():
            held[name] += low <= truth[name] <= high
    return {name: count / repeats for name, count in held.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--views", type=Path, nargs="*", default=[])
    parser.add_argument("--rows", type=int, default=500)
    given = parser.parse_args()
    repeats = given.repeats
    if given.views:
        columns = [coverage_of_rows(path, given.rows, repeats) for path in given.views]
        rows = [[label, *(f"{column[name]:.3f}" for column in columns)] for name, label in LABELS.items()]
        print(*markdown_table([f"metric, n={given.rows:,}", *(path.stem for path in given.views)], rows), sep="\n")
        return
    settings = [(1000, 1.0), (1000, 1.3), (5000, 1.0), (5000, 1.1), (5000, 1.5), (50_000, 1.0), (50_000, 1.1)]
    columns = [coverage(n, sharpness, repeats if n < 50_000 else repeats // 4) for n, sharpness in settings]
    head = ["metric", *(f"n={n:,}, sharpness {sharpness}" for n, sharpness in settings)]
    rows = [[label, *(f"{column[name]:.3f}" for column in columns)] for name, label in LABELS.items()]
    print(*markdown_table(head, rows), sep="\n")


if __name__ == "__main__":
    main()
