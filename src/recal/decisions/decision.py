"""The result of `decide`: thresholds, what they accept, costs, and why nothing can be accepted."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.clusters import count_of_clusters
from recal.decisions.rule import DecisionRule, Guarantee, percentage
from recal.errors import InputError
from recal.files.paths import plain_values
from recal.metrics.calibration_error import BinTable
from recal.metrics.intervals import Interval
from recal.schema import Number, check


@dataclass(frozen=True)
class Costs:
    """The cost of an accepted mistake and of a review, in the same unit."""

    error: float
    review: float

    def __post_init__(self) -> None:
        positive = Number(0.0, ends="()", hint="Give both costs, cost_error and cost_review")
        check(self.error, positive, "cost_error")
        check(self.review, positive, "cost_review")
        if self.review >= self.error:
            raise InputError(
                f"A review ({self.review:g}) costs as much as a mistake ({self.error:g}) or more: "
                "accepting every answer is cheapest, and there is nothing to decide."
            )

    @property
    def risk(self) -> float:
        """The share of mistakes below which accepting a prediction costs less than a review."""
        return max(self.review / self.error, 1e-300)  # the quotient may underflow to 0

    def per_answer(
        self, errors: int | NDArray[Any], accepted: int | NDArray[Any], n_samples: int
    ) -> Any:
        return (self.error * errors + self.review * (n_samples - accepted)) / n_samples


# A share below this is not worth another risk.
_USEFUL_SHARE = 0.01
_COUNTS = ("n_samples", "n_accepted", "n_errors", "needed", "needed_most")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a rule does with some labelled samples; `name` is their class or group, None for all
    samples.
    """

    name: Any = None
    n_samples: int
    n_accepted: int
    n_errors: int
    interval: Interval = (0.0, 1.0)

    @property
    def possible(self) -> bool:
        """Whether anything can be accepted."""
        return bool(self.n_accepted)

    @property
    def coverage(self) -> float:
        return float(self.n_accepted / self.n_samples) if self.n_samples else 0.0

    @property
    def error_rate(self) -> float:
        """The observed share of mistakes among accepted predictions; the guarantee is `risk`."""
        return float(self.n_errors / self.n_accepted) if self.n_accepted else math.nan


@dataclass(frozen=True, kw_only=True)
class Part(Outcome):
    """The decision about some predictions: all of them, those of one class, or those of one group.

    Attributes
    ----------
    name : the class or group; None for all predictions
    threshold : float
    n_samples, n_accepted, n_errors : int
        Labelled samples, those accepted, and the mistakes among these.
    needed, needed_most : int or None
        If nothing is accepted: between how many and how many more labelled samples are needed, if
        they are like these. `needed_most` is None without an upper end. `needed` is None if no
        number may be enough, or if it exceeds ten times the samples.
    needed_share : float
        The share of the answers that could then be accepted.
    interval : (low, high)
        95 % interval of the share of mistakes among accepted predictions.
    """

    threshold: float
    needed: int | None = 0
    needed_most: int | None = 0
    needed_share: float = 0.0

    def more_labels(self, share: float = 1.0) -> str:
        """Return the labels that are needed in words, if this share of all labels decides."""
        if self.needed is None:
            return "no number of labels can be named"
        least = f"{two_digits(self.needed / share):,}"
        if self.needed_most is None:
            return f"at least {least} more labels"
        return f"{least} to {two_digits(self.needed_most / share):,} more labels"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = ("threshold", "error_rate", "interval", "coverage", *_COUNTS)
        return dict(plain_values({name: getattr(self, name) for name in names}))


@dataclass(frozen=True)
class Option:
    """What can be promised with these samples: a promise, its risk, and the share it accepts."""

    guarantee: Guarantee
    risk: float
    coverage: float


def two_digits(number: float) -> int:
    """Round up to two digits: an estimated number of samples should look like an estimate."""
    unit = 10 ** max(0, len(str(int(number))) - 2)
    return math.ceil(number / unit) * unit


