"""How much can be automated: the threshold above which answers may be accepted, with a guarantee."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Labels, check_confidences, check_labels, check_probs
from recal.decisions.bounds import Interval, Vector, share_interval
from recal.decisions.rule import DecisionRule, Reads, check_share, is_number
from recal.decisions.search import Ranked, certified, further_answers, ranked
from recal.errors import InputError
from recal.metrics.rows import Classes
from recal.same_rows import fitted_rows, warn_of_fitted

REMEDY = (
    "Decide on other labelled samples. Where there are none, recal.decisions.decide_crossfitted "
    "(recal decide --cross-fit) uses the same samples for both."
)
# Of each sample: its answer, the confidence in it, whether it is wrong.
Read = tuple[Labels, Vector, NDArray[np.bool_]]


@dataclass(frozen=True)
class Costs:
    """What a mistake among accepted answers costs and what a review costs, in the same unit."""

    error: float
    review: float

    @property
    def risk(self) -> float:
        """The share of mistakes below which accepting an answer costs less than having it reviewed."""
        return self.review / self.error

    def per_answer(self, errors: int | NDArray[Any], accepted: int | NDArray[Any], n_samples: int) -> Any:
        return (self.error * errors + self.review * (n_samples - accepted)) / n_samples


@dataclass(frozen=True)
class Part:
    """What was found among some answers: all of them, or those of one class."""

    threshold: float
    n_samples: int
    n_accepted: int
    n_errors: int
    needed: int | None
    needed_at_least: bool

    @property
    def possible(self) -> bool:
        return self.n_accepted > 0

    @property
    def coverage(self) -> float:
        return self.n_accepted / self.n_samples if self.n_samples else 0.0


@dataclass(frozen=True)
class Decision:
    """Which answers may be accepted, and what was found on the way; made by `decide`.

    Attributes
    ----------
    threshold : float
        Accept an answer where the confidence in it is at least this; ``inf`` where nothing may be accepted.
    thresholds : tuple of float
        The same for each class, where each has its own.
    coverage : float
        The share of answers that is accepted.
    interval : (low, high)
        Of the coverage on new inputs, at `confidence`.
    n_samples, n_accepted, n_errors : int
        Labelled samples, those accepted, and the mistakes among these.
    needed : int or None
        0 where the samples suffice; otherwise about how many more labelled samples would, None if no number of them.
    rule : DecisionRule
        All that a runtime needs.
    parts : tuple of Part
        One for all answers, or one for each class that can be answered.
    costs : Costs or None
    supported_risk : float or None
        Where nothing may be accepted: the lowest risk at which something could be.
    n_fitted : int
        About how many of the samples the calibration was fitted on. Above 0 there is no guarantee.
    lowest_cost : float
        The mean cost of an answer at the threshold that was cheapest in these samples, without a guarantee: what the
        guarantee costs is `cost` minus this. NaN where no costs were given.
    """

    rule: DecisionRule
    parts: tuple[Part, ...]
    interval: Interval
    costs: Costs | None = None
    classes: tuple[Any, ...] | None = None
    supported_risk: float | None = None
    n_fitted: int = 0
    lowest_cost: float = math.nan

    @property
    def threshold(self) -> float:
        if self.rule.per_class:
            raise InputError("Each class has a threshold of its own here; read `thresholds`.")
        return self.rule.thresholds[0]

    @property
    def thresholds(self) -> tuple[float, ...]:
        return self.rule.thresholds

    @property
    def risk(self) -> float:
        return self.rule.risk

    @property
    def confidence(self) -> float:
        return self.rule.confidence

    @property
    def n_samples(self) -> int:
        return sum(part.n_samples for part in self.parts)

    @property
    def n_accepted(self) -> int:
        return sum(part.n_accepted for part in self.parts)

    @property
    def n_errors(self) -> int:
        return sum(part.n_errors for part in self.parts)

    @property
    def coverage(self) -> float:
        return self.n_accepted / self.n_samples

    @property
    def error_rate(self) -> float:
        """The share of mistakes among accepted answers, as observed; the guarantee is `risk`."""
        return self.n_errors / self.n_accepted if self.n_accepted else math.nan

    @property
    def possible(self) -> bool:
        """Whether anything may be accepted."""
        return self.n_accepted > 0

    @property
    def needed(self) -> int | None:
        if self.possible:
            return 0
        numbers = [part.needed for part in self.parts if part.needed is not None]
        return min(numbers) if numbers else None

    @property
    def cost(self) -> float:
        """The mean cost of an answer under this rule, as observed; NaN where no costs were given."""
        if self.costs is None:
            return math.nan
        return float(self.costs.per_answer(self.n_errors, self.n_accepted, self.n_samples))

    def accept(self, probs: ArrayLike, confidences: ArrayLike | None = None) -> NDArray[np.bool_]:
        """Say of each row of probabilities whether its answer is accepted; see `DecisionRule.accept`."""
        return self.rule.accept(probs, confidences)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a threshold that accepts nothing is None."""
        plain: dict[str, Any] = {
            "possible": self.possible,
            "risk": self.risk,
            "confidence": self.confidence,
            "coverage": self.coverage,
            "interval": list(self.interval),
            "n_samples": self.n_samples,
            "n_accepted": self.n_accepted,
            "n_errors": self.n_errors,
            "needed": self.needed,
            "supported_risk": self.supported_risk,
            "n_fitted": self.n_fitted,
            "message": str(self),
        }
        if self.costs is not None:
            plain["cost"] = self.cost
            plain["lowest_cost"] = self.lowest_cost
            plain["cost_error"], plain["cost_review"] = self.costs.error, self.costs.review
        if not self.rule.per_class:
            return {"threshold": _finite(self.threshold), **plain}
        names = self.classes or tuple(range(len(self.parts)))
        rows = [
            {
                "class": name,
                "threshold": _finite(part.threshold),
                "coverage": part.coverage,
                "n_samples": part.n_samples,
                "n_accepted": part.n_accepted,
                "n_errors": part.n_errors,
                "needed": 0 if part.possible else part.needed,
            }
            for name, part in zip(names, self.parts)
        ]
        return {"thresholds": [_finite(value) for value in self.thresholds], **plain, "by_class": rows}

    def __str__(self) -> str:
        if not self.possible:
            return f"No answer can be accepted: {self._why()}"
        low, high = self.interval
        each = " in each class" if self.rule.per_class else ""
        where = "" if self.rule.per_class else f"from a confidence of {self.threshold:.6g} on, "
        void = f" No guarantee: {self.n_fitted:,} of these samples were used in the fit." if self.n_fitted else ""
        return (
            f"Accept {self.coverage:.1%} of the answers ({low:.1%} to {high:.1%}), {where}with at most "
            f"{_percent(self.risk)} of them wrong{each}, at {_percent(self.confidence)} confidence; "
            f"{self.n_errors:,} mistakes among {self.n_accepted:,} accepted were seen.{void}"
        )

    def _why(self) -> str:
        samples = f"{self.n_samples:,} labelled samples"
        known = self.supported_risk
        instead = "" if known is None else f" As they are, they can show a risk of {_percent(_round_up(known))}."
        if self.needed is None:
            return (
                f"in these {samples} mistakes are more frequent than {_percent(self.risk)} even among the most "
                f"confident answers. More labels would not change that; a higher risk or a better model would.{instead}"
            )
        least = "at least " if all(part.needed_at_least for part in self.parts if part.needed == self.needed) else ""
        each = "for each class " if self.rule.per_class else ""
        return (
            f"{samples} cannot show a risk below {_percent(self.risk)} {each}at {_percent(self.confidence)} "
            f"confidence. You need {least}about {_round(self.needed):,} more labelled samples.{instead}"
        )


