"""One scale for all samples or for each group: where parametric methods start, and what they are drawn back to.

A group in which every answer is right has no best temperature: the surer, the likelier. It then gets what one more,
wrong, sample would give (Laplace): a sample drawn like the others whose truth is its second class. The answer is
finite, does not depend on the logits' scale, and grows surer only as samples without a mistake accumulate.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.engine.losses import Losses, ReadLosses
from recal.engine.scaled import ScaledLogits, Vector
from recal.engine.temperature import LARGEST_BETA, LEAST_BETA, Betas, solve_betas

# What a group without a mistake gets: Laplace's answer, the beta of all samples, or the largest one allowed.
Separable = Literal["laplace", "pooled", "bound"]
# No answer is so far out that float32, in which some runtimes compute, could not hold it.
_EXTREMES = (1e-30, 1e30)


def fit_beta(logits: Floats, labels: Labels, weights: Vector | None = None) -> float:
    """Return the beta = 1/T that minimises the mean NLL of softmax(beta * logits), as temperature scaling does."""
    return float(fit_betas(ScaledLogits(logits), labels, weights=weights).values[0])


def fit_betas(
    state: ScaledLogits,
    labels: Labels,
    groups: NDArray[np.int8] | None = None,
    n_groups: int = 1,
    start: Vector | None = None,
    quick: bool = False,
    drops: Vector | None = None,
    weights: Vector | None = None,
    separable: Separable = "laplace",
) -> Betas:
    """Return the beta of each group that minimises its negative log-likelihood, relative to the present scales.

    `start` is a guess of the betas; it saves passes and does not change the answer. `quick` gives such a guess.
    `drops` is `state.drop_at(labels)`, for a caller that has it already. `weights` counts a sample more than once.

    A group without a mistake gets what `separable` says. Pooled, it takes the beta of all samples, but grows surer
    (beta > 1) no further than one more, wrong, sample of its own would allow: otherwise it would grow without end,
    iteration by iteration, while the groups that hold the mistakes keep the common beta above 1.
    """
    members = np.zeros(len(labels), dtype=np.intp) if groups is None else groups.astype(np.intp)
    drops = state.drop_at(labels) if drops is None else drops
    return fit_losses(ReadLosses(state, drops, members, n_groups, quick, weights), start, separable)


def fit_losses(losses: Losses, start: Vector | None = None, separable: Separable = "laplace") -> Betas:
    """Return the same from what is known of the groups' losses."""
    n_groups = len(losses.sizes)
    start, known = losses.guess(start)

    def derivatives(betas: Vector) -> tuple[Vector, Vector]:
        first, second = losses.sums(betas)
        return first - losses.pull, second

    wanted = np.ones(n_groups, dtype=bool) if separable == "bound" else losses.mistaken
    answer = solve_betas(derivatives, n_groups, start, chosen=wanted & ~known)
    if start is not None and known.any():
        answer = answer.with_values(wanted & known, start)
    if separable == "bound":
        return answer
    beyond = np.array(answer.at_bound) & losses.mistaken
    certain = losses.occupied & ~losses.mistaken
    everyone = 1.0
    if certain.any() and separable == "pooled":
        pooled = fit_losses(losses.pooled())
        answer = answer.replaced(certain, pooled.repeated(n_groups))
        everyone = pooled.values[0]
        certain &= everyone > 1.0
    if not (beyond.any() or certain.any()):
        return answer
    margins = losses.margins()
    n_right = np.where(certain, np.maximum(losses.sizes, 1e-300), np.inf)
    doubt = losses.by_group(-margins) / n_right

    def derivatives_with_doubt(betas: Vector) -> tuple[Vector, Vector]:
        """One more sample, spread evenly over those of its group, has the same slopes and the truth at the second."""
        first, second = losses.sums(betas)
        return (1.0 + 1.0 / n_right) * first - losses.pull - doubt, (1.0 + 1.0 / n_right) * second

    least, largest, middle = _bracket(margins, losses.members, n_groups)
    again = solve_betas(derivatives_with_doubt, n_groups, middle, bounds=(least, largest), chosen=beyond | certain)
    if separable == "pooled":
        again = again.limited(certain, 1.0, everyone)
    return answer.replaced(beyond | certain, again)


def _bracket(gaps: Vector, members: NDArray[Any], n_groups: int) -> tuple[Vector, Vector, Vector]:
    """Return a least, a largest and a middling beta for each group, by how far its samples' first two logits lie apart.

    At the least beta a usual sample is at chance; at the largest even the closest pair of logits is settled.
    """
    least, largest, middle = np.full(n_groups, LEAST_BETA), np.full(n_groups, LARGEST_BETA), np.ones(n_groups)
    for k in range(n_groups):
        apart = gaps[(members == k) & (gaps > 0.0)]
        if len(apart):
            usual = float(np.median(apart))
            least[k] = max(min(LEAST_BETA, 100.0 * LEAST_BETA / usual), _EXTREMES[0])
            largest[k] = min(max(LARGEST_BETA, LARGEST_BETA / float(apart.min())), _EXTREMES[1])
            middle[k] = 1.0 / usual
    return least, largest, middle
