"""What a plan means, in plain numpy: the reference to which every other runtime is held.

numba (`recal.engine`), torch and ONNX give the same answers faster or elsewhere. Small work runs here, and so does
every comparison of two confidences that others find too close to call: the rule for ties is `comparable`, and numpy's
order of summation is part of it. All sums run along a row: a sample alone gets, bit for bit, what it gets in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.plan import Plan, Rule

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
# No sequence of betas takes a scale out of this range, so nothing over- or underflows to inf or 0.
SCALE_RANGE = (1e-100, 1e100)
# A probability of exactly 0 at the truth is an infinite loss, and nothing is certain: answers stay within these.
ABOVE_ZERO, BELOW_ONE = 1e-300, 1.0 - 2.0**-53
# How far, relatively, a rival stays below an answer that is kept: enough for float32 to tell them apart.
MARGIN = 1e-6


def calibrated_probs(plan: Plan, logits: Floats, transformed: Sequence[Floats] | Floats) -> Matrix:
    """Return the probabilities that a plan gives, (n_samples, n_classes).

    Parameters
    ----------
    logits : (n_samples, n_classes)
    transformed : one such array for each of `plan.transforms`

    Examples
    --------
    >>> from recal import Plan, Step
    >>> from recal.runtime.reference import calibrated_probs
    >>> plan = Plan((Step("zoom:0.5", (1.0, 1.0, 1.0, 0.5)),))
    >>> calibrated_probs(plan, np.array([[2.0, 0.0]]), [np.array([[1.0, 0.0]])]).round(3).tolist()
    [[0.731, 0.269]]
    """
    if plan.blend is not None:
        return blended_probs(plan, logits, transformed, plan.needs_views(logits))
    return replayed(plan, logits, transformed).probs()


class Rows:
    """Logits below the largest of their row, each row multiplied by a scale of its own; `answers` is where that stands.

    With a floor no probability falls below it: each rescaling then writes the rows anew.
    """

    def __init__(self, logits: Floats, floor: float | None = None) -> None:
        self.answers = logits.argmax(axis=1)
        self.drops = np.array(logits, dtype=np.float64, order="C")
        self.drops -= self.drops.max(axis=1, keepdims=True)
        self.scales = np.ones(len(logits))
        self.floor = floor
        if floor is not None:
            self.rescale(1.0)

    def rescale(self, factors: Vector | float) -> None:
        if self.floor is None:
            low, high = SCALE_RANGE
            self.scales = np.minimum(np.maximum(self.scales * factors, low), high)  # np.clip takes three times as long
            return
        scaled = np.reshape(factors, (-1, 1)) * self.drops
        logs = np.maximum(scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True)), np.log(self.floor))
        self.drops = logs - logs.max(axis=1, keepdims=True)

    def now(self) -> Matrix:
        return self.scales[:, None] * self.drops

    def probs(self) -> Matrix:
        """Return softmax(now), in which the answer stays the largest even where a tiny scale would tie it."""
        weights = np.exp(self.now())
        if np.count_nonzero(weights > BELOW_ONE) > np.count_nonzero(self.drops == 0.0):  # asked first: it is rare
            np.minimum(weights, BELOW_ONE, out=weights, where=self.drops < 0.0)
        weights /= weights.sum(axis=1, keepdims=True)
        np.maximum(weights, ABOVE_ZERO, out=weights)
        return np.minimum(weights, BELOW_ONE, out=weights)


def replayed(plan: Plan, logits: Floats, transformed: Sequence[Floats] | Floats) -> Rows:
    """Return the originals' rows after the plan: each step groups samples by the original and a view, scales both."""
    original = Rows(logits, plan.rule.floor)
    views = [Rows(view, plan.rule.floor) for view in transformed]
    for rows in (original, *views):
        rows.rescale(plan.start)
    for number, betas in zip(*plan.program):
        factors = betas[groups(original, views[number], plan.rule)]
        original.rescale(factors)
        views[number].rescale(factors)
    original.rescale(plan.finish)
    return original


def groups(original: Rows, view: Rows, rule: Rule) -> NDArray[np.int8]:
    """Return each sample's group, counted from 0: 2 [answer kept] + [the confidence fell or stayed]."""
    at = view.answers if rule.confidence_at == "own" else original.answers
    fell = comparable(original.now(), original.answers, rule) >= comparable(view.now(), at, rule)
    return (2 * (original.answers == view.answers) + fell).astype(np.int8)


def comparable(rows: Matrix, at: Labels, rule: Rule) -> NDArray[np.floating]:
    """Return what the rule for ties compares of scaled rows, whose largest value is 0, at a column of each.

    By float32: a softmax of which each exponential is rounded to float32 and divided, in float32, by their float32 sum;
    saturated confidences are then equal. Exactly: the log-odds, in which nothing saturates.
    """
    every = np.arange(len(rows))
    if rule.ties == "float32":
        weights = np.exp(rows).astype(np.float32)
        return weights[every, at] / weights.sum(axis=1)
    others = rows.copy()
    others[every, at] = -np.inf
    rival = others.max(axis=1)
    return rows[every, at] - rival - np.log(np.exp(others - rival[:, None]).sum(axis=1))


