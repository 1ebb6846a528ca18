"""One scale for all samples or for each group: where parametric methods start, and what they are drawn back to.

A group in which every answer is right has no best temperature: the more confident, the likelier. It then gets what one
more, wrong, sample would give (Laplace): a sample drawn like the others whose truth is its second class. The answer is
finite, does not depend on the logits' scale, and becomes more confident only as samples without a mistake accumulate.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.engine.losses import GroupLosses
from recal.engine.scaled import ScaledLogits, ScaledRows, Vector
from recal.engine.temperature import LARGEST_BETA, LEAST_BETA, Betas, solve_betas

# What a group without a mistake gets: Laplace's answer, the beta of all samples, or the largest one allowed.
Separable = Literal["laplace", "pooled", "bound"]
# No answer is so far out that float32, in which some runtimes compute, could not hold it.
_EXTREMES = (1e-30, 1e30)
# A guess from as many samples, evenly spaced, comes before all: each spares the next several passes.
_FEW_SAMPLES = (125, 2000)
# Of as many times more samples a pass costs more than a guess.
_WORTH_A_GUESS = 4
# How far on either side of a guess beyond the usual bounds the answer is sought.
_AROUND_A_GUESS = 100.0
# How far a row's slope may be off before it is read again: 1e-8 is promised of what is made of all.
_TOLERANCE = 1e-12


def fit_beta(logits: Floats, labels: Labels, weights: Vector | None = None, near: float | None = None) -> float:
    """Return the beta = 1/T that minimises the mean NLL of softmax(beta * logits), as temperature scaling does.

    `near` is a guess; it saves passes and does not change the answer.
    """
    return float(fit_temperature(logits, labels, weights, near).values[0])


def fit_temperature(logits: Floats, labels: Labels, weights: Vector | None = None, near: float | None = None) -> Betas:
    """Return the same with a word on how it came about. Where there are many samples, some give a guess first.

    The first guess begins at the scale of the logits: the work does not depend on where the answer lies.
    """
    start = None if near is None else np.array([near])
    for count in _FEW_SAMPLES if near is None else ():
        if len(labels) < _WORTH_A_GUESS * count:
            break
        some = slice(None, None, len(labels) // count)
        state = ScaledLogits(logits[some], tolerance=_TOLERANCE)
        if start is None:
            start = _usual_beta(state)
        chosen = None if weights is None else weights[some]
        start = np.array(fit_betas(state, labels[some], start, chosen).values)
    return fit_betas(ScaledLogits(logits, tolerance=_TOLERANCE), labels, start, weights)


def _usual_beta(state: ScaledRows) -> Vector:
    """Return the beta at which the first two logits of a usual sample lie 2 apart: an answer that is mostly right."""
    apart = -state.runner_up_drop()
    usual = float(np.median(apart[apart > 0.0])) if (apart > 0.0).any() else 2.0
    return np.clip([2.0 / usual], *_EXTREMES)


def fit_betas(state: ScaledRows, labels: Labels, start: Vector | None = None, weights: Vector | None = None) -> Betas:
    """Return the beta that minimises the negative log-likelihood of all samples, relative to the present scales.

    `start` is a guess; it saves passes and does not change the answer. `weights` counts a sample more than once.
    """
    members = np.zeros(len(labels), dtype=np.intp)
    return fit_losses(GroupLosses(state, state.drop_at(labels), members, 1, weights), start)


def fit_losses(losses: GroupLosses, start: Vector | None = None, separable: Separable = "laplace") -> Betas:
    """Return the beta of each group that minimises its loss.

    A group without a mistake gets what `separable` says. Pooled, it takes the beta of all samples, but grows more
    confident (beta > 1) no further than one more, wrong, sample of its own would allow: otherwise it would grow without
    end, iteration by iteration, while the groups that hold the mistakes keep the common beta above 1.
    """
    n_groups = len(losses.sizes)

    def derivatives(betas: Vector) -> tuple[Vector, Vector]:
        first, second = losses.sums(betas)
        return first - losses.pull, second

    wanted = np.ones(n_groups, dtype=bool) if separable == "bound" else losses.mistaken
    bounds = None
    if start is not None and separable != "bound" and ((start < LEAST_BETA) | (start > LARGEST_BETA)).any():
        bounds = np.minimum(start / _AROUND_A_GUESS, LEAST_BETA), np.maximum(start * _AROUND_A_GUESS, LARGEST_BETA)
    answer = solve_betas(derivatives, n_groups, start, bounds=bounds, chosen=wanted)
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