@dataclass(frozen=True, kw_only=True)
class Decision(Outcome):
    """Which predictions can be accepted, and the evidence for it; made by `decide`.

    Attributes
    ----------
    threshold : float
        Accept a prediction if its confidence is at least this; ``inf`` if nothing can be accepted.
    thresholds : tuple of float
        The same for each class or group.
    coverage : float
        The share of predictions that is accepted.
    interval : (low, high)
        Interval of the coverage on new inputs, at the level `confidence`.
    n_samples, n_accepted, n_errors : int
        Labelled samples, those accepted, and the mistakes among these.
    n_clusters : int or None
        The number of clusters, if clusters were given.
    guarantee, promise : str
        "confidence" or "average", and the promise in words.
    needed, needed_most : int or None
        0 if the samples suffice, else a range for the labelled samples to add: see `Part`.
    rule : DecisionRule
        All that a runtime needs.
    parts : tuple of Part
        One for all predictions, or one for each class or group.
    costs : Costs or None
    n_fitted : int
        About how many of the samples the calibrator was fitted on; only known if `decide` was given
        the calibrator. Above 0 there is no guarantee.
    bins : BinTable or None
        The samples in 15 bins of confidence, which notebooks draw as a reliability diagram.
    """

    rule: DecisionRule
    parts: tuple[Part, ...]
    costs: Costs | None = None
    classes: tuple[Any, ...] | None = None
    n_fitted: int = 0
    n_clusters: int | None = None
    bins: BinTable | None = field(default=None, repr=False, compare=False)
    # The share that a promise accepts at a risk, for what is only computed if somebody asks.
    share_of: Callable[[Guarantee, float], float] = field(repr=False, compare=False)

    @property
    def threshold(self) -> float:
        if len(self.rule.thresholds) > 1:
            raise InputError(f"Each {self._each} has its own threshold here; read `thresholds`.")
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
    def guarantee(self) -> Guarantee:
        return self.rule.guarantee

    @property
    def promise(self) -> str:
        if self.n_fitted:
            return f"no guarantee: {self.n_fitted:,} of these samples were used in the fit"
        return self.rule.promise + self._where

    @property
    def needed(self) -> int | None:
        return 0 if self.possible else self._nearest.needed

    @property
    def needed_most(self) -> int | None:
        return 0 if self.possible else self._nearest.needed_most

    def more_labels(self, share: float = 1.0) -> str:
        """Return the labels that are needed to accept anything in words; see `Part`."""
        return self._nearest.more_labels(share)

    @cached_property
    def other_coverage(self) -> float:
        """The share that the other promise would accept at this risk."""
        return self.share_of(self._other, self.risk)

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The lowest risk at which each promise accepts 1 %, if nothing can be accepted."""
        if self.possible:
            return ()
        kinds = (self.guarantee, self._other)
        found = [_lowest_risk(kind, self.risk, self.share_of) for kind in kinds]
        return tuple(option for option in found if option is not None)

    @property
    def supported_risk(self) -> float | None:
        """The lowest risk at which this promise accepts 1 %, if nothing can be accepted."""
        risks = [one.risk for one in self.options if one.guarantee == self.guarantee]
        return risks[0] if risks else None

    @property
    def cost(self) -> float:
        """The observed mean cost of a prediction under this rule; NaN if no costs were given."""
        if self.costs is None:
            return math.nan
        return float(self.costs.per_answer(self.n_errors, self.n_accepted, self.n_samples))

    @property
    def table(self) -> tuple[Part, ...]:
        """The parts, worst first. Parts that accept nothing come before the others, which are
        sorted by the share of mistakes among accepted answers.
        """
        return tuple(
            sorted(self.parts, key=lambda part: (part.possible, -np.nan_to_num(part.error_rate)))
        )

    def accept(
        self,
        probs: ArrayLike,
        confidences: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> NDArray[np.bool_]:
        """Return whether each prediction is accepted; see `DecisionRule.accept`."""
        return self.rule.accept(probs, confidences, groups)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = ["possible", "risk", "confidence", "guarantee", "promise", "coverage", "interval"]
        names += ["other_coverage", *_COUNTS, "n_fitted", "n_clusters", "supported_risk"]
        names += ["thresholds" if self._each else "threshold"]
        plain = {name: getattr(self, name) for name in names}
        plain |= {"message": str(self), "options": [vars(one) for one in self.options]}
        if self.costs is not None:
            plain |= {"cost": self.cost}
            plain |= {"cost_error": self.costs.error, "cost_review": self.costs.review}
        if self._each:
            parts = self.table if self.rule.groups else self.parts
            plain[f"by_{self._each}"] = [{self._each: one.name, **one.to_dict()} for one in parts]
        return dict(plain_values(plain))

    def _repr_html_(self) -> str:
        # Import by name, because reporting imports decisions, not the other way round.
        return str(import_module("recal.reporting.notebook").decision_html(self))

    def __str__(self) -> str:
        if not self.possible:
            return self.refusal()
        low, high = self.interval
        where = "" if self._each else f" from a confidence of {self.threshold:.6g} on,"
        sure = _how_sure(self.guarantee, self.confidence)
        sentences = [
            f"Accept {self.coverage:.1%} of the answers ({low:.1%} to {high:.1%}),{where} with at "
            f"most {percentage(self.risk)} of them wrong{self._where}, {sure}; "
            f"{self.n_errors:,} mistakes among {self.n_accepted:,} accepted were seen.",
            self.note_on(self.n_errors, self.n_accepted),
            self.other_promise,
        ]
        if self.n_fitted:
            sentences.append(f"{self.promise.capitalize()}.")
        if self.n_clusters is not None and self.error_rate > self.risk:
            sentences.append(
                f"Counted by rows, {self.error_rate:.1%} of the accepted answers are wrong: "
                "large clusters hold more mistakes."
            )
        if self.costs:
            sentences.append(f"Cost per answer {self.cost:.3g}.")
        if refused := [part for part in self.parts if not part.possible]:
            named = [f"{part.name} ({part.more_labels()})" for part in refused[:3]]
            named += ["..."] if len(refused) > 3 else []
            sentences.append(
                f"{len(refused)} of {len(self.parts)} thresholds accept nothing yet: "
                f"{', '.join(named)}."
            )
        return " ".join(filter(None, sentences))

    def note_on(self, errors: int, accepted: int) -> str:
        """Return how likely a count above the risk is; empty with clusters, whose rows depend on
        each other, so that the chance cannot be computed from a count.
        """
        return "" if self.n_clusters else self.rule.note_on(errors, accepted)

    @property
    def other_promise(self) -> str:
        """A sentence that says what the other promise would accept; empty without a guarantee."""
        if self.n_fitted:
            return ""
        average = self.guarantee == "average"
        name = f"At {percentage(self.confidence)} confidence" if average else "On average only"
        return f"{name}: {self.other_coverage:.1%}."

    def refusal(self, share: float = 1.0) -> str:
        """Return why nothing can be accepted, and what can be had: one line each, with what to
        type.

        `share` of further labels would decide.
        """
        samples = f"{self.n_samples:,} labelled samples"
        if self.n_clusters is not None:
            samples += f" in {count_of_clusters(self.n_clusters)}"
        risk, each = percentage(self.risk), f" in each {self._each}" if self._each else ""
        sure = _how_sure(self.guarantee, self.confidence)
        lines = [
            f"No answer can be accepted: {samples} cannot show a risk below {risk}{each} {sure}."
        ]
        if self.needed is None:
            lines[0] += (
                " Even the most confident answers may be wrong too often. A higher risk or a "
                "better model helps more than labels."
            )
        for one in self.options:
            other = "" if one.guarantee == self.guarantee else f" --guarantee {one.guarantee}"
            lines.append(
                f"With --risk {one.risk:g}{other}, {one.coverage:.1%} of the answers can be "
                f"accepted (at most {percentage(one.risk)} wrong "
                f"{_how_sure(one.guarantee, self.confidence)})."
            )
        if self.needed is not None:
            group = f" of {self._nearest.name}" if self.rule.groups else ""
            lines.append(
                f"With {self.more_labels(share)} like these, about "
                f"{percentage(self._nearest.needed_share, 2)} of the answers{group} could be "
                f"accepted at {risk}."
            )
        return "\n".join(lines)

    @property
    def _other(self) -> Guarantee:
        return "confidence" if self.guarantee == "average" else "average"

    @property
    def _each(self) -> str:
        return "group" if self.rule.groups else "class" if self.rule.per_class else ""

    @property
    def _where(self) -> str:
        each = f" in each {self._each}" if self._each else ""
        if self.n_clusters is None:
            return each
        return f"{each} in an average cluster ({count_of_clusters(self.n_clusters)} decide)"

    @property
    def _nearest(self) -> Part:
        """The part that needs the fewest labels."""
        return min(self.parts, key=lambda part: math.inf if part.needed is None else part.needed)


def _lowest_risk(
    kind: Guarantee, risk: float, share_of: Callable[[Guarantee, float], float]
) -> Option | None:
    """Return the lowest risk at which a promise accepts a useful share: this risk, or a higher one
    of two digits.
    """

    def is_useful(one: float) -> bool:
        return share_of(kind, one) >= _USEFUL_SHARE

    if is_useful(risk):
        return Option(kind, risk, share_of(kind, risk))
    # A higher risk may accept less, so only a risk that was tried is named.
    higher = [k / 10**e for e in range(7, 1, -1) for k in range(10, 100) if risk < k / 10**e <= 0.5]
    if not higher or not is_useful(higher[-1]):
        return None
    lowest = higher[bisect_left(higher, True, hi=len(higher) - 1, key=is_useful)]
    return Option(kind, lowest, share_of(kind, lowest))


def _how_sure(guarantee: Guarantee, confidence: float) -> str:
    return "on average" if guarantee == "average" else f"at {percentage(confidence)} confidence"
