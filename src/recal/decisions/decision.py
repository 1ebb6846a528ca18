"""The result of `decide`: thresholds, what they accept, and why nothing can be accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.clusters import count_of_clusters
from recal.decisions.outcome import Costs, Option, Outcome, Part, finite, read_fields
from recal.decisions.rule import DecisionRule, Guarantee, percent
from recal.errors import InputError
from recal.metrics.calibration_error import BinTable

if TYPE_CHECKING:
    from recal.decisions.group_risk import GroupRisk

_OTHER: dict[Guarantee, Guarantee] = {"confidence": "average", "average": "confidence"}


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
    lowest_cost : float
        The mean cost of a prediction at the threshold that is cheapest in these samples, without a
        guarantee. The guarantee costs `cost` minus this. NaN if no costs were given.
    bins : BinTable or None
        The samples in 15 bins of confidence, which notebooks draw as a reliability diagram.
    """

    rule: DecisionRule
    parts: tuple[Part, ...]
    costs: Costs | None = None
    classes: tuple[Any, ...] | None = None
    n_fitted: int = 0
    lowest_cost: float = math.nan
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
        return self.share_of(_OTHER[self.guarantee], self.risk)

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """If nothing can be accepted: the lowest risk that each promise can keep now."""
        if self.possible:
            return ()
        kinds = (self.guarantee, _OTHER[self.guarantee])
        found = [_lowest_risk(kind, self.risk, self.share_of) for kind in kinds]
        return tuple(option for option in found if option is not None)

    @property
    def supported_risk(self) -> float | None:
        """If nothing can be accepted: the lowest risk at which this promise accepts something."""
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
        """The parts, worst first:

        those that accept nothing, then by the share of mistakes among accepted ones.
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

    def by_group(
        self,
        probs: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike,
        confidences: ArrayLike | None = None,
    ) -> tuple[GroupRisk, ...]:
        """Return how this rule does in each group of labelled samples, worst first;

        see `risk_by_group`.
        """
        from recal.decisions.group_risk import risk_by_group

        return risk_by_group(self.rule, probs, y, groups, confidences, classes=self.classes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a threshold that accepts nothing is None."""
        names = "possible risk confidence guarantee promise coverage other_coverage n_samples"
        names += " n_accepted n_errors needed needed_most supported_risk n_fitted"
        plain = read_fields(self, tuple(names.split()))
        plain |= {"interval": list(self.interval), "message": str(self)}
        plain["options"] = [vars(one) for one in self.options]
        if self.n_clusters is not None:
            plain["n_clusters"] = self.n_clusters
        if self.costs is not None:
            plain |= read_fields(self, ("cost", "lowest_cost"))
            plain |= {"cost_error": self.costs.error, "cost_review": self.costs.review}
        if not self._each:
            return {"threshold": finite(self.threshold), **plain}
        parts = self.table if self.rule.groups else self.parts
        thresholds = [finite(value) for value in self.thresholds]
        return {
            "thresholds": thresholds,
            **plain,
            f"by_{self._each}": [part.to_dict(self._each) for part in parts],
        }

    def _repr_html_(self) -> str:
        # Import by name, because reporting imports decisions, not the other way round.
        return str(import_module("recal.reporting.notebook").decision_html(self))

    def __str__(self) -> str:
        if not self.possible:
            return "\n".join([f"No answer can be accepted: {self._why}", *self.suggestions()])
        low, high = self.interval
        where = "" if self._each else f" from a confidence of {self.threshold:.6g} on,"
        sentences = [
            f"Accept {self.coverage:.1%} of the answers ({low:.1%} to {high:.1%}),{where} with at "
            f"most {percent(self.risk)} of them wrong{self._where}, {self._how_sure}; "
            f"{self.n_errors:,} mistakes among {self.n_accepted:,} accepted were seen.",
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
            sentences.append(
                f"Cost per answer {self.cost:.3g}; at the threshold that was cheapest in these "
                f"samples, without a guarantee, {self.lowest_cost:.3g}."
            )
        return " ".join(filter(None, [*sentences, self._refused()]))

    @property
    def other_promise(self) -> str:
        """A sentence that says what the other promise would accept; empty without a guarantee."""
        if self.n_fitted:
            return ""
        average = self.guarantee == "average"
        name = f"At {percent(self.confidence)} confidence" if average else "On average only"
        return f"{name}: {self.other_coverage:.1%}."

    def suggestions(self) -> list[str]:
        """Return what can be had if nothing can be accepted: one line each, with what to type."""
        lines = [_offer(one, self.guarantee, self.confidence) for one in self.options]
        if self.needed is not None:
            lines.append(
                f"With {self.more_labels()} like these, answers could be accepted at "
                f"{percent(self.risk)}."
            )
        return lines

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
    def _how_sure(self) -> str:
        return _how_sure(self.guarantee, self.confidence)

    @property
    def _nearest(self) -> Part:
        """The part that needs the fewest labels."""
        return min(self.parts, key=lambda part: math.inf if part.needed is None else part.needed)

    def _refused(self) -> str:
        """Name the groups in which nothing can be accepted yet, and the labels that they need."""
        refused = [part for part in self.parts if not part.possible] if self.rule.groups else []
        if not refused:
            return ""
        names = [f"{part.name} ({part.more_labels()})" for part in refused[:3]]
        rest = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
        return f"No answer can be accepted yet in {len(refused)} groups: {', '.join(names)}{rest}."

    @property
    def _why(self) -> str:
        samples = f"{self.n_samples:,} labelled samples"
        if self.n_clusters is not None:
            samples += f" in {count_of_clusters(self.n_clusters)}"
        each = f" in each {self._each}" if self._each else ""
        reason = f"{samples} cannot show a risk below {percent(self.risk)}{each} {self._how_sure}."
        if self.needed is None:
            reason += (
                " Even the most confident answers may be wrong too often. A higher risk or a better "
                "model helps more than labels."
            )
        return reason


def _lowest_risk(
    kind: Guarantee, risk: float, share_of: Callable[[Guarantee, float], float]
) -> Option | None:
    """Return the lowest risk that a promise can keep, this one or a higher one of two digits."""
    if share := share_of(kind, risk):
        return Option(kind, risk, share)
    low, high = risk, 0.5
    if risk >= high or not share_of(kind, high):
        return None
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if share_of(kind, middle) else (middle, high)
    digits = 1 - math.floor(math.log10(high))
    rounded = math.ceil(high * 10**digits) / 10**digits
    return Option(kind, rounded, share_of(kind, rounded))


def _offer(option: Option, guarantee: Guarantee, confidence: float) -> str:
    """Return a line about what can be promised, with the option to type."""
    typed = f"--risk {option.risk:g}"
    if option.guarantee != guarantee:
        typed += f" --guarantee {option.guarantee}"
    return (
        f"With {typed}, {option.coverage:.1%} of the answers can be accepted "
        f"(at most {percent(option.risk)} wrong {_how_sure(option.guarantee, confidence)})."
    )


def _how_sure(guarantee: Guarantee, confidence: float) -> str:
    return "on average" if guarantee == "average" else f"at {percent(confidence)} confidence"
