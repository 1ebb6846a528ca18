"""Several methods on the same rows, resampled together: what remains of a difference is not the luck of the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.metrics.binned import equal_mass_edges, table_of
from recal.metrics.cells import gather
from recal.metrics.evaluation import LABELS
from recal.metrics.intervals import Field, grouped, plain_metrics, watch
from recal.metrics.rows import RowScores, equal_width_edges

Matrix = NDArray[np.float64]
# All but the class-wise and the smooth error, which would need every row's probabilities, or much time.
PAIRED = ("ece", "mce", "adaptive_ece", "debiased_ece", "ks_error", "brier", "nll", "error_rate", "aurc", "auroc")
_BLOCK = 1_000_000


def paired_draws(
    methods: Sequence[RowScores], draws: int, n_bins: int = 15, random_state: int | None = 0
) -> dict[str, Matrix]:
    """Each metric of `PAIRED`, (n_methods, draws); in a draw every method meets the same rows.

    Draws of a calibration error are moved so that they lie around the error without the part that noise adds. That part
    is large where a model is honest and small where it is not, so it would not cancel in a difference.
    """
    n = len(methods[0])
    if any(len(rows) != n for rows in methods):
        raise InputError("Methods can be paired only on the same rows.")
    rng = np.random.default_rng(random_state)
    edges = equal_width_edges(n_bins)
    prepared = []
    for rows in methods:
        cells = gather(rows, edges)
        width = table_of(rows.confidence, rows.correct, edges)
        mass = table_of(rows.confidence, rows.correct, equal_mass_edges(rows.confidence, n_bins))
        # Only the fields and norms are used here, not the errors that factors stand for.
        prepared.append((cells, watch(cells, dict.fromkeys(LABELS, 1.0), width, mass)))
    found = {name: np.empty((len(methods), draws)) for name in PAIRED}
    fields = [
        {
            name: Field(
                one.field_of(*grouped(cells, cells.counts[None].astype(np.float64), one.starts, None))[0], one.norm
            )
            for name, one in watched.items()
            if name in PAIRED
        }
        for cells, watched in prepared
    ]
    block = max(1, _BLOCK // n)
    for first in range(0, draws, block):
        drawn = np.stack([_resample(n, rng) for _ in range(min(block, draws - first))])
        part = slice(first, first + len(drawn))
        for index, (cells, watched) in enumerate(prepared):
            counts = cells.count(drawn)
            values = plain_metrics(cells, counts, None)
            for name, field in fields[index].items():
                one = watched[name]
                gaps = one.field_of(*grouped(cells, counts, one.starts, None))
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


def _resample(n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.bincount(rng.integers(n, size=n), minlength=n).astype(np.float64)
