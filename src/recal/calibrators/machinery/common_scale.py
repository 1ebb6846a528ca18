"""One scale for all samples or for each group: where parametric methods start, and what they are drawn back to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.engine.scaled import ScaledLogits, Vector
from recal.engine.temperature import Betas, solve_betas


def fit_beta(logits: Floats, labels: Labels) -> float:
    """Return the beta = 1/T that minimises the mean NLL of softmax(beta * logits), as temperature scaling does."""
    return float(fit_betas(ScaledLogits(logits), labels).values[0])


def fit_betas(
    state: ScaledLogits,
    labels: Labels,
    groups: NDArray[np.int8] | None = None,
    n_groups: int = 1,
    start: Vector | None = None,
    quick: bool = False,
    drops: Vector | None = None,
) -> Betas:
    """Return the beta of each group that minimises its negative log-likelihood, relative to the present scales.

    `start` is a guess of the betas; it saves passes and does not change the answer. `quick` gives such a guess.
    `drops` is `state.drop_at(labels)`, for a caller that has it already.
    """
    members = np.zeros(len(labels), dtype=np.intp) if groups is None else groups.astype(np.intp)
    pull = state.scales * (state.drop_at(labels) if drops is None else drops)
    squares = state.scales**2

    def by_group(values: Vector) -> Vector:
        return np.bincount(members, weights=values, minlength=n_groups).astype(np.float64)

    def derivatives(betas: Vector) -> tuple[Vector, Vector]:
        first, second = state.slopes(betas[members], quick)
        return by_group(state.scales * first - pull), by_group(squares * second)

    return solve_betas(derivatives, n_groups, start)
