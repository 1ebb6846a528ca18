"""Paired bootstrap of several methods: in a draw every method gets the same rows, so that their luck cancels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.metrics.calibration_error import equal_mass_edges, table_of
from recal.metrics.evaluation import LABELS
from recal.metrics.intervals import Pattern, cluster_stretch, grouped, plain_metrics, tracked_errors
from recal.metrics.resampling import EXACT_ROWS, Buckets, draw_clusters, gather
from recal.metrics.rows import RowScores, equal_width_edges

Matrix = NDArray[np.float64]
Clusters = NDArray[np.intp] | None
CALIBRATION_ERRORS = ("ece", "mce", "adaptive_ece", "debiased_ece", "ks_error")
# All metrics except the class-wise ECE, which needs the probabilities of all classes, and the slow smooth ECE.
PAIRED = (*CALIBRATION_ERRORS, "brier", "nll", "error_rate", "aurc", "auroc")
_BLOCK = 1_000_000
# Many rows are dealt into this many blocks. A standard deviation is then accurate to 1 / sqrt(2 x 1000), about 2 %.
_BLOCKS = 1_000


def paired_draws(
    methods: Sequence[RowScores],
    draws: int,
    n_bins: int = 15,
    random_state: int | None = 0,
    clusters: Clusters = None,
) -> dict[str, Matrix]:
    """Draws of each metric of `PAIRED`, (n_methods, draws); with clusters, whole clusters are drawn.

    Draws of a calibration error are centred at the error without the bias of noise. This bias is large for a calibrated
    model and small for a miscalibrated one, so it would not cancel in a difference.
    """
    n = len(methods[0])
    if any(len(rows) != n for rows in methods):
        raise InputError("Methods can be paired only on the same rows.")
    rng = np.random.default_rng(random_state)
    edges = equal_width_edges(n_bins)
    all_buckets, models = [], []
    for rows in methods:
        buckets = gather(rows, edges)
        width = table_of(rows.confidence, rows.correct, edges)
        mass = table_of(rows.confidence, rows.correct, equal_mass_edges(rows.confidence, n_bins))
        # Only gaps and norms are used here, not the errors of factors; their values do not matter.
        errors = tracked_errors(buckets, dict.fromkeys(LABELS, 1.0), width, mass)
        all_buckets.append(buckets)
        models.append({name: errors[name] for name in CALIBRATION_ERRORS})
    result = {name: np.empty((len(methods), draws)) for name in PAIRED}
    patterns = []
    for buckets, errors in zip(all_buckets, models):
        whole = buckets.counts[None].astype(np.float64)
        patterns.append(
            {
                name: Pattern(error.gaps_of(*grouped(buckets, whole, error.starts, None))[0], error.norm)
                for name, error in errors.items()
            }
        )
    for part, drawn in _draws(all_buckets, draws, rng, clusters):
        for index, (buckets, errors) in enumerate(zip(all_buckets, models)):
            counts = drawn.counts[index]
            values = plain_metrics(buckets, counts, None) | drawn.means(methods[index])
            for name, error in errors.items():
                drawn_gaps = error.gaps_of(*grouped(buckets, counts, error.starts, None))
                patterns[index][name].add(drawn_gaps)
                values[name] = error.norm(drawn_gaps)
            values["debiased_ece"] = np.sqrt(np.maximum(values["debiased_ece"], 0.0))
            for name in PAIRED:
                result[name][index, part] = values[name]
    for index, by_name in enumerate(patterns):
        for name, pattern in by_name.items():
            size = pattern.size
            unbiased = math.sqrt(max(size, 0.0)) if name == "debiased_ece" else pattern.middle() * size
            result[name][index] += unbiased - result[name][index].mean()
    return {name: _stretch(values, cluster_stretch(clusters)) for name, values in result.items()}


def _stretch(values: Matrix, factor: float) -> Matrix:
    if factor == 1.0:
        return values
    with np.errstate(invalid="ignore"):  # infinite losses
        centre = values.mean(axis=1, keepdims=True)
        stretched = centre + factor * (values - centre)
    return np.where(np.isfinite(centre), stretched, values)


@dataclass(frozen=True)
class _Drawn:
    """Some draws: how often each method's buckets were drawn, and how often each row, or each block of rows."""

    counts: list[Matrix]
    weights: Matrix
    block: NDArray[np.intp] | None

    def means(self, rows: RowScores) -> dict[str, NDArray[np.float64]]:
        """Proper scores from the rows themselves: within a bucket, the scores of two methods are not paired."""
        if self.block is None:
            return {}
        size = self.weights.shape[1]
        total = self.weights @ np.bincount(self.block, minlength=size)
        scores = {"brier": rows.brier / rows.n_classes, "nll": rows.nll}
        return {
            name: self.weights @ np.bincount(self.block, weights=values, minlength=size) / total
            for name, values in scores.items()
            if np.isfinite(values).all()
        }


def _draws(
    all_buckets: Sequence[Buckets], draws: int, rng: np.random.Generator, clusters: Clusters
) -> Iterator[tuple[slice, _Drawn]]:
    """Draw rows or clusters one by one; if there are many rows, draw blocks of rows or clusters dealt at random."""
    n = all_buckets[0].n_samples
    if n <= EXACT_ROWS:
        step = max(1, _BLOCK // n)
        for first in range(0, draws, step):
            size = min(step, draws - first)
            if clusters is None:
                drawn = [np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(size)]
                weights = np.stack(drawn).astype(np.float64)
            else:
                weights = draw_clusters(clusters, size, rng)
            yield slice(first, first + size), _Drawn([one.count(weights) for one in all_buckets], weights, None)
        return
    if clusters is None:
        block = rng.permutation(n) % _BLOCKS
    else:
        block = (rng.permutation(int(clusters.max()) + 1) % _BLOCKS)[clusters]
    n_blocks = int(block.max()) + 1
    parts = [buckets.in_blocks(block, n_blocks) for buckets in all_buckets]
    step = max(1, _BLOCK // max(part.shape[1] for part in parts))
    for first in range(0, draws, step):
        numbers = rng.multinomial(n_blocks, np.full(n_blocks, 1 / n_blocks), size=min(step, draws - first))
        weights = numbers.astype(np.float64)
        yield slice(first, first + len(weights)), _Drawn([weights @ part for part in parts], weights, block)
