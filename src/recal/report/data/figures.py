"""From results to the numbers that a figure or a page shows. Nothing here draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.machinery.recal_loop import Iteration
from recal.engine.replay import calibrated_probs
from recal.metrics import evaluate
from recal.metrics.binned import table_of
from recal.metrics.ranked import runs
from recal.metrics.rows import RowScores, equal_width_edges
from recal.plan import Plan
from recal.report.data.groups import by_strength
from recal.views import Views

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: per bin that holds rows its edges, rows, mean confidence, accuracy and a 95 % band."""

    low: Vector
    high: Vector
    counts: Vector
    confidence: Vector
    accuracy: Vector
    band_low: Vector
    band_high: Vector


def reliability(rows: RowScores, n_bins: int = 15) -> Reliability:
    """Accuracy per bin of confidence. The band holds 95 % of resampled accuracies of a bin of that size.

    Resampled outcomes of a bin are binomial, so no draws are needed. The rate is (right + 1/2) / (rows + 1): a bin
    with few rows, all right, would otherwise seem certain.
    """
    from scipy.stats import binom

    table = table_of(rows.confidence, rows.correct, equal_width_edges(n_bins))
    held = table.counts > 0
    counts = table.counts[held]
    rate = (table.correct[held] + 0.5) / (counts + 1)
    band = [binom.ppf(q, counts, rate) / counts for q in (0.025, 0.975)]
    accuracy = table.accuracy[held]
    return Reliability(
        table.edges[:-1][held],
        table.edges[1:][held],
        counts,
        table.confidence[held],
        accuracy,
        np.minimum(band[0], accuracy),
        np.maximum(band[1], accuracy),
    )


def risk_coverage(rows: RowScores, points: int = 200) -> tuple[Vector, Vector]:
    """Coverage and error rate among the accepted, from the most confident on, thinned to about `points`."""
    gathered = runs(rows.confidence, rows.correct)
    accepted = np.cumsum(gathered.sizes[::-1])
    wrong = np.cumsum((gathered.sizes - gathered.correct)[::-1])
    # The first few rows make a jagged start that says nothing.
    kept = np.unique(np.linspace(0, len(accepted) - 1, points).astype(np.intp))
    kept = kept[accepted[kept] >= min(20, len(rows))]
    return accepted[kept] / len(rows), wrong[kept] / accepted[kept]


def histogram(rows: RowScores, n_bins: int = 20) -> tuple[Vector, Vector, Vector]:
    """Edges, and the shares of all rows in each bin that are right and wrong."""
    edges = equal_width_edges(n_bins)
    table = table_of(rows.confidence, rows.correct, edges)
    return edges, table.correct / len(rows), (table.counts - table.correct) / len(rows)


@dataclass(frozen=True)
class PerClass:
    """For each class that the model answers with: how often, how sure, how often right."""

    names: tuple[str, ...]
    counts: NDArray[np.int64]
    confidence: Vector
    accuracy: Vector


def per_class(
    probs: NDArray, y: NDArray[np.intp], classes: Sequence[object] | NDArray | None = None, most: int = 20
) -> PerClass:
    """Confidence and accuracy by predicted class, the `most` frequent answers, in the columns' order."""
    predicted = probs.argmax(axis=1)
    k = probs.shape[1]
    counts = np.bincount(predicted, minlength=k)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:most])
    chosen = chosen[counts[chosen] > 0]
    confidence = np.bincount(predicted, weights=probs.max(axis=1), minlength=k)[chosen] / counts[chosen]
    accuracy = np.bincount(predicted, weights=predicted == y, minlength=k)[chosen] / counts[chosen]
    names = tuple(str(c) if classes is None else str(classes[c]) for c in chosen)
    return PerClass(names, counts[chosen], confidence, accuracy)


@dataclass(frozen=True)
class Progress:
    """ReCal's iterations as recorded while fitting."""

    number: NDArray[np.int64]
    transform: tuple[str, ...]
    ece: Vector
    accepted: NDArray[np.bool_]
    betas: NDArray[np.float64]
    shares: NDArray[np.float64]


def progress(history: Sequence[Iteration]) -> Progress:
    """The iterations in columns; betas as applied, group sizes as shares."""
    sizes = np.array([record.sizes for record in history], dtype=np.float64).reshape(-1, 4)
    return Progress(
        np.arange(1, len(history) + 1),
        tuple(str(record.transform) for record in history),
        np.array([record.ece_after for record in history]),
        np.array([record.accepted for record in history], dtype=np.bool_),
        np.array([record.betas for record in history], dtype=np.float64).reshape(-1, 4),
        sizes / np.maximum(sizes.sum(axis=1, keepdims=True), 1),
    )


def group_flow(found: Progress) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """The transformations drawn, by kind and strength, and the mean share of samples in each group, (m, 4)."""
    specs = sorted(set(found.transform), key=by_strength)
    drawn = np.array(found.transform)
    return tuple(specs), np.array([found.shares[drawn == spec].mean(axis=0) for spec in specs]).reshape(-1, 4)


@dataclass(frozen=True)
class Path:
    """Metrics on the test rows after each of some numbers of a plan's steps."""

    steps: NDArray[np.int64]
    ece: Vector
    nll: Vector
    brier: Vector


def path_of(plan: Plan, views: Views, labels: NDArray[np.intp], n_bins: int = 15, points: int = 21) -> Path:
    """Replay longer and longer beginnings of a plan, `points` of them, on rows it was not fitted on."""
    lengths = np.unique(np.linspace(0, len(plan.steps), points).astype(np.int64))
    found = []
    for length in lengths:
        part = replace(plan, steps=plan.steps[:length], finish=plan.finish if length == len(plan.steps) else 1.0)
        found.append(evaluate(calibrated_probs(part, views), labels, n_bins=n_bins))
    columns = [np.array([one[name] for one in found]) for name in ("ece", "nll", "brier")]
    return Path(lengths, *columns)