def decide(
    probs: ArrayLike,
    y: ArrayLike,
    risk: float = 0.01,
    confidence: float = 0.95,
    *,
    confidences: ArrayLike | None = None,
    cost_error: float | None = None,
    cost_review: float | None = None,
    per_class: bool = False,
    classes: Classes = None,
) -> Decision:
    """Find the threshold above which answers may be accepted: mistakes among them stay below `risk`, guaranteed.

    With probability at least `confidence` over the labelled samples, the true share of mistakes among accepted answers
    is at most `risk`. The bound is exact (binomial) and holds for the search over thresholds, too: see
    `recal.decisions.search`. The samples must be like those to come, and not those that the calibrator was fitted on.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
        Calibrated or not; the guarantee holds for any. Better confidence accepts more.
    y : array-like of shape (n_samples,)
        Integers are column indices; anything else needs `classes`.
    risk : float
        The largest share of mistakes among accepted answers. Given costs replace it.
    confidence : float
        How sure the guarantee is.
    confidences : array-like of shape (n_samples,), optional
        What `predict_confidence` gave; by default each row's largest probability. They rank answers better where a
        calibrator keeps answers that it finds unlikely, and the rule then reads them, too. Being calibrated, they also
        say where the search had best begin, which accepts more where samples are few. The guarantee holds for any.
    cost_error, cost_review : float, optional
        What an accepted mistake and a review cost. Chosen is the threshold with the lowest cost among those that are,
        with the given confidence, cheaper than having every answer reviewed.
    per_class : bool
        One threshold for each class that can be answered, and the guarantee for each of them, all at once.
    classes : sequence of length n_classes, optional
        The columns' names, in the columns' order.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import decide
    >>> rng = np.random.default_rng(0)
    >>> right = rng.random(2000) < 0.97
    >>> found = decide(np.where(right, 0.9, 0.6)[:, None] * [1, -1] + [0, 1], np.where(right, 0, 1), risk=0.02)
    >>> found.threshold, found.coverage > 0.9, found.needed
    (0.75, True, 0)
    >>> print(decide([[0.9, 0.1], [0.8, 0.2]], [0, 0]))  # doctest: +NORMALIZE_WHITESPACE
    No answer can be accepted: 2 labelled samples cannot show a risk below 1% at 95% confidence. You need at least
    about 300 more labelled samples.
    """
    check_share(risk, "risk")
    level = 1.0 - check_share(confidence, "confidence")
    costs = _check_costs(cost_error, cost_review)
    array = check_probs(probs)
    labels = check_labels(y, len(array), array.shape[1], classes)
    bound = risk if costs is None else costs.risk
    read = answers_of(array, labels, confidences)
    groups = by_answer(read, array.shape[1]) if per_class else [ranked(*read[1:])]
    calibrated = confidences is not None
    parts = tuple(_part(group, bound, level / len(groups), costs, calibrated) for group in groups)
    rule = DecisionRule(
        tuple(part.threshold for part in parts), risk=bound, confidence=confidence, reads=_reads(array, read)
    )
    accepted = sum(part.n_accepted for part in parts)
    names = None if classes is None else tuple(np.asarray(classes).tolist())
    supported = None if accepted or per_class else _supported(groups[0], bound, level)
    fitted = fitted_rows(array)
    warn_of_fitted(fitted, len(array), "the guarantee does not hold", REMEDY)
    return Decision(
        rule,
        parts,
        share_interval(accepted, len(array), confidence),
        costs,
        names,
        supported,
        fitted,
        _lowest(groups, costs),
    )


