"""Several methods on the same rows, resampled together: what remains of a difference is not the luck of the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.metrics.calibration_error import equal_mass_edges, table_of
from recal.metrics.evaluation import LABELS
from recal.metrics.intervals import Field, TrackedError, grouped, plain_metrics, tracked_errors
from recal.metrics.resampling import EXACT_ROWS, Buckets, gather
from recal.metrics.rows import RowScores, equal_width_edges

Matrix = NDArray[np.float64]
# All but the class-wise and the smooth error, which would need every row's probabilities, or much time.
PAIRED = ("ece", "mce", "adaptive_ece", "debiased_ece", "ks_error", "brier", "nll", "error_rate", "aurc", "auroc")
_BLOCK = 1_000_000
# Many rows are dealt into so many blocks: a variance is then known to 1 / sqrt(2 x 1000), about two per cent.
_BLOCKS = 1_000


def paired_draws(
    methods: Sequence[RowScores], draws: int, n_bins: int = 15, random_state: int | None = 0
) -> dict[str, Matrix]:
    """Each metric of `PAIRED`, (n_methods, draws); in a draw every method meets the same rows.

    Draws of a calibration error are moved so that they lie around the error without the part that noise adds. That part
    is large where a model is calibrated and small where it is not, so it would not cancel in a difference.
    """
    n = len(methods[0])
    if any(len(rows) != n for rows in methods):
        raise InputError("Methods can be paired only on the same rows.")
    rng = np.random.default_rng(random_state)
    edges = equal_width_edges(n_bins)
    prepared = []
    for rows in methods:
        buckets = gather(rows, edges)
        width = table_of(rows.confidence, rows.correct, edges)
        mass = table_of(rows.confidence, rows.correct, equal_mass_edges(rows.confidence, n_bins))
        # Only the fields and norms are used here, not the errors that factors stand for.
        prepared.append((buckets, tracked_errors(buckets, dict.fromkeys(LABELS, 1.0), width, mass)))
    found = {name: np.empty((len(methods), draws)) for name in PAIRED}
    fields = [
        {
            name: Field(
                one.field_of(*grouped(buckets, buckets.counts[None].astype(np.float64), one.starts, None))[0], one.norm
            )
            for name, one in watched.items()
            if name in PAIRED
        }
        for buckets, watched in prepared
    ]
    for part, drawn in _draws(prepared, draws, rng):
        for index, (buckets, watched) in enumerate(prepared):
            counts = drawn.buckets[index]
            values = plain_metrics(buckets, counts, None) | drawn.means(methods[index])
            for name, field in fields[index].items():
                one = watched[name]
                gaps = one.field_of(*grouped(buckets, counts, one.starts, None))
                field.add(gaps)
                values[name] = one.norm(gaps)
            values["debiased_ece"] = np.sqrt(np.maximum(values["debiased_ece"], 0.0))
            for name in PAIRED:
                found[name][index, part] = values[name]
    for index, by_name in enumerate(fields):
        for name, field in by_name.items():
            seen = float(field.norm(field.observed[None])[0])
            without_noise = math.sqrt(max(seen, 0.0)) if name == "debiased_ece" else field.middle() * seen
            found[name][index] += without_noise - found[name][index].mean()
    return found


@dataclass(frozen=True)
class _Drawn:
    """Some draws of rows: how often each method's buckets were drawn, and how often each row, or each block of rows."""

    buckets: list[Matrix]
    weights: Matrix
    block: NDArray[np.intp] | None

    def means(self, rows: RowScores) -> dict[str, NDArray[np.float64]]:
        """Proper scores from the rows themselves: within a bucket, two methods' scores do not move together."""
        if self.block is None:
            return {}
        size, n = self.weights.shape[1], len(rows)
        sums = {"brier": rows.brier / rows.n_classes, "nll": rows.nll}
        return {
            name: self.weights @ np.bincount(self.block, weights=values, minlength=size) / n
            for name, values in sums.items()
            if np.isfinite(values).all()
        }


def _draws(
    prepared: Sequence[tuple[Buckets, dict[str, TrackedError]]], draws: int, rng: np.random.Generator
) -> Iterator[tuple[slice, _Drawn]]:
    """Draw rows one by one, or, of many, blocks of rows that were dealt at random: a block stands for a row."""
    n = prepared[0][0].n_samples
    if n <= EXACT_ROWS:
        step = max(1, _BLOCK // n)
        for first in range(0, draws, step):
            size = min(step, draws - first)
            # Buckets are single rows here, each method's in its own order.
            rows = [np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(size)]
            weights = np.stack(rows).astype(np.float64)
            counts = [weights[:, np.argsort(buckets.bucket)] for buckets, _ in prepared]
            yield slice(first, first + size), _Drawn(counts, weights, None)
        return
    block = rng.permutation(n) % _BLOCKS
    held = [buckets.in_blocks(block, _BLOCKS) for buckets, _ in prepared]
    step = max(1, _BLOCK // max(part.shape[1] for part in held))
    for first in range(0, draws, step):
        drawn = rng.multinomial(_BLOCKS, np.full(_BLOCKS, 1 / _BLOCKS), size=min(step, draws - first))
        weights = drawn.astype(np.float64)
        yield slice(first, first + len(weights)), _Drawn([weights @ part for part in held], weights, block)
