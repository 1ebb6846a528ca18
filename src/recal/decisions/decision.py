"""The result of `decide`: thresholds, what they accept, and why nothing can be accepted."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.clusters import check_names, count_of_clusters
from recal.decisions.certify import chance_of_so_few
from recal.decisions.rule import DecisionRule
from recal.errors import GroupRiskWarning, InputError
from recal.metrics.bins import BinTable
from recal.metrics.intervals import Interval, rate_interval
from recal.metrics.row_scores import score
from recal.schema import Number, check

# A rule counts as broken in a group if the data would otherwise be this unlikely, corrected for the
# number of groups.
_BROKEN_LEVEL = 0.05


@dataclass(frozen=True)
class Costs:
    """The cost of an accepted mistake and of a review, in the same unit."""

    error: float
    review: float

    def __post_init__(self) -> None:
        for name, value in (("cost_error", self.error), ("cost_review", self.review)):
            check(
                value,
                Number(0.0, ends="()", hint="Give both costs, cost_error and cost_review"),
                name,
            )
        if self.review >= self.error:
            raise InputError(
                f"A review ({self.review:g}) costs as much as a mistake ({self.error:g}) or more: accepting every "
                "answer is cheapest, and there is nothing to decide."
            )

    @property
    def risk(self) -> float:
        """The share of mistakes below which accepting a prediction costs less than a review."""
        return max(self.review / self.error, 1e-300)  # the quotient may underflow to 0

    def per_answer(
        self, errors: int | NDArray[Any], accepted: int | NDArray[Any], n_samples: int
    ) -> Any:
        return (self.error * errors + self.review * (n_samples - accepted)) / n_samples


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
    needed : int or None
        About how many more labelled samples are needed to accept anything; 0 if none, None if no
        number is enough.
    needed_at_least : bool
        Whether `needed` is only a minimum.
    interval : (low, high)
        95 % interval of the share of mistakes among accepted predictions.
    """

    threshold: float
    needed: int | None
    needed_at_least: bool

    def to_dict(self, key: str) -> dict[str, Any]:
        """Plain values for JSON; `key` is the key of the name."""
        names = ("coverage", "n_samples", "n_accepted", "n_errors", "needed")
        numbers = {"threshold": finite(self.threshold), "error_rate": finite(self.error_rate)}
        return {key: self.name, **numbers, "interval": list(self.interval), **_read(self, names)}


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
    totals = np.bincount(index)
    counts = np.bincount(index, accepted).astype(int)
    errors = np.bincount(index, accepted & wrong).astype(int)
    chances = 1.0 - chance_of_so_few(errors - 1, counts, rule.risk)
    broken = holm(np.where(errors > 0, chances, 1.0)) <= _BROKEN_LEVEL
    rows = [
        GroupRisk(
            name=name,
            n_samples=n,
            n_accepted=m,
            n_errors=k,
            interval=rate_interval(k, m),
            broken=bad,
        )
        for name, n, m, k, bad in zip(
            names, *(column.tolist() for column in (totals, counts, errors, broken))
        )
    ]
    rows.sort(key=lambda row: (-row.interval[0], -np.nan_to_num(row.error_rate), row.name))
    if bad := [row for row in rows if row.broken]:
        worst = bad[0]
        warnings.warn(
            f"The rule for at most {_percent(rule.risk)} mistakes is clearly broken in {len(bad)} of {len(rows)} "
            f"groups. The worst is {worst.name!r}: {worst.n_errors:,} of {worst.n_accepted:,} accepted predictions are "
            "wrong. Use decide(..., groups=groups) for a threshold and a guarantee per group.",
            GroupRiskWarning,
            stacklevel=2,
        )
    return tuple(rows)


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
    needed : int or None
        0 if the samples suffice, else about how many more labelled samples are needed; None if no
        number is enough.
    rule : DecisionRule
        All that a runtime needs.
    parts : tuple of Part
        One for all predictions, or one for each class or group.
    costs : Costs or None
    supported_risk : float or None
        If nothing can be accepted: the lowest risk at which something could be.
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
    supported_risk: float | None = None
    n_fitted: int = 0
    lowest_cost: float = math.nan
    n_clusters: int | None = None
    bins: BinTable | None = field(default=None, repr=False, compare=False)

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
    def needed(self) -> int | None:
        if self.possible:
            return 0
        numbers = [part.needed for part in self.parts if part.needed is not None]
        return min(numbers) if numbers else None

    @property
    def suggested_risk(self) -> float | None:
        """`supported_risk` rounded up to two digits, and to another number than `risk` when both
        are printed.
        """
        if self.supported_risk is None:
            return None
        as_printed = max(float(f"{self.risk:.{digits}g}") for digits in (2, 3))
        risk = max(self.supported_risk, as_printed * (1 + 1e-9))
        digits = 1 - math.floor(math.log10(risk))
        return math.ceil(risk * 10**digits) / 10**digits

    @property
    def cost(self) -> float:
        """The observed mean cost of a prediction under this rule; NaN if no costs were given."""
        if self.costs is None:
            return math.nan
        return float(self.costs.per_answer(self.n_errors, self.n_accepted, self.n_samples))

    @property
    def table(self) -> tuple[Part, ...]:
        """The parts, worst first: those that accept nothing, then by the share of mistakes among
        accepted ones.
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
        """Return how this rule does in each group of labelled samples, worst first; see
        `risk_by_group`.
        """
        return risk_by_group(self.rule, probs, y, groups, confidences, classes=self.classes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a threshold that accepts nothing is None."""
        plain = _read(
            self,
            ("possible", "risk", "confidence", "coverage", "n_samples", "n_accepted", "n_errors"),
        )
        plain |= _read(self, ("needed", "supported_risk", "n_fitted"))
        plain |= {"interval": list(self.interval), "message": str(self)}
        if self.n_clusters is not None:
            plain["n_clusters"] = self.n_clusters
        if self.costs is not None:
            plain |= _read(self, ("cost", "lowest_cost"))
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
            return f"No answer can be accepted: {self._why()}"
        (low, high), each = self.interval, self._each
        where = "" if each else f"from a confidence of {self.threshold:.6g} on, "
        void = (
            f" No guarantee: {self.n_fitted:,} of these samples were used in the fit."
            if self.n_fitted
            else ""
        )
        units = "" if self.n_clusters is None else f" in {count_of_clusters(self.n_clusters)}"
        price = f" Cost per answer {self.cost:.3g}; at the threshold that was cheapest in these samples, without a "
        price += f"guarantee, {self.lowest_cost:.3g}."
        return (
            f"Accept {self.coverage:.1%} of the answers ({low:.1%} to {high:.1%}), {where}with at most "
            f"{_percent(self.risk)} of them wrong{f' in each {each}' if each else ''}, at {_percent(self.confidence)} "
            f"confidence; {self.n_errors:,} mistakes among {self.n_accepted:,} accepted{units} were seen."
            f"{price if self.costs else ''}{self._refused()}{void}"
        )

    @property
    def _each(self) -> str:
        return "group" if self.rule.groups else "class" if self.rule.per_class else ""

    def _refused(self) -> str:
        """Name the groups in which nothing can be accepted yet, and the labels that they need."""
        refused = [part for part in self.parts if not part.possible] if self.rule.groups else []
        if not refused:
            return ""
        names = []
        for part in refused[:3]:
            why = (
                "too many mistakes"
                if part.needed is None
                else f"about {two_digits(part.needed):,} more labels"
            )
            names.append(f"{part.name} ({why})")
        rest = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
        return f" No answer can be accepted yet in {len(refused)} groups: {', '.join(names)}{rest}."

    def _why(self) -> str:
        samples = f"{self.n_samples:,} labelled samples"
        if self.n_clusters is not None:
            samples += f" in {count_of_clusters(self.n_clusters)}"
        risk = self.suggested_risk
        instead = "" if risk is None else f" They can show a risk of {_percent(risk)}."
        if self.needed is None:
            return (
                f"in these {samples} mistakes are more frequent than {_percent(self.risk)} even among the most "
                f"confident answers. More labels would not change that; a higher risk or a better model would.{instead}"
            )
        least = (
            "at least "
            if all(part.needed_at_least for part in self.parts if part.needed == self.needed)
            else ""
        )
        each = f"for each {self._each} " if self._each else ""
        return (
            f"{samples} cannot show a risk below {_percent(self.risk)} {each}at {_percent(self.confidence)} "
            f"confidence. You need {least}about {two_digits(self.needed):,} more labelled samples.{instead}"
        )


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


def two_digits(number: float) -> int:
    """Round up to two digits: an estimated number of samples should look like an estimate."""
    unit = 10 ** max(0, len(str(int(number))) - 2)
    return math.ceil(number / unit) * unit


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _read(source: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def finite(value: float) -> float | None:
    """Return the number, or None if it is not finite, because JSON cannot store it."""
    return value if math.isfinite(value) else None