def answers_of(probs: Floats, labels: Labels, confidences: ArrayLike | None = None) -> Read:
    """Each sample's answer, the confidence in it, and whether it is wrong."""
    answers = probs.argmax(axis=1)
    if confidences is None:
        sure = probs[np.arange(len(probs)), answers].astype(np.float64)
    else:
        sure = check_confidences(confidences, len(probs))
    return answers, sure, answers != labels


def _reads(probs: Floats, read: Read) -> Reads:
    """Confidences that are the largest probabilities in every row need not be given to the rule again."""
    answers, sure, _ = read
    same = np.allclose(probs[np.arange(len(probs)), answers], sure, rtol=1e-6, atol=0.0)
    return "maximum" if same else "confidence"


def by_answer(read: Read, n_classes: int) -> list[Ranked]:
    """The answers of each class, ranked."""
    answers, sure, wrong = read
    order = np.argsort(answers, kind="stable")
    cuts = np.searchsorted(answers[order], np.arange(1, n_classes))
    return [ranked(sure[rows], wrong[rows]) for rows in np.split(order, cuts)]


def _lowest(groups: list[Ranked], costs: Costs | None) -> float:
    """The mean cost of an answer if each group had the threshold that is cheapest in these samples."""
    if costs is None:
        return math.nan
    total, n_samples = 0.0, sum(map(len, groups))
    for one in groups:
        sizes = np.r_[0, one.ends]
        total += float(np.min(costs.per_answer(one.errors[sizes], sizes, len(one)))) * len(one) if len(one) else 0.0
    return total / n_samples


def _supported(answers: Ranked, risk: float, level: float) -> float | None:
    """The lowest risk above `risk` at which these answers allow anything to be accepted, to 1 % of itself."""
    low, high = risk, 0.5
    if risk >= high or not len(certified(answers, high, level)):
        return None
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if len(certified(answers, middle, level)) else (middle, high)
    return high


def _part(answers: Ranked, risk: float, level: float, costs: Costs | None, calibrated: bool) -> Part:
    """Decide about some answers: the largest certified set, or the one that costs least."""
    n = len(answers)
    sizes = certified(answers, risk, level, calibrated=calibrated) if n else np.empty(0, np.intp)
    if not len(sizes):
        needed, at_least = further_answers(answers, risk, level) if n else (None, True)
        return Part(math.inf, n, 0, 0, needed, at_least)
    errors = answers.errors[sizes]
    best = len(sizes) - 1 if costs is None else int(np.argmin(costs.per_answer(errors, sizes, n)))
    count = int(sizes[best])
    return Part(answers.threshold(count), n, count, int(errors[best]), 0, False)


def _check_costs(error: float | None, review: float | None) -> Costs | None:
    if error is None and review is None:
        return None
    for name, value in (("cost_error", error), ("cost_review", review)):
        if value is None or not is_number(value) or not 0 < value < math.inf:
            raise InputError(
                "must both be positive numbers", argument=("cost_error", "cost_review"), came=f"got {name}={value!r}"
            )
    assert error is not None
    assert review is not None
    if review >= error:
        raise InputError(
            f"A review ({review:g}) costs as much as a mistake ({error:g}) or more: accepting every answer is "
            "cheapest, and there is nothing to decide."
        )
    return Costs(float(error), float(review))


def _round(number: int) -> int:
    """Two digits: a number of samples that is an estimate should look like one."""
    digits = max(0, len(str(number)) - 2)
    return int(math.ceil(number / 10**digits) * 10**digits)


def _round_up(risk: float) -> float:
    """Two digits, and never below what was shown."""
    digits = 1 - math.floor(math.log10(risk))
    return math.ceil(risk * 10**digits) / 10**digits


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
