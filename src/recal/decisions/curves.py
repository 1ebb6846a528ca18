"""Decisions of several methods on the same samples, and the share that can be automated at each risk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from recal.checks import check_confidences, check_labels, check_probs
from recal.decisions.certify import Interval, Ranked, Vector, certified, ranked, share_interval
from recal.decisions.decision import Decision
from recal.decisions.guarantee import answers_of, decide
from recal.decisions.rule import check_share
from recal.errors import InputError
from recal.metrics.rows import Classes
from recal.progress import track

# From one mistake in a thousand to one in five.
RISKS = tuple(float(f"{risk:.3g}") for risk in np.geomspace(0.001, 0.2, 24))


@dataclass(frozen=True)
class Gain:
    """How much more of the answers one method accepts than another, with the interval of that difference."""

    difference: float
    interval: Interval

    @property
    def differs(self) -> bool:
        """Whether the interval excludes zero."""
        return not self.interval[0] <= 0.0 <= self.interval[1]


@dataclass(frozen=True)
class Decisions(Mapping[str, Decision]):
    """A `Decision` for each method, and the gains in coverage over the first one; made by `decide_each`."""

    decisions: Mapping[str, Decision]
    gains: Mapping[str, Gain]
    baseline: str

    def __getitem__(self, name: str) -> Decision:
        return self.decisions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.decisions)

    def __len__(self) -> int:
        return len(self.decisions)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = {name: decision.to_dict() for name, decision in self.decisions.items()}
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
    draws: int = 200,
    random_state: int | None = 0,
    classes: Classes = None,
    **options: Any,
) -> Decisions:
    """Decide with each method's probabilities, and pair the shares that they accept.

    A gain is the difference to the first method. Its interval comes from resampled rows, the same for all methods, on
    which every method searches its threshold again: it holds the luck of the threshold, too. Each guarantee is for its
    own method; choosing the method with the largest share afterwards is not covered by it.

    Parameters
    ----------
    methods : mapping of name to probabilities of shape (n_samples, n_classes), all of the same samples
    y, risk, confidence, classes : as in `decide`
    confidences : mapping of name to what `predict_confidence` gave, optional
        Methods that it does not name are ranked by their largest probabilities.
    draws : int
        Resamples behind the intervals.
    random_state : int or None
        Seed of the draws.
    **options
        Further options of `decide`.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import decide_each
    >>> rng = np.random.default_rng(0)
    >>> sure = rng.random(3000)
    >>> y = np.where(rng.random(3000) < 0.7 + 0.3 * sure, 0, 1)
    >>> def probs(confidence):
    ...     return np.column_stack([confidence, 1 - confidence])
    >>> methods = {"blind": probs(0.5 + 0.5 * rng.random(3000)), "seeing": probs(0.5 + 0.5 * sure)}
    >>> found = decide_each(methods, y, risk=0.1)
    >>> found["blind"].possible, found["seeing"].possible, found.gains["seeing"].differs
    (False, True, True)
    """
    if not methods:
        raise InputError("must name at least one method and its probabilities", argument="methods")
    sure = {name: (confidences or {}).get(name) for name in methods}
    decisions = {
        name: decide(probs, y, risk, confidence, confidences=sure[name], classes=classes, **options)
        for name, probs in methods.items()
    }
    baseline = next(iter(methods))
    shares = _resampled_shares(methods, sure, y, decisions[baseline], draws, random_state, classes)
    gains = {}
    for index, name in enumerate(methods):
        if name != baseline:
            drawn = shares[index] - shares[0]
            low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
            gains[name] = Gain(decisions[name].coverage - decisions[baseline].coverage, (float(low), float(high)))
    return Decisions(decisions, gains, baseline)


def _resampled_shares(
    methods: Mapping[str, ArrayLike],
    confidences: Mapping[str, ArrayLike | None],
    y: ArrayLike,
    like: Decision,
    draws: int,
    random_state: int | None,
    classes: Classes,
) -> Vector:
    """The share that each method accepts in each draw, (n_methods, draws)."""
    arrays = [check_probs(probs) for probs in methods.values()]
    n, n_classes = arrays[0].shape
    for array in arrays:
        if array.shape != (n, n_classes):
            raise InputError(
                f"Methods must answer for the same samples and classes, got {(n, n_classes)} and {array.shape}."
            )
    labels = check_labels(y, n, n_classes, classes)
    read = [answers_of(array, labels, confidences[name]) for name, array in zip(methods, arrays)]
    calibrated = [confidences[name] is not None for name in methods]
    rng, n_groups = np.random.default_rng(random_state), len(like.parts)
    level = (1.0 - like.confidence) / n_groups
    found = np.empty((len(read), draws))
    for draw in track(range(draws), "draw"):
        rows = np.asarray(rng.integers(n, size=n))
        for index, (answers, sure, wrong) in enumerate(read):
            accepted = 0
            for group in range(n_groups):
                mine = rows if n_groups == 1 else rows[answers[rows] == group]
                accepted += _accepted(ranked(sure[mine], wrong[mine]), like, level, calibrated[index])
            found[index, draw] = accepted / n
    return found


def _accepted(answers: Ranked, like: Decision, level: float, calibrated: bool) -> int:
    if not len(answers):
        return 0
    sizes = certified(answers, like.risk, level, calibrated=calibrated)
    if not len(sizes) or like.costs is None:
        return int(sizes[-1]) if len(sizes) else 0
    return int(sizes[np.argmin(like.costs.per_answer(answers.errors[sizes], sizes, len(answers)))])


@dataclass(frozen=True)
class RiskCurve:
    """The share of answers that can be accepted at each risk: what `decide` finds at each of them.

    Every point has its own guarantee; there is none for the whole curve at once. `seen` is the share at which
    mistakes reach the risk in these samples, without a guarantee: the distance between the two is what more labels
    could bring.
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
    confidences: ArrayLike | None = None,
    classes: Classes = None,
) -> RiskCurve:
    """Return the share that can be accepted, at each of several risks.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import risk_curve
    >>> sure = np.linspace(1, 0.5, 1000)
    >>> wrong = np.arange(1000) % 50 == 49
    >>> curve = risk_curve(np.column_stack([sure, 1 - sure]), wrong.astype(int), risks=(0.01, 0.05))
    >>> curve.coverage, curve.seen
    ((0.0, 1.0), (0.049, 1.0))
    """
    check_share(confidence, "confidence")
    array = check_probs(probs)
    labels = check_labels(y, len(array), array.shape[1], classes)
    answers = ranked(*answers_of(array, labels, confidences)[1:])
    n = len(answers)
    rates = answers.errors[answers.ends] / answers.ends
    counts = []
    for risk in risks:
        sizes = certified(answers, check_share(risk, "risks"), 1.0 - confidence, calibrated=confidences is not None)
        counts.append(int(sizes[-1]) if len(sizes) else 0)
    within = [answers.ends[rates <= risk] for risk in risks]
    return RiskCurve(
        risks=tuple(float(risk) for risk in risks),
        thresholds=tuple(answers.threshold(count) for count in counts),
        coverage=tuple(count / n for count in counts),
        intervals=tuple(share_interval(count, n, confidence) for count in counts),
        seen=tuple(float(ends[-1] / n) if len(ends) else 0.0 for ends in within),
        confidence=confidence,
    )


