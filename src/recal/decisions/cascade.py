"""Cascades: ask cheap systems first, stop when the panel is sure enough, under one guarantee.

After each system a policy compares the panel's confidence with two thresholds: accept from the
upper one on, hand over to a person below the lower one, and ask the next system in between.

**The list of policies** comes from the confidences that `PanelCalibration.fit` cross-validated, so
from other labels than those that test it. If an accepted mistake costs `price`, the cheapest policy
follows backwards from the last system (dynamic programming): stop where accepting or reviewing
costs less than the next system and what follows it. Each price gives one policy; falling prices
give a list from strict to loose.

**The certificate** is for the whole policy. Each policy in the list was fixed before these labels
were seen, and given how many questions it accepts, its mistakes are binomial; which system gave an
answer does not matter. The policies are tested in their order, each only if the one before it
passed, so with probability `confidence` none of those that passed has a larger risk
(`recal.decisions.certify`). The test starts at the loosest policy that is almost as likely to pass
as any, judged by the panel's confidences and by how many questions it and looser policies accept:
given this number, the questions that it accepts are independent draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.panel import PanelCalibration, read_costs
from recal.calibrators.panel_answers import PanelRows, right_answers
from recal.calibrators.panel_fit import PanelFit
from recal.calibrators.samples import Samples
from recal.checks import Flags, Indices, Vector
from recal.clusters import ByRow, check_clusters, check_names
from recal.copies import warn_of_fitted
from recal.decisions.certify import (
    Evidence,
    allowed_errors,
    kept_on_average,
    one_row_per_cluster,
    passed_in_order,
)
from recal.decisions.rule import Guarantee, check_share, places_of_groups, promise_in_words
from recal.errors import InputError
from recal.schema import FloatArray, Instance, Number, Record, Share, Texts, check, kind_of

# A threshold that no confidence reaches.
NEVER = 2.0


@dataclass(frozen=True)
class CascadeOutcome:
    """What a cascade does with some questions.

    Attributes
    ----------
    answer : (n,) objects, None if there is none
    confidence : (n,)
    next : (n,) objects: "accept", "review", or the name of the system to ask
    asked : (n,), how many systems the policy used so far
    """

    answer: NDArray[Any]
    confidence: Vector
    next: NDArray[Any]
    asked: NDArray[np.intp]


class CascadeRule(Record):
    """When to accept an answer, which system to ask next, and when to ask a person.

    Attributes
    ----------
    panel : PanelCalibration
    systems : names of the systems in the order in which they are asked
    accept, review : arrays of shape (n_groups, n_systems)
        Accept from a confidence of `accept` on, review below `review`, else ask the next system.
        There is one row if there are no groups.
    groups : names of the groups
    risk, confidence, guarantee : the promise
    costs, review_cost : the price of each system, and of a review
    share : float
        The share of questions that is answered automatically.
    cost : float
        What the systems cost per question; reviews cost `review_cost` times ``1 - share`` more.
    n_samples, n_accepted, n_errors : int
        The labelled questions, those accepted, and the mistakes among these.
    curve : array of shape (n_points, 3)
        Cost per question, share automated, and expected error of the cheapest policies at the
        promised risk, from the cheapest to the most complete; without a certificate.
    others : names of what the cascade is compared with: "all systems", and each system alone
    other_shares, other_costs : the share under the same promise, and the cost, of each
    """

    panel: Annotated[Any, Instance("PanelCalibration")]
    systems: Texts
    accept: Annotated[Vector, FloatArray("G", "K", low=0.0, high=NEVER)]
    review: Annotated[Vector, FloatArray("G", "K", low=0.0, high=NEVER)]
    groups: Texts
    risk: Share
    confidence: Share
    guarantee: Guarantee
    costs: Annotated[Vector, FloatArray("K", low=0.0)]
    review_cost: Annotated[float, Number(0.0)]
    share: Share
    cost: Annotated[float, Number(0.0)]
    n_samples: Annotated[int, Number(0, whole=True)]
    n_accepted: Annotated[int, Number(0, whole=True)]
    n_errors: Annotated[int, Number(0, whole=True)]
    curve: Annotated[Vector, FloatArray(None, 3)]
    others: Texts
    other_shares: Annotated[Vector, FloatArray("O", low=0.0, high=1.0)]
    other_costs: Annotated[Vector, FloatArray("O", low=0.0)]

    def check(self) -> None:
        if any(name not in self.panel.table_.systems for name in self.systems):
            raise InputError("must be systems of the panel", argument="systems")
        if self.groups and len(self.groups) != len(self.accept):
            raise InputError("must name each row of thresholds once", argument="groups")

    @property
    def possible(self) -> bool:
        """Whether anything can be accepted."""
        return bool((self.accept < NEVER).any())

    @property
    def total_cost(self) -> float:
        """What a question costs, reviews included."""
        return self.cost + self.review_cost * (1.0 - self.share)

    def next(
        self, answers: Any, signals: Any = None, groups: Any = None, *, asked: Any = None
    ) -> NDArray[Any]:
        """Return "accept", "review" or the system to ask next, for each question.

        Parameters
        ----------
        answers, signals : as in `PanelCalibration.predict`
            The answers so far; the systems that come later are absent or None.
        groups : array-like of shape (n_questions,), needed if the rule has groups
        asked : how many systems were asked, per question or for all, optional
            Needed only if the last system that was asked gave neither an answer nor a signal.
        """
        return self.apply(answers, signals, groups, asked=asked).next

    def predict(
        self, answers: Any, signals: Any = None, groups: Any = None, *, asked: Any = None
    ) -> NDArray[Any]:
        """Return the answer at the point where the cascade stops, for each question."""
        return self.apply(answers, signals, groups, asked=asked).answer

    def apply(
        self, answers: Any, signals: Any = None, groups: Any = None, *, asked: Any = None
    ) -> CascadeOutcome:
        """Return answer, confidence and next step of each question in one pass."""
        rows = self.panel.read(answers, signals, asked)
        places, confidence = stage_answers(self.panel, rows, self._stages)
        which = np.zeros(len(rows), np.intp)
        if self.groups:
            which = places_of_groups(self.groups, groups, len(rows))
        reached = np.searchsorted(np.array(self._stages) + 1, rows.asked, side="right")
        stop, accepted = follow(confidence, self.accept[which], self.review[which])
        known = which >= 0
        stage = np.minimum(stop, np.maximum(reached - 1, 0))
        done = known & (stop < reached)
        names = np.array([*self.systems, "review"], dtype=object)
        step = names[np.minimum(reached, len(self.systems))]
        step = np.where(done, np.where(accepted, "accept", "review"), step)
        step = np.where(known, step, "review")
        index = np.arange(len(rows))
        place = places[index, stage]
        answer = rows.raw[index, np.maximum(place, 0)]
        answer[place < 0] = None
        return CascadeOutcome(answer, confidence[index, stage], step, stage + 1)

    @property
    def _stages(self) -> list[int]:
        return [self.panel.table_.systems.index(name) for name in self.systems]

    @property
    def promise(self) -> str:
        """The promise in words."""
        where = " in each group" if self.groups else ""
        return promise_in_words(self.risk, self.confidence, self.guarantee) + where

    def __str__(self) -> str:
        order = ", then ".join(self.systems)
        lines = [f"Ask {order}. Promise: {self.promise}."]
        if not self.possible:
            weaker = "" if self.guarantee == "average" else "the promise on average, "
            lines[0] += (
                f" {self.n_samples:,} labelled questions cannot show this: nothing is accepted. "
                f"Try {weaker}a larger risk or more labels."
            )
        rows = [("cascade", self.share, self.cost)]
        rows += zip(self.others, self.other_shares.tolist(), self.other_costs.tolist())
        for name, share, cost in rows:
            total = cost + self.review_cost * (1.0 - share)
            lines.append(
                f"  {name}: {share:.1%} automated for {cost:.4g} per question, "
                f"{total:.4g} with reviews"
            )
        return "\n".join(lines)


def plan_cascade(
    panel: PanelCalibration,
    answers: Any,
    truth: Any,
    signals: Any = None,
    *,
    costs: Mapping[str, float] | Sequence[float],
    review_cost: float,
    risk: float,
    confidence: float = 0.95,
    guarantee: Guarantee = "confidence",
    clusters: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> CascadeRule:
    """Find when to stop asking further systems, with a guarantee for all accepted answers.

    The systems are asked in the order in which the panel was fitted, from cheap to expensive as a
    rule; systems that the panel left out are not asked. The labels must be other ones than those
    of the panel's fit.

    Parameters
    ----------
    panel : fitted PanelCalibration
    answers, truth, signals : as in `PanelCalibration.fit`
        Answers of all systems to labelled questions.
    costs : {system: cost}, or one cost per system
        The price of asking each system one question.
    review_cost : float
        The price of one review by a person, in the same unit. The lower it is, the sooner a
        question is handed over in place of asking another system.
    risk : float
        The largest share of mistakes among accepted answers.
    confidence : float
        The probability that the guarantee holds, over the labelled questions.
    guarantee : {"confidence", "average"}
        Whether the risk holds with this confidence, or on average over labelled and new questions.
    clusters : array-like of shape (n_questions,), optional
        Names of questions that belong together; then one of each cluster counts.
    groups : array-like of shape (n_questions,), optional
        Each group gets its own thresholds and its own guarantee; all hold at once.

    Returns
    -------
    CascadeRule : `rule.next(answers, signals)` says "accept", "review" or the system to ask.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import PanelCalibration, plan_cascade
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.integers(0, 8, 2000)
    >>> accuracies = {"small": 0.7, "medium": 0.8, "large": 0.9}
    >>> answers = {
    ...     name: np.where(rng.random(2000) < accuracy, truth, rng.integers(0, 8, 2000))
    ...     for name, accuracy in accuracies.items()
    ... }
    >>> fit, rest = slice(0, 1000), slice(1000, None)
    >>> panel = PanelCalibration().fit({k: v[fit] for k, v in answers.items()}, truth[fit])
    >>> rule = plan_cascade(
    ...     panel, {k: v[rest] for k, v in answers.items()}, truth[rest],
    ...     costs={"small": 1, "medium": 4, "large": 20}, review_cost=100, risk=0.05,
    ... )
    >>> rule.next({"small": [3, 3], "medium": [None, 3]}).tolist()
    ['medium', 'accept']
    """
    check_share(risk, "risk")
    check_share(confidence, "confidence")
    check(guarantee, kind_of(Guarantee), "guarantee")
    check(review_cost, Number(0.0, ends="()"), "review_cost")
    if not isinstance(panel, PanelCalibration):
        raise InputError(
            f"must be a fitted PanelCalibration, got {type(panel).__name__}", argument="panel"
        )
    rows = panel.read(answers, signals, len(panel.state()["table_"].systems))
    warn_of_fitted(
        panel.fitted_questions(rows),
        len(rows),
        "the guarantee does not hold",
        "Plan the cascade on other questions.",
    )
    table = panel.table_
    right, _ = right_answers(rows, table, truth, panel.same or panel.match)
    prices = read_costs(costs, table.systems)
    stages = [place for place, gain in enumerate(panel.gains_) if gain["used"]]
    places, sure = stage_answers(panel, rows, stages)
    picked = np.take_along_axis(right, np.maximum(places, 0), axis=1)
    labelled = Labelled(sure, (places < 0) | (picked <= 0.0), prices[stages], review_cost)
    units = None if clusters is None else check_clusters(clusters, len(rows))
    names: tuple[str, ...] = ()
    group = np.zeros(len(rows), np.intp)
    if groups is not None:
        names, group = check_names(groups, len(rows), "groups")
    n_groups = max(len(names), 1)
    level = (1.0 - confidence) / n_groups
    fitted = panel.stage_confidence_[:, stages]
    policies = list_policies(fitted, prices[stages], review_cost)
    chosen = [
        labelled[group == one].choose(
            policies, risk, level, guarantee, None if units is None else units[group == one]
        )
        for one in range(n_groups)
    ]
    accept = np.stack([one[0] for one in chosen])
    review = np.stack([one[1] for one in chosen])
    stop, accepted = follow(sure, accept[group], review[group])
    index = np.arange(len(rows))
    spent = np.cumsum(prices[stages])
    compared = [(sure[:, -1], labelled.wrong[:, -1]), *_alone(panel, rows, right, units)]
    shares = []
    for pair in compared:
        answers_of, sizes = Evidence.of(*pair, units).sizes(risk, level, guarantee)
        shares.append(sizes[-1] / len(answers_of) if len(sizes) else 0.0)
    return CascadeRule(
        panel=panel,
        systems=tuple(table.systems[place] for place in stages),
        accept=accept,
        review=review,
        groups=names,
        risk=risk,
        confidence=confidence,
        guarantee=guarantee,
        costs=prices[stages],
        review_cost=float(review_cost),
        share=float(accepted.mean()),
        cost=float(spent[stop].mean()),
        n_samples=len(rows),
        n_accepted=int(accepted.sum()),
        n_errors=int((accepted & labelled.wrong[index, stop]).sum()),
        curve=cost_curve(fitted, sure, prices[stages], review_cost, risk),
        others=("all systems", *(f"{name} alone" for name in table.systems)),
        other_shares=np.array(shares),
        other_costs=np.r_[spent[-1], prices],
    )


def stage_answers(
    panel: PanelCalibration, rows: PanelRows, stages: Sequence[int]
) -> tuple[NDArray[np.intp], Vector]:
    """Return place and confidence of the answer after each system, (n, n_stages).

    After systems that no question has reached, there is no answer: -1, with confidence 0.
    """
    reached = [place + 1 for place in stages if place < rows.asked.max(initial=1.0)]
    places = np.full((len(rows), len(stages)), -1)
    sure = np.zeros(places.shape)
    for column, probs in enumerate(panel.map_.after(rows.encoded(), reached)):
        places[:, column], sure[:, column] = panel.chosen(rows, probs)
    return places, sure


def _alone(
    panel: PanelCalibration, rows: PanelRows, right: Vector, clusters: NDArray[np.intp] | None
) -> list[tuple[Vector, Flags]]:
    """Return confidence and mistakes of each system alone."""
    samples, rng = Samples(rows, right, clusters=clusters), np.random.default_rng(0)
    how: dict[str, Any] = {"merged": panel.map_.merged, "most_rows": len(rows)}
    fit = PanelFit(samples, panel.table_, rng, kept=False, **how)
    index = np.arange(len(rows))
    alone = []
    for place in range(len(panel.table_.systems)):
        own = fit.logit([place], fit.penalties[0])[:, :-1]
        alone.append((own.max(axis=1), right[index, own.argmax(axis=1)] <= 0.0))
    return alone


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


class Policies(NamedTuple):
    """Thresholds of policies, (n_policies, n_stages); what each accepts, and its expected error."""

    accept: Vector
    review: Vector
    shares: Vector
    errors: Vector
    n_fitted: int  # the questions that shares and errors come from


def list_policies(
    confidence: Vector, costs: Vector, review_cost: float, n_prices: int = 100, between: int = 5
) -> Policies:
    """Return the cheapest policy for each price of a mistake, strict ones first.

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
    return Policies(accept[order], review[order], shares[order], errors[order], len(confidence))


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
        order = np.argsort(confidence[:, stage], kind="stable")
        own, further = confidence[order, stage], costs[stage + 1] + value[order]
        taken = price * (1.0 - own)
        # Questions below `low` are reviewed, those from `high` on accepted, the others go on.
        # Equal confidences stay together.
        cuts = np.flatnonzero(np.r_[True, own[1:] != own[:-1], True])
        before = np.concatenate([[0.0], np.cumsum(review_cost - further)])[cuts]
        after = np.concatenate([[0.0], np.cumsum(further - taken)])[cuts]
        best = int(np.argmin(np.minimum.accumulate(before) + after))
        high, low = cuts[best], cuts[int(np.argmin(before[: best + 1]))]
        edges = np.concatenate([[0.0], 0.5 * (own[1:] + own[:-1]), [NEVER]])
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


