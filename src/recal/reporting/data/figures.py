"""From results to the numbers that a figure or a page shows. Nothing here draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.recal.loop import Iteration
from recal.engine.replay import calibrated_probs
from recal.metrics import evaluate
from recal.metrics.calibration_error import equal_mass_edges, table_of
from recal.metrics.rows import Classes, RowScores, equal_width_edges, score
from recal.metrics.scores import runs
from recal.plan import Plan
from recal.reporting.data.groups import by_strength
from recal.reporting.data.thresholds import calibrated_range
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


def scored(probs: ArrayLike, y: ArrayLike, classes: Classes = None) -> RowScores:
    """What the figures below read of probabilities and labels."""
    return score(probs, y, classes)


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


@dataclass(frozen=True)
class Crowd:
    """Bins of equally many answers, least confident first: the error rates that were expected and that were observed.

    Most answers of a good model share the top bin of a reliability diagram; here they fill most of the picture. `low`
    and `high` bound, in 95 % of cases, the error rate that a calibrated model shows in such a bin.
    """

    left: Vector  # shares of all answers, from 0 to 1
    right: Vector
    lowest: Vector  # confidences
    highest: Vector
    promised: Vector
    made: Vector
    low: Vector
    high: Vector
    counts: Vector


def crowd(rows: RowScores, n_bins: int = 20) -> Crowd:
    """Gather answers into bins of equal numbers, as far as equal confidences, kept together, allow."""
    edges = equal_mass_edges(rows.confidence, n_bins)
    place = np.clip(np.searchsorted(edges, rows.confidence, side="left") - 1, 0, len(edges) - 2)
    doubt = 1.0 - rows.confidence
    size = len(edges) - 1
    sums = [np.bincount(place, weights, size) for weights in (None, doubt, doubt * rows.confidence, ~rows.correct)]
    held = sums[0] > 0
    counts, promised, variance, made = (column[held].astype(np.float64) for column in sums)
    low, high = calibrated_range(promised, variance)
    ends = np.cumsum(counts) / len(rows)
    rates = [column / counts for column in (promised, made, low, high)]
    starts = ends - counts / len(rows)
    edges = np.r_[rows.confidence.min(), edges[1:-1], rows.confidence.max()]
    return Crowd(starts, ends, edges[:-1][held], edges[1:][held], rates[0], rates[1], rates[2], rates[3], counts)


@dataclass(frozen=True)
class Curve:
    """The error rate among the accepted answers, by the share accepted, most confident first."""

    coverage: Vector
    risk: Vector


def risk_coverage(rows: RowScores, points: int = 200) -> Curve:
    """Coverage and error rate among the accepted, from the most confident on, thinned to about `points`."""
    gathered = runs(rows.confidence, rows.correct)
    accepted = np.cumsum(gathered.sizes[::-1])
    wrong = np.cumsum((gathered.sizes - gathered.correct)[::-1])
    # The first few rows make a jagged start that says nothing.
    kept = np.unique(np.linspace(0, len(accepted) - 1, points).astype(np.intp))
    kept = kept[accepted[kept] >= min(20, len(rows))]
    return Curve(accepted[kept] / len(rows), wrong[kept] / accepted[kept])


@dataclass(frozen=True)
class Histogram:
    """The shares of all answers in bins of confidence that are right and wrong, and both means."""

    edges: Vector
    right: Vector
    wrong: Vector
    confidence: float
    accuracy: float


def histogram(rows: RowScores, n_bins: int = 20) -> Histogram:
    edges = equal_width_edges(n_bins)
    table = table_of(rows.confidence, rows.correct, edges)
    right, wrong = table.correct / len(rows), (table.counts - table.correct) / len(rows)
    return Histogram(edges, right, wrong, float(rows.confidence.mean()), float(rows.correct.mean()))


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
class PlanPath:
    """Metrics on the test rows after each of some numbers of a plan's steps."""

    steps: NDArray[np.int64]
    ece: Vector
    nll: Vector
    brier: Vector


def path_of(plan: Plan, views: Views, labels: NDArray[np.intp], n_bins: int = 15, points: int = 21) -> PlanPath:
    """Replay longer and longer beginnings of a plan, `points` of them, on rows it was not fitted on."""
    lengths = np.unique(np.linspace(0, len(plan.steps), points).astype(np.int64))
    found = []
    for length in lengths:
        part = replace(plan, steps=plan.steps[:length], finish=plan.finish if length == len(plan.steps) else 1.0)
        found.append(evaluate(calibrated_probs(part, views), labels, n_bins=n_bins))
    columns = [np.array([one[name] for one in found]) for name in ("ece", "nll", "brier")]
    return PlanPath(lengths, *columns)
