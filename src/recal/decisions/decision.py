"""What was decided, and how it reads: a threshold, what it accepts, what it cost, or why nothing can be accepted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.decisions.certify import Interval
from recal.decisions.rule import DecisionRule
from recal.errors import InputError


@dataclass(frozen=True)
class Costs:
    """What a mistake among accepted answers costs and what a review costs, in the same unit."""

    error: float
    review: float

    @property
    def risk(self) -> float:
        """The share of mistakes below which accepting an answer costs less than having it reviewed."""
        return max(self.review / self.error, 1e-300)  # the quotient may be too small to be anything but 0

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
    def suggested_risk(self) -> float | None:
        """`supported_risk` rounded up to two digits; None where something may be accepted, or at no risk."""
        return None if self.supported_risk is None else _round_up(self.supported_risk)

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
            f"{self.n_errors:,} mistakes among {self.n_accepted:,} accepted were seen.{self._price()}{void}"
        )

    def _price(self) -> str:
        """What the guarantee costs, where costs were given."""
        if self.costs is None:
            return ""
        return (
            f" Cost per answer {self.cost:.3g}; at the threshold that was cheapest in these samples, without a "
            f"guarantee, {self.lowest_cost:.3g}."
        )

    def _why(self) -> str:
        samples = f"{self.n_samples:,} labelled samples"
        known = self.suggested_risk
        instead = "" if known is None else f" They can show a risk of {_percent(known)}."
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
