"""Paired bootstrap of several methods: each draw uses the same rows for all of them, so sampling
noise cancels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.metrics.calibration_error import equal_mass_edges, table_of
from recal.metrics.evaluation import LABELS
from recal.metrics.resampling import cluster_stretch, plain_metrics, tracked_errors
from recal.metrics.row_scores import (
    DRAWN_AT_ONCE,
    EXACT_ROWS,
    Buckets,
    RowScores,
    Vector,
    draw_clusters,
    equal_width_edges,
    gather,
)

Clusters = NDArray[np.intp] | None
CALIBRATION_ERRORS = ("ece", "mce", "adaptive_ece", "debiased_ece", "ks_error")
# All metrics except the class-wise ECE, which needs the probabilities of all classes, and the slow
# smooth ECE.
PAIRED = (*CALIBRATION_ERRORS, "brier", "nll", "error_rate", "aurc", "auroc")
# Many rows are dealt into this many blocks. A standard deviation is then accurate to 1 / sqrt(2 x
# 1000), about 2 %.
_BLOCKS = 1_000


def paired_draws(
    methods: Sequence[RowScores],
    draws: int,
    n_bins: int = 15,
    random_state: int | None = 0,
    clusters: Clusters = None,
) -> dict[str, Vector]:
    """Draws of each metric of `PAIRED`, (n_methods, draws); with clusters, whole clusters are
    drawn.

    Draws of a calibration error are centred at the error without the bias from noise. This bias is
    large for a calibrated model and small for a miscalibrated one, so it would not cancel in a
    difference.
    """
    n = len(methods[0])
    if any(len(rows) != n for rows in methods):
        raise InputError("Methods can be paired only on the same rows.")
    rng = np.random.default_rng(random_state)
    edges = equal_width_edges(n_bins)
    all_buckets = [gather(rows, edges) for rows in methods]
    all_errors = []
    for rows, buckets in zip(methods, all_buckets):
        width = table_of(rows.confidence, rows.correct, edges)
        mass = table_of(rows.confidence, rows.correct, equal_mass_edges(rows.confidence, n_bins))
        # Only gaps and norms are used here. The values passed for the errors do not matter.
        errors = tracked_errors(buckets, dict.fromkeys(LABELS, 1.0), width, mass)
        all_errors.append({name: errors[name] for name in CALIBRATION_ERRORS})
    result = {name: np.empty((len(methods), draws)) for name in PAIRED}
    block = _blocks(n, rng, clusters) if n > EXACT_ROWS else None
    sizes = np.ones(n) if block is None else np.bincount(block)
    sums = [{} if block is None else _sums_in_blocks(rows, block) for rows in methods]
    for part, counts, weights in _draws(all_buckets, draws, rng, clusters, block):
        for index, buckets in enumerate(all_buckets):
            values = plain_metrics(buckets, counts[index], None)
            # Proper scores come from the rows themselves: within a bucket, the scores of two
            # methods are not paired.
            values |= {
                name: weights @ column / (weights @ sizes) for name, column in sums[index].items()
            }
            for name, error in all_errors[index].items():
                gaps = error.drawn_gaps(buckets, counts[index])
                error.add(gaps)
                values[name] = error.norm(gaps)
            values["debiased_ece"] = np.sqrt(np.maximum(values["debiased_ece"], 0.0))
            for name in PAIRED:
                result[name][index, part] = values[name]
    for index, errors in enumerate(all_errors):
        for name, error in errors.items():
            size = error.size
            unbiased = (
                math.sqrt(max(size, 0.0)) if name == "debiased_ece" else error.factor(0.5) * size
            )
            result[name][index] += unbiased - result[name][index].mean()
    stretch = cluster_stretch(clusters)
    return (
        result
        if stretch == 1.0
        else {name: _stretch(values, stretch) for name, values in result.items()}
    )


def _stretch(values: Vector, factor: float) -> Vector:
    with np.errstate(invalid="ignore"):  # infinite losses
        centre = values.mean(axis=1, keepdims=True)
        stretched = centre + factor * (values - centre)
    return np.where(np.isfinite(centre), stretched, values)


def _blocks(n: int, rng: np.random.Generator, clusters: Clusters) -> NDArray[np.intp]:
    """Deal rows, or whole clusters, into blocks at random; return the block of each row."""
    if clusters is None:
        return rng.permutation(n) % _BLOCKS
    return np.asarray((rng.permutation(int(clusters.max()) + 1) % _BLOCKS)[clusters])


def _sums_in_blocks(rows: RowScores, block: NDArray[np.intp]) -> dict[str, Vector]:
    scores = {"brier": rows.brier / rows.n_classes, "nll": rows.nll}
    return {
        name: np.bincount(block, values).astype(np.float64)
        for name, values in scores.items()
        if np.isfinite(values).all()
    }


def _draws(
    all_buckets: Sequence[Buckets],
    draws: int,
    rng: np.random.Generator,
    clusters: Clusters,
    block: NDArray[np.intp] | None,
) -> Iterator[tuple[slice, list[Vector], Vector]]:
    """Yield the indices of some draws, and how often each method's buckets and each row or block
    were drawn.
    """
    n = all_buckets[0].n_samples
    n_blocks = 0 if block is None else int(block.max()) + 1
    parts = [] if block is None else [buckets.in_blocks(block, n_blocks) for buckets in all_buckets]
    step = max(1, DRAWN_AT_ONCE // max((part.shape[1] for part in parts), default=n))
    for first in range(0, draws, step):
        size = min(step, draws - first)
        if block is not None:
            weights = rng.multinomial(n_blocks, np.full(n_blocks, 1 / n_blocks), size=size).astype(
                np.float64
            )
            counts = [weights @ part for part in parts]
        else:
            if clusters is not None:
                weights = draw_clusters(clusters, size, rng)
            else:
                rows = [np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(size)]
                weights = np.stack(rows).astype(np.float64)
            counts = [buckets.count(weights) for buckets in all_buckets]
        yield slice(first, first + size), counts, weights
