"""Decisions side by side, by method and by risk, and one rule in several groups."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Vector
from recal.clusters import check_names
from recal.decisions.certify import Counts, chance_of_so_few
from recal.decisions.decision import Decision, Outcome
from recal.decisions.guarantee import JudgedAnswers, Terms, decide, read_answers
from recal.decisions.rule import DecisionRule, Guarantee, check_share, percentage
from recal.errors import GroupRiskWarning, InputError
from recal.metrics.intervals import Interval, rate_interval
from recal.metrics.row_scores import Classes, score
from recal.progress import track

# From one mistake in a thousand to one in five.
RISKS = tuple(float(f"{risk:.3g}") for risk in np.geomspace(0.001, 0.2, 24))


@dataclass(frozen=True)
class Gain:
    """How much more one method accepts than another, with the interval of the difference."""

    difference: float
    interval: Interval

    @property
    def differs(self) -> bool:
        """Whether the interval excludes zero."""
        return not self.interval[0] <= 0.0 <= self.interval[1]


class Decisions(dict[str, Decision]):
    """A `Decision` for each method, and the `gains` in coverage over the first one; made by
    `decide_each`.
    """

    gains: dict[str, Gain]


def decide_each(
    methods: Mapping[str, ArrayLike],
    y: ArrayLike,
    risk: float = 0.01,
    confidence: float = 0.95,
    *,
    confidences: Mapping[str, ArrayLike | None] | None = None,
    groups: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    per_class: bool = False,
    draws: int = 200,
    random_state: int | None = 0,
    classes: Classes = None,
    **options: Any,
) -> Decisions:
    """Decide with the probabilities of each method, and compare the shares that they accept.

    A gain is the difference to the first method. Its interval comes from resampled rows, the same
    for all methods. Each method searches its threshold again on every resample, so the interval
    includes how the search varies. Each guarantee holds for its own method; choosing the method
    with the largest share afterwards is not covered.

    Parameters
    ----------
    methods : mapping of name to probabilities of shape (n_samples, n_classes), or confidences of
    shape (n_samples,)
        All for the same samples.
    y, risk, confidence, groups, clusters, per_class, classes : as in `decide`
        Resamples are drawn by cluster.
    confidences : mapping of name to the result of `predict_confidence`, optional
        Methods that it does not name are ranked by their largest probabilities.
    draws : int
        Number of resamples.
    random_state : int or None
        Seed of the draws.
    **options
        Further options of `decide`.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import decide_each
    >>> rng = np.random.default_rng(0)
    >>> score = rng.random(3000)
    >>> y = np.where(rng.random(3000) < 0.7 + 0.3 * score, 0, 1)
    >>> def probs(confidence):
    ...     return np.column_stack([confidence, 1 - confidence])
    >>> methods = {"blind": probs(0.5 + 0.5 * rng.random(3000)), "seeing": probs(0.5 + 0.5 * score)}
    >>> decisions = decide_each(methods, y, risk=0.1)
    >>> decisions["blind"].possible, decisions["seeing"].possible, decisions.gains["seeing"].differs
    (False, True, True)
    """
    if not methods:
        raise InputError("must name at least one method and its probabilities", argument="methods")
    shapes = {np.shape(probs) for probs in methods.values()}
    if len(shapes) > 1:
        raise InputError(
            "Methods must answer for the same samples and classes, got "
            f"{' and '.join(map(str, sorted(shapes)))}."
        )
    common: dict[str, Any] = {"groups": groups, "clusters": clusters}
    common |= {"per_class": per_class, "classes": classes}
    decisions = Decisions()
    answers = []
    for name, probs in methods.items():
        own = (confidences or {}).get(name)
        decisions[name] = decide(probs, y, risk, confidence, confidences=own, **common, **options)
        answers.append(read_answers(probs, y, own, **common))
    first, *others = decisions.values()
    shares = _resampled_shares(answers, first, draws, np.random.default_rng(random_state))
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    decisions.gains = {}
    for name, other, own_shares in zip(list(methods)[1:], others, shares[1:]):
        low, high = np.quantile(own_shares - shares[0], tails).tolist()
        decisions.gains[name] = Gain(other.coverage - first.coverage, (low, high))
    return decisions


def _resampled_shares(
    answers: list[JudgedAnswers], like: Decision, draws: int, rng: np.random.Generator
) -> Vector:
    """Return the share that each method accepts in each resample, (n_methods, draws)."""
    n_groups = len(answers[0].names)
    terms = Terms(like.risk, like.confidence, like.guarantee, like.costs, n_groups)
    shares = np.empty((len(answers), draws))
    for draw in track(range(draws), "draw"):
        rows, clusters = resampled_rows(answers[0], rng)
        for index, one in enumerate(answers):
            shares[index, draw] = terms.share(one.take(rows, clusters).parts())
    return shares


def resampled_rows(
    answers: JudgedAnswers, rng: np.random.Generator
) -> tuple[Counts, Counts | None]:
    """Draw rows with replacement, or whole clusters, and number the drawn clusters."""
    if answers.clusters is None:
        return np.asarray(rng.integers(len(answers), size=len(answers))), None
    order, counts = np.argsort(answers.clusters, kind="stable"), np.bincount(answers.clusters)
    members = np.split(order, np.cumsum(counts)[:-1])
    chosen = rng.integers(len(counts), size=len(counts))
    drawn = [members[cluster] for cluster in chosen]
    numbers = np.repeat(np.arange(len(drawn)), [len(one) for one in drawn])
    return np.concatenate(drawn), numbers


@dataclass(frozen=True)
class RiskCurve:
    """The share of predictions that can be accepted at each risk, as found by `decide`.

    Every point has its own guarantee; there is none for the whole curve at once. `seen` is the
    share at which mistakes reach the risk in these samples, without a guarantee. More labels could
    close the distance between the two.
    """

    risks: tuple[float, ...]
    thresholds: tuple[float, ...]
    coverage: tuple[float, ...]
    intervals: tuple[Interval, ...]
    seen: tuple[float, ...]
    confidence: float


def risk_curve(
    probs: ArrayLike,
    y: ArrayLike,
    risks: Sequence[float] = RISKS,
    confidence: float = 0.95,
    *,
    guarantee: Guarantee = "confidence",
    confidences: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    classes: Classes = None,
) -> RiskCurve:
    """Return the share that can be accepted at each of several risks.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import risk_curve
    >>> confidence = np.linspace(1, 0.5, 1000)
    >>> wrong = np.arange(1000) % 50 == 49
    >>> curve = risk_curve(np.column_stack([confidence, 1 - confidence]), wrong.astype(int), risks=(0.01, 0.05))
    >>> curve.coverage, curve.seen
    ((0.0, 1.0), (0.049, 1.0))
    """
    check_share(confidence, "confidence")
    part = read_answers(probs, y, confidences, clusters=clusters, classes=classes).parts()[0]
    rows = part.all_rows
    n = len(rows)
    rates = rows.errors[rows.ends] / rows.ends
    thresholds = [
        Terms(check_share(risk, "risks"), confidence, guarantee).threshold(part) for risk in risks
    ]
    counts = [int((rows.confidence >= threshold).sum()) for threshold in thresholds]
    within = [rows.ends[rates <= risk] for risk in risks]
    scale = len(part.evidence) / n
    return RiskCurve(
        risks=tuple(float(risk) for risk in risks),
        thresholds=tuple(thresholds),
        coverage=tuple(count / n for count in counts),
        intervals=tuple(rate_interval(scale * count, scale * n, confidence) for count in counts),
        seen=tuple(float(ends[-1] / n) if len(ends) else 0.0 for ends in within),
        confidence=confidence,
    )


@dataclass(frozen=True, kw_only=True)
class GroupRisk(Outcome):
    """How one rule does in one group of labelled samples.

    `interval` is the 95 % interval of the share of mistakes among accepted predictions. `broken`
    says whether this share is clearly above the risk, after correcting for the number of groups.
    """

    broken: bool


def risk_by_group(
    rule: DecisionRule,
    probs: ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    confidences: ArrayLike | None = None,
    *,
    classes: Any = None,
) -> tuple[GroupRisk, ...]:
    """Return how one rule does in each group of labelled samples, the worst group first.

    A rule that holds on average can fail in a group. A warning names the groups in which it is
    clearly broken; `decide` with `groups=` gives each group its own threshold and guarantee.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import DecisionRule, risk_by_group
    >>> confidence, groups = np.full(400, 0.9), np.repeat(["law", "physics"], 200)
    >>> correct = np.arange(400) % np.repeat([4, 50], 200) > 0
    >>> worst, best = risk_by_group(DecisionRule((0.5,), 0.05, 0.95), confidence, correct, groups)
    >>> worst.name, worst.error_rate, worst.broken, best.broken
    ('law', 0.25, True, False)
    """
    wrong = ~score(probs, y, classes).correct
    names, index = check_names(groups, len(wrong), "groups")
    accepted = rule.accept(probs, confidences, groups if rule.groups else None)
    n_accepted, n_errors = (
        np.bincount(index[some], minlength=len(names)) for some in (accepted, accepted & wrong)
    )
    chances = 1.0 - chance_of_so_few(n_errors - 1, n_accepted, rule.risk)
    broken = holm(chances) <= 0.05
    columns = (names, *(one.tolist() for one in (np.bincount(index), n_accepted, n_errors, broken)))
    rows = [
        GroupRisk(
            name=name,
            n_samples=n,
            n_accepted=count,
            n_errors=errors,
            interval=rate_interval(errors, count),
            broken=bad,
        )
        for name, n, count, errors, bad in zip(*columns)
    ]
    rows.sort(key=lambda row: (-row.interval[0], -np.nan_to_num(row.error_rate), row.name))
    if bad := [row for row in rows if row.broken]:
        worst = bad[0]
        warnings.warn(
            f"The rule for at most {percentage(rule.risk)} mistakes is clearly broken in {len(bad)} of "
            f"{len(rows)} groups. The worst is {worst.name!r}: {worst.n_errors:,} of "
            f"{worst.n_accepted:,} accepted predictions are wrong. Use decide(..., groups=groups) "
            "for a threshold and a guarantee per group.",
            GroupRiskWarning,
            stacklevel=2,
        )
    return tuple(rows)


def holm(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Correct p-values for their number (Holm, 1979): never weaker than Bonferroni, and valid for
    any dependence.
    """
    order = np.argsort(values, kind="stable")
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(
        np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1.0
    )
    return corrected