def soft_log_probs(logits: Floats, beta: float, epsilon: float) -> Matrix:
    """Return x(z) = log((1 - epsilon) softmax(beta z) + epsilon / K), (n_samples, n_classes) float64.

    Examples
    --------
    >>> from recal.runtime.reference import soft_log_probs
    >>> np.exp(soft_log_probs(np.array([[1000.0, 0.0]]), 1.0, 0.01)).round(3).tolist()
    [[0.995, 0.005]]
    """
    x = np.array(logits, dtype=np.float64, order="C")
    x -= x.max(axis=1, keepdims=True)
    x *= beta
    np.exp(x, out=x)
    x *= (1.0 - epsilon) / x.sum(axis=1, keepdims=True)
    x += epsilon / x.shape[1]
    return np.log(x, out=x)


def blended_probs(
    plan: Plan,
    logits: Floats,
    transformed: Sequence[Floats] | Floats,
    needed: NDArray[np.bool_],
    mixed: Matrix | None = None,
) -> Matrix:
    """Return the probabilities of a blend; samples more confident than the gate are not `needed`, nor are their views.

    `mixed` is what an ensemble's mixture gives, where that is part of the blend.
    """
    blend = plan.blend
    assert blend is not None
    scores = soft_log_probs(logits, plan.start, blend.epsilon)
    gated = ~needed if blend.weights else np.zeros(len(logits), dtype=bool)
    scores *= np.where(gated, blend.gated_own, blend.own)[:, None]
    if blend.offsets:
        scores[~gated] += np.asarray(blend.offsets)
    if blend.gated_offsets:
        scores[gated] += np.asarray(blend.gated_offsets)
    for (_, weight), view in zip(blend.weights, transformed):
        scores[needed] += weight * soft_log_probs(view[needed], plan.start, blend.epsilon)
    if blend.needs_mixture and mixed is not None:
        x = np.log((1.0 - blend.epsilon) * mixed + blend.epsilon / mixed.shape[1])
        scores += x * np.where(gated, blend.gated_mixture, blend.mixture)[:, None]
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    probs = keep_answers(scores, logits.argmax(axis=1)) if blend.answers == "kept" else scores
    return np.clip(probs, np.finfo(np.float64).tiny, BELOW_ONE, out=probs)


def keep_answers(probs: Matrix, answers: Labels) -> Matrix:
    """Return the nearest probabilities in which each row's answer is the likeliest class: the guard.

    Where rivals are likelier, the answer and the rivals above it share their probability equally: with the rivals'
    probabilities in falling order, the level is the largest of the means over the answer and the first m rivals,
    m = 0, 1, ...; rivals above the level come down to it and the answer takes what they lose. Other classes keep
    theirs. Of all probabilities that keep the answer these have the least expected NLL, and the least expected Brier
    score, if `probs` were the truth: averaging what violates an order is the optimum for every such score.

    Examples
    --------
    >>> from recal.runtime.reference import keep_answers
    >>> keep_answers(np.array([[0.6, 0.1, 0.3]]), np.array([2])).round(3).tolist()
    [[0.45, 0.1, 0.45]]
    """
    kept = np.array(probs, dtype=np.float64, order="C")
    rows = np.arange(len(kept))
    own = kept[rows, answers]
    kept[rows, answers] = -1.0
    doubted = np.flatnonzero(kept.max(axis=1) > own * (1.0 - MARGIN))
    kept[rows, answers] = own
    if not len(doubted):
        return kept
    rivals, columns, own = kept[doubted], answers[doubted], own[doubted]
    place = np.arange(len(doubted))
    rivals[place, columns] = 0.0
    falling = -np.sort(-rivals, axis=1)
    means = (own[:, None] + np.cumsum(falling, axis=1)) / np.arange(2, rivals.shape[1] + 2)
    level = np.maximum(own, means.max(axis=1))
    lowered = np.minimum(rivals, (level * (1.0 - MARGIN))[:, None])
    lowered[place, columns] = own + (rivals - lowered).sum(axis=1)
    kept[doubted] = lowered
    return kept


def lift_answers(probs: Matrix, answers: Labels) -> Matrix:
    """Give each row's answer the largest probability, in place, where rounding gave it to another class or made a tie.

    The two values are equal or differ by rounding, and change places; an answer that is still tied with an earlier
    class is lifted by one unit in the last place.
    """
    best = probs.argmax(axis=1)
    rows = np.flatnonzero(best != answers)
    if not len(rows):
        return probs
    columns, rivals = answers[rows], best[rows]
    probs[rows, columns], probs[rows, rivals] = probs[rows, rivals], probs[rows, columns]
    tied = probs[rows].argmax(axis=1) != columns
    rows, columns = rows[tied], columns[tied]
    probs[rows, columns] = np.nextafter(probs[rows, columns], 1.0)
    return probs