def likely_start(policies: Policies, counts: Indices, n: int, risk: float, level: float) -> int:
    """Return the loosest policy that is almost as likely to pass the test as any stricter one.

    `counts` are the labelled questions, of `n`, that each policy accepts. Those of stricter
    policies are estimated from the shares of the fit, so that the choice says nothing about the
    questions inside the set where the test begins. The expected errors vary, too: they come from
    the questions of the fit.
    """
    from scipy.special import ndtr

    allowed = allowed_errors(np.arange(counts.max() + 1), risk, level)
    spread = np.sqrt(1 + n / policies.n_fitted)
    for place in range(len(counts) - 1, 0, -1):
        likely = counts[place] * policies.shares[: place + 1] / policies.shares[place]
        most = allowed[np.rint(likely).astype(np.intp)]
        # The normal score of a Poisson number with this mean being at most what is allowed.
        scores = 2 * (
            np.sqrt(np.maximum(most, 0) + 0.75) - np.sqrt(likely * policies.errors[: place + 1])
        )
        chances = np.where(most >= 0, ndtr(scores / spread), 0.0)
        if chances[place] >= chances.max() - 0.01:
            return place
    return 0


def cost_curve(
    fitted: Vector, confidence: Vector, costs: Vector, review_cost: float, risk: float
) -> Vector:
    """Return cost, share and expected error of policies at the risk, for many prices of a review.

    A low price of a review saves money on systems, a high one automates more.
    """
    points = []
    for factor in np.logspace(-2.5, 2.0, 10):
        policies = list_policies(fitted, costs, review_cost * factor, 40)
        within = np.flatnonzero(policies.errors <= risk)
        if len(within):
            accept, review, _, error = (column[within[-1]] for column in policies[:4])
            stop, accepted = follow(confidence, accept, review)
            money = float(np.cumsum(costs)[stop].mean())
            points.append((money, float(accepted.mean()), float(error)))
    curve: list[tuple[float, float, float]] = []
    for point in sorted(points):  # a point that costs more must automate more
        if not curve or (point[0] > curve[-1][0] and point[1] > curve[-1][1]):
            curve.append(point)
    return np.array(curve or [(0.0, 0.0, 0.0)])


