"""Several decisions side by side: by method and by risk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from recal.checks import Vector
from recal.decisions.certify import Counts
from recal.decisions.decision import Decision
from recal.decisions.guarantee import JudgedAnswers, Terms, decide, read_answers
from recal.decisions.rule import Guarantee, check_share
from recal.errors import InputError
from recal.metrics.intervals import Interval, rate_interval
from recal.metrics.row_scores import Classes
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
    """A `Decision` for each method, and the gains in coverage over the first one; made by
    `decide_each`.
    """

    def __init__(
        self, decisions: Mapping[str, Decision], gains: Mapping[str, Gain], baseline: str
    ) -> None:
        super().__init__(decisions)
        self.gains, self.baseline = gains, baseline

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = {name: decision.to_dict() for name, decision in self.items()}
        for name, gain in self.gains.items():
            rows[name]["gain"] = {"difference": gain.difference, "interval": list(gain.interval)}
        return {"baseline": self.baseline, "methods": rows}


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
    own = confidences or {}
    common: dict[str, Any] = {
        "groups": groups,
        "clusters": clusters,
        "per_class": per_class,
        "classes": classes,
    }
    decisions = {
        name: decide(probs, y, risk, confidence, confidences=own.get(name), **common, **options)
        for name, probs in methods.items()
    }
    answers = [read_answers(probs, y, own.get(name), **common) for name, probs in methods.items()]
    baseline = next(iter(methods))
    rng = np.random.default_rng(random_state)
    shares = _resampled_shares(answers, decisions[baseline], draws, rng)
    gains = {}
    for index, name in enumerate(methods):
        if name != baseline:
            difference = decisions[name].coverage - decisions[baseline].coverage
            tails = [(1 - confidence) / 2, (1 + confidence) / 2]
            low, high = np.quantile(shares[index] - shares[0], tails).tolist()
            gains[name] = Gain(difference, (low, high))
    return Decisions(decisions, gains, baseline)


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
