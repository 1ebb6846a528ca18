"""Parts of a decision: what a rule does with some samples, costs, and labels that are needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from recal.decisions.rule import Guarantee
from recal.errors import InputError
from recal.metrics.intervals import Interval
from recal.schema import Number, check


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
    needed, needed_most : int or None
        If nothing is accepted: between how many and how many more labelled samples are needed, if
        they are like these. `needed_most` is None without an upper end. `needed` is None if no
        number may be enough, or if it exceeds ten times the samples.
    interval : (low, high)
        95 % interval of the share of mistakes among accepted predictions.
    """

    threshold: float
    needed: int | None = 0
    needed_most: int | None = 0

    def more_labels(self, share: float = 1.0) -> str:
        """Return the labels that are needed in words, if this share of all labels decides."""
        if self.needed is None:
            return "no number of labels can be named"
        least = f"{two_digits(self.needed / share):,}"
        if self.needed_most is None:
            return f"at least {least} more labels"
        return f"{least} to {two_digits(self.needed_most / share):,} more labels"

    def to_dict(self, key: str) -> dict[str, Any]:
        """Plain values for JSON; `key` is the key of the name."""
        names = ("coverage", "n_samples", "n_accepted", "n_errors", "needed", "needed_most")
        numbers = {"threshold": finite(self.threshold), "error_rate": finite(self.error_rate)}
        return {
            key: self.name,
            **numbers,
            "interval": list(self.interval),
            **read_fields(self, names),
        }


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


def read_fields(source: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def finite(value: float) -> float | None:
    """Return the number, or None if it is not finite, because JSON cannot store it."""
    return value if math.isfinite(value) else None
