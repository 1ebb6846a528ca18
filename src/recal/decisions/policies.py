"""Policies of a cascade: the list from strict to loose, and the choice of the one to use.

**The list of policies** comes from the confidences that `PanelCalibration.fit` cross-validated, so
from other labels than those that test it. If an accepted mistake costs `price`, the cheapest policy
follows backwards from the last system (dynamic programming): stop where accepting or reviewing
costs less than the next system and what follows it. Each price gives one policy; falling prices
give a list from strict to loose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.decisions.certify import (
    chance_of_so_few,
    kept_on_average,
    one_row_per_cluster,
    passed_in_order,
)

Vector = NDArray[np.float64]
Flags = NDArray[np.bool_]
# A threshold that no confidence reaches.
NEVER = 2.0


def follow(confidence: Vector, accept: Vector, review: Vector) -> tuple[NDArray[np.intp], Flags]:
    """Return the stage at which each question stops, counted from 0, and whether it is accepted.

    After the last system, whatever is not accepted is reviewed.
    """
    upper, lower = np.broadcast_to(accept, confidence.shape), review
    reached = confidence >= upper
    ends = reached | (confidence < lower)
    ends[:, -1] = True
    stop = ends.argmax(axis=1)
    return stop, reached[np.arange(len(stop)), stop]


def list_policies(
    confidence: Vector, costs: Vector, review_cost: float, n_prices: int = 100, between: int = 5
) -> tuple[Vector, Vector]:
    """Return thresholds of the cheapest policy for each price of a mistake, strict ones first.

    The price is given by the final threshold t, at which accepting costs as much as a review:
    price * (1 - t) = review_cost. Thresholds can jump from one price to the next, so policies
    `between` them are in the list as well.
    """
    ends = np.unique(np.quantile(confidence[:, -1], np.linspace(1.0, 0.0, n_prices)))[::-1]
    ends = ends[ends < 1.0]
    both = np.array([cheapest(confidence, costs, review_cost, float(end)) for end in ends])
    both = np.where(both >= NEVER, 1.0, both)  # no confidence is larger
    places = np.arange(len(ends))
    finer = np.linspace(0, len(ends) - 1, between * (len(ends) - 1) + 1)
    columns = both.reshape(len(ends), -1).T
    both = np.transpose([np.interp(finer, places, one) for one in columns])
    accept, review = both.reshape(len(finer), 2, -1).transpose(1, 0, 2)
    shares, errors = np.transpose([expected(confidence, *pair) for pair in zip(accept, review)])
    order = np.argsort(errors, kind="stable")
    # A policy that accepts no more than a stricter one is of no use.
    before = np.maximum.accumulate(np.concatenate([[-1.0], shares[order][:-1]]))
    order = order[shares[order] > before]
    return accept[order], review[order]


def cheapest(
    confidence: Vector, costs: Vector, review_cost: float, end: float
) -> tuple[Vector, Vector]:
    """Return both thresholds of each stage, from the last stage backwards."""
    n, n_stages = confidence.shape
    price = review_cost / (1.0 - end)
    accept, review = np.zeros(n_stages), np.zeros(n_stages)
    accept[-1] = review[-1] = end
    last = confidence[:, -1]
    value = np.where(last >= end, price * (1.0 - last), review_cost)
    for stage in range(n_stages - 2, -1, -1):
        own = confidence[:, stage]
        order = np.argsort(own, kind="stable")
        further = costs[stage + 1] + value[order]
        taken = price * (1.0 - own[order])
        # Questions below `low` are reviewed, those from `high` on accepted, the others go on.
        before = np.concatenate([[0.0], np.cumsum(review_cost - further)])
        after = np.concatenate([[0.0], np.cumsum(further - taken)])
        best_low = np.minimum.accumulate(before)
        high = int(np.argmin(best_low + after))
        low = int(np.argmin(before[: high + 1]))
        edges = np.concatenate([[0.0], 0.5 * (own[order][1:] + own[order][:-1]), [NEVER]])
        accept[stage], review[stage] = edges[high], edges[low]
        position = np.empty(n, np.intp)
        position[order] = np.arange(n)
        sorted_value = np.where(np.arange(n) < low, review_cost, further)
        sorted_value = np.where(np.arange(n) >= high, taken, sorted_value)
        value = sorted_value[position]
    return accept, review


def expected(confidence: Vector, accept: Vector, review: Vector) -> tuple[float, float]:
    """Return the share that a policy accepts, and its expected error if confidences are true."""
    stop, accepted = follow(confidence, accept, review)
    doubt = 1.0 - confidence[np.arange(len(stop)), stop]
    share = float(accepted.mean())
    return share, float(doubt[accepted].mean()) if share else 0.0


def likely_start(
    accept: Vector, review: Vector, fitted: Vector, n: int, risk: float, level: float
) -> int:
    """Return the loosest policy that is almost as likely to pass the test as any."""
    from scipy.special import bdtr

    chances = np.zeros(len(accept))
    for place, pair in enumerate(zip(accept, review)):
        share, error = expected(fitted, *pair)
        count = round(share * n)
        errors = np.arange(count + 1)
        allowed = int((chance_of_so_few(errors, count, risk) <= level).sum()) - 1
        if count and allowed >= 0:
            chances[place] = float(bdtr(allowed, count, error))
    return int(np.flatnonzero(chances >= chances.max() - 0.01)[-1])


def cost_curve(
    fitted: Vector, confidence: Vector, costs: Vector, review_cost: float, risk: float
) -> Vector:
    """Return cost, share and expected error of policies at the risk, for many prices of a review.

    A low price of a review saves money on systems, a high one automates more.
    """
    points = []
    for factor in np.logspace(-2.5, 2.0, 10):
        accept, review = list_policies(fitted, costs, review_cost * factor, 40)
        errors = np.array([expected(fitted, *pair)[1] for pair in zip(accept, review)])
        within = np.flatnonzero(errors <= risk)
        if len(within):
            pair = accept[within[-1]], review[within[-1]]
            stop, accepted = follow(confidence, *pair)
            money = float(np.cumsum(costs)[stop].mean())
            points.append((money, float(accepted.mean()), float(errors[within[-1]])))
    curve: list[tuple[float, float, float]] = []
    for point in sorted(points):  # a point that costs more must automate more
        if not curve or (point[0] > curve[-1][0] and point[1] > curve[-1][1]):
            curve.append(point)
    return np.array(curve or [(0.0, 0.0, 0.0)])


@dataclass(frozen=True)
class Labelled:
    """Labelled questions: confidence and mistake after each system, and the prices."""

    confidence: Vector
    wrong: Flags
    costs: Vector
    review_cost: float

    def __getitem__(self, rows: Flags) -> Labelled:
        return Labelled(self.confidence[rows], self.wrong[rows], self.costs, self.review_cost)

    def choose(
        self,
        policies: tuple[Vector, Vector],
        fitted: Vector,
        risk: float,
        level: float,
        guarantee: str,
        clusters: NDArray[np.intp] | None,
    ) -> tuple[Vector, Vector]:
        """Return the thresholds of the cheapest policy that keeps the promise."""
        n, n_stages = self.confidence.shape
        nothing = np.full(n_stages, NEVER), np.full(n_stages, NEVER)
        if not n:
            return nothing
        accept, review = policies
        accepted, wrong, cost = self._outcomes(accept, review)
        if guarantee == "average":
            passed = np.arange(kept_on_average(accepted, wrong, risk, clusters))
        else:
            drawn = np.arange(n)
            if clusters is not None:
                last = self.wrong[:, -1]
                drawn = one_row_per_cluster(self.confidence[:, -1], last, _numbered(clusters))
            counts = accepted[drawn].sum(axis=0)
            errors = (accepted & wrong)[drawn].sum(axis=0)
            start = likely_start(accept, review, fitted, len(drawn), risk, level)
            passed = start + np.arange(passed_in_order(errors[start:], counts[start:], risk, level))
        if not len(passed):
            return nothing
        best = passed[int(np.argmin(cost[passed]))]
        return accept[best], review[best]

    def _outcomes(self, accept: Vector, review: Vector) -> tuple[Flags, Flags, Vector]:
        """Return what each policy accepts, whether it is wrong, and its mean cost with reviews."""
        n, index = len(self.confidence), np.arange(len(self.confidence))
        accepted = np.empty((n, len(accept)), dtype=bool)
        wrong = np.empty((n, len(accept)), dtype=bool)
        cost = np.empty(len(accept))
        spent = np.cumsum(self.costs)
        for place, (upper, lower) in enumerate(zip(accept, review)):
            stop, accepted[:, place] = follow(self.confidence, upper, lower)
            wrong[:, place] = self.wrong[index, stop]
            reviews = 1.0 - accepted[:, place].mean()
            cost[place] = spent[stop].mean() + self.review_cost * reviews
        return accepted, wrong, cost


def _numbered(clusters: NDArray[np.intp]) -> NDArray[np.intp]:
    return np.unique(clusters, return_inverse=True)[1].astype(np.intp)
