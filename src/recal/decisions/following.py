"""What a watch of new inputs finds, and how probabilities and decisions follow it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_probs
from recal.decisions.rule import DecisionRule
from recal.errors import InputError
from recal.files.paths import plain_values
from recal.maps.arrays import log_odds, sigmoid
from recal.maps.guard import bounded, lift_answers
from recal.metrics.intervals import Interval


@dataclass(frozen=True)
class Finding:
    """One quantity that was compared: its value at the fit and today, and how surprising the
    difference is.

    `p_value` is already corrected for the other quantities that were compared.
    """

    name: str
    at_fit: float
    today: float
    p_value: float


@dataclass(frozen=True)
class WatchResult:
    """What the logits of new inputs say about them; made by `watch` and by `apply --follow`.

    Attributes
    ----------
    n_samples : int
    beta, ratio : float
        The inverse temperature that suits these inputs, and its ratio to the beta of the fit.
        `to_the_power(probs, ratio)` applies it to the probabilities of any calibrator. If too
        little is known, beta is the beta of the fit and the ratio is 1.
    reason : str
        Why the accuracy is unknown; empty if it is known.
    accuracy, interval : float, (low, high)
        The estimated accuracy and its 95 % interval; NaN, and from 0 to 1, if unknown. Of the
        model's own predictions if logits were watched, of the answers if confidences were.
    variance : float
        How far the inputs are from everything seen at the fit: 0 (very similar) to 1 (unlike
        anything).
    kinds_disagree : bool
        Whether the kinds of damage at the fit disagree about the temperature, so that the
        temperature of the fit stays.
    unlike : bool
        Whether the inputs are unlike every view of the fit. Do not rely on any decision rule for
        them.
    alarm : bool or None
        Whether the inputs differ from those of the fit. The probability of a false alarm is at most
        `alpha`. None if no test was made.
    p_value, alpha : float
        P-value and level of the test; NaN if none was made.
    findings : tuple of Finding
        Everything that was compared.
    accuracy_at_fit : float
    """

    n_samples: int
    beta: float
    ratio: float = 1.0
    reason: str = ""
    accuracy: float = math.nan
    interval: Interval = (0.0, 1.0)
    variance: float = 1.0
    unlike: bool = False
    kinds_disagree: bool = False
    alarm: bool | None = None
    p_value: float = math.nan
    alpha: float = math.nan
    findings: tuple[Finding, ...] = ()
    accuracy_at_fit: float = math.nan
    whose: str = "the model's own predictions"

    @property
    def known(self) -> bool:
        """Whether the inputs resemble those of the fit, or a view of them, closely enough to
        estimate their accuracy.
        """
        return not self.reason

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        findings = [vars(finding) for finding in self.findings]
        return dict(plain_values({**vars(self), "known": self.known, "findings": findings}))

    @property
    def test_message(self) -> str:
        """One sentence about the test; empty if none was made."""
        if self.alarm is None:
            return ""
        differ = "differ from" if self.alarm else "do not differ detectably from"
        return f"{self.n_samples:,} new inputs {differ} those of the fit (p = {self.p_value:.3g})."

    @property
    def accuracy_message(self) -> str:
        """One sentence about the accuracy."""
        if not self.known:
            return f"The accuracy of {self.whose} is unknown: {self.reason}."
        at_fit = (
            "" if math.isnan(self.accuracy_at_fit) else f"; at the fit {self.accuracy_at_fit:.1%}"
        )
        low, high = self.interval
        return (
            f"Estimated accuracy of {self.whose}: {self.accuracy:.1%} (95 % interval {low:.1%} to "
            f"{high:.1%}){at_fit}."
        )

    @property
    def temperature_message(self) -> str:
        """One sentence about the temperature."""
        if self.kinds_disagree:
            return "The temperature of the fit stays, because the views of the fit disagree about these inputs."
        if abs(self.ratio - 1) < 0.005:
            return "The temperature of the fit stays."
        return f"The temperature is multiplied by {1 / self.ratio:.2f}."

    def __str__(self) -> str:
        sentences = (self.test_message, self.temperature_message, self.accuracy_message)
        return " ".join(sentence for sentence in sentences if sentence)


def to_the_power(probs: ArrayLike, ratio: float) -> NDArray[np.float64]:
    """Raise probabilities to a power and normalise: a ratio below 1 makes them less confident, one
    above 1 more.

    For temperature scaling this is the same as multiplying beta = 1/T by the ratio. For other
    calibrators it makes the same change to their final probabilities. The order of the classes in a
    row does not change.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
    ratio : float
        Above 0; `WatchResult.ratio` suits a batch.

    Examples
    --------
    >>> from recal.decisions import to_the_power
    >>> to_the_power([[0.9, 0.1]], 0.5).round(3)
    array([[0.75, 0.25]])
    """
    array = np.asarray(check_probs(probs), dtype=np.float64)
    if not (np.isfinite(ratio) and ratio > 0):
        raise InputError(f"`ratio` must be a number above 0, got {ratio!r}.")
    if ratio == 1.0:
        return array
    logs = np.log(np.maximum(array, np.finfo(np.float64).tiny))
    weights = np.exp(ratio * (logs - logs.max(axis=1, keepdims=True)))
    probs = bounded(weights / weights.sum(axis=1, keepdims=True))
    return lift_answers(probs, array.argmax(axis=1)[:, None])


def followed_confidences(
    confidences: NDArray[np.float64], probs: NDArray[np.float64], followed: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Shift the log-odds of each confidence by the same amount as following shifted those of the
    prediction.
    """
    predictions, rows = probs.argmax(axis=1), np.arange(len(probs))
    shift = log_odds(followed[rows, predictions]) - log_odds(probs[rows, predictions])
    return np.asarray(sigmoid(log_odds(confidences) + shift))


def accept_followed(
    rule: DecisionRule,
    probs: ArrayLike,
    result: WatchResult,
    confidences: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    *,
    accept_unlike: bool = False,
) -> NDArray[np.bool_]:
    """Apply a rule to followed probabilities; it accepts nothing if the batch is unlike every view
    of the fit.

    Parameters
    ----------
    rule : DecisionRule
    probs : array-like of shape (n_samples, n_classes)
        Already followed: `to_the_power(probs, result.ratio)`.
    result : WatchResult
    confidences : array-like of shape (n_samples,), optional
        Followed, too; needed if the rule reads confidences.
    groups : array-like of shape (n_samples,), optional
        Needed if the rule has a threshold per group.
    accept_unlike : bool
        Apply the rule anyway.

    Examples
    --------
    >>> from recal import DecisionRule
    >>> from recal.decisions import WatchResult, accept_followed
    >>> rule = DecisionRule((0.9,), risk=0.01, confidence=0.95)
    >>> strange = WatchResult(100, 1.0, reason="unlike every view", unlike=True)
    >>> accept_followed(rule, [[0.95, 0.05]], strange)
    array([False])
    >>> accept_followed(rule, [[0.95, 0.05]], strange, accept_unlike=True)
    array([ True])
    """
    accepted = rule.accept(probs, confidences, groups)
    return np.zeros_like(accepted) if result.unlike and not accept_unlike else accepted