@dataclass(frozen=True)
class Promise:
    """What a guarantee could reach with so many times the labels, on average over resamples."""

    times: float
    n_samples: int
    coverage: float
    interval: Interval  # of the share accepted, between resamples
    possible: float  # the share of resamples in which anything could be accepted


def more_labels(
    probs: ArrayLike,
    y: ArrayLike,
    like: Decision,
    times: Sequence[float] = (1.0, 2.0, 4.0),
    *,
    confidences: ArrayLike | None = None,
    draws: int = 40,
    random_state: int | None = 0,
) -> tuple[Promise, ...]:
    """Say what share could be accepted with so many times the labelled samples.

    The samples stand for the population: as many as asked are drawn from them, with replacement, and decided on.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import decide, more_labels
    >>> sure = np.linspace(0.99, 0.5, 400)
    >>> probs, y = np.column_stack([sure, 1 - sure]), (np.arange(400) % 40 == 39).astype(int)
    >>> once, often = more_labels(probs, y, decide(probs, y, risk=0.06), times=(1, 16), draws=20)
    >>> once.coverage < 0.9, often.coverage, often.n_samples
    (True, 1.0, 6400)
    """
    array = check_probs(probs)
    labels = check_labels(y, len(array), array.shape[1], like.classes)
    sure = None if confidences is None else check_confidences(confidences, len(array))
    rng = np.random.default_rng(random_state)
    costs = (None, None) if like.costs is None else (like.costs.error, like.costs.review)
    found = []
    for factor in track(times, "sizes"):
        n = round(factor * len(array))
        shares = []
        for _ in track(range(draws), "draw"):
            rows = rng.integers(len(array), size=n)
            one = decide(
                array[rows],
                labels[rows],
                like.risk,
                like.confidence,
                confidences=None if sure is None else sure[rows],
                cost_error=costs[0],
                cost_review=costs[1],
                per_class=like.rule.per_class,
            )
            shares.append(one.coverage)
        low, high = np.quantile(shares, [0.025, 0.975])
        possible = float(np.mean(np.array(shares) > 0))
        found.append(Promise(float(factor), n, float(np.mean(shares)), (float(low), float(high)), possible))
    return tuple(found)