@dataclass(frozen=True)
class Labelled(ByRow):
    """Labelled questions: confidence and mistake after each system, and the prices."""

    whole = ("costs",)

    confidence: Vector
    wrong: Flags
    costs: Vector
    review_cost: float

    def choose(
        self,
        policies: Policies,
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
        accepted, wrong, cost = self._outcomes(policies)
        if guarantee == "average":
            passed = np.arange(kept_on_average(accepted, wrong, risk, clusters))
        else:
            drawn = np.arange(n)
            if clusters is not None:
                last = self.wrong[:, -1]
                numbers = np.unique(clusters, return_inverse=True)[1].astype(np.intp)
                drawn = one_row_per_cluster(self.confidence[:, -1], last, numbers)
            counts = accepted[drawn].sum(axis=0)
            errors = (accepted & wrong)[drawn].sum(axis=0)
            start = likely_start(policies, counts, len(drawn), risk, level)
            passed = start + np.arange(passed_in_order(errors[start:], counts[start:], risk, level))
        if not len(passed):
            return nothing
        best = passed[int(np.argmin(cost[passed]))]
        return policies.accept[best], policies.review[best]

    def _outcomes(self, policies: Policies) -> tuple[Flags, Flags, Vector]:
        """Return what each policy accepts, whether it is wrong, and its mean cost with reviews."""
        accepted, wrong, cost = [], [], []
        spent, index = np.cumsum(self.costs), np.arange(len(self.confidence))
        for upper, lower in zip(policies.accept, policies.review):
            stop, taken = follow(self.confidence, upper, lower)
            accepted.append(taken)
            wrong.append(self.wrong[index, stop])
            cost.append(spent[stop].mean() + self.review_cost * (1.0 - taken.mean()))
        return np.transpose(accepted), np.transpose(wrong), np.array(cost)
