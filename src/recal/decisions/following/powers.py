"""How following reaches any calibrator's probabilities, whose answers it never changes, and a rule of decisions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.machinery.probabilities import bounded_probs
from recal.checks import check_probs
from recal.decisions.following.condition import Condition
from recal.decisions.rule import DecisionRule
from recal.errors import InputError


def to_the_power(probs: ArrayLike, ratio: float) -> NDArray[np.float64]:
    """Raise probabilities to a power and scale rows back to 1: below 1 they become less confident, above 1 more.

    For temperature scaling this is the same as multiplying beta = 1/T by the ratio; for other calibrators it is the
    same change made to their final probabilities. The order of the classes of a row stays as it is.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
    ratio : float
        Above 0. `WatchResult.ratio` is the one that suits a batch.

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
    return bounded_probs(weights / weights.sum(axis=1, keepdims=True), array.argmax(axis=1))


def followed_confidences(
    confidences: NDArray[np.float64], probs: NDArray[np.float64], followed: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Move the chance that each answer is right by as much, in log-odds, as following moved its probability."""
    answers, rows = probs.argmax(axis=1), np.arange(len(probs))
    moved = _log_odds(followed[rows, answers]) - _log_odds(probs[rows, answers])
    return np.asarray(0.5 * (1 + np.tanh(0.5 * (_log_odds(confidences) + moved))))


def _log_odds(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    inside = np.clip(shares, 1e-15, 1 - 1e-15)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def accept_followed(
    rule: DecisionRule,
    probs: ArrayLike,
    condition: Condition,
    confidences: ArrayLike | None = None,
    *,
    accept_unlike: bool = False,
) -> NDArray[np.bool_]:
    """Say which followed probabilities a rule accepts: none where the batch is unlike every view of the fit.

    Parameters
    ----------
    rule : DecisionRule
    probs : array-like of shape (n_samples, n_classes)
        Followed already: `to_the_power(probs, condition.ratio)`.
    condition : Condition
    confidences : array-like of shape (n_samples,), optional
        Followed, too: the chance that each answer is right, where it is not the largest probability.
    accept_unlike : bool
        Apply the rule anyway.

    Examples
    --------
    >>> from recal import DecisionRule
    >>> from recal.decisions import Condition, accept_followed
    >>> rule = DecisionRule((0.9,), risk=0.01, confidence=0.95)
    >>> strange = Condition(False, "unlike all", 1.0, 1.0, float("nan"), (0.0, 1.0), 1.0, unlike=True)
    >>> accept_followed(rule, [[0.95, 0.05]], strange)
    array([False])
    >>> accept_followed(rule, [[0.95, 0.05]], strange, accept_unlike=True)
    array([ True])
    """
    accepted = rule.accept(probs, confidences)
    return np.zeros_like(accepted) if condition.unlike and not accept_unlike else accepted
