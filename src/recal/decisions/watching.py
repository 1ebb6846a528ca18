"""Is it still true today? New inputs against those of the fit, without labels: a test, and an estimate of accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.decisions.bounds import Interval
from recal.decisions.following.condition import Condition
from recal.decisions.following.estimates import known_estimates
from recal.decisions.profiles import Profile, Reactions, Vector, reactions, sigmoid
from recal.decisions.rule import check_share
from recal.errors import InputError
from recal.progress import track
from recal.views import Views


@dataclass(frozen=True)
class Finding:
    """One thing that was compared: its value at the fit and today, and how surprising the difference is.

    `p_value` is already corrected for the other things that were compared.
    """

    name: str
    at_fit: float
    today: float
    p_value: float


@dataclass(frozen=True)
class WatchResult:
    """What `watch` found.

    Attributes
    ----------
    alarm : bool
        Whether today's inputs differ from those of the fit; false with probability at most `alpha` where they do not.
    p_value : float
    findings : tuple of Finding
    n_samples : int
    condition : Condition
        What the batch's logits say about damage; its fields can be read here, too:
    known, reason : bool, str
        Whether the batch resembles the inputs of the fit or their views, and why not where it does not.
    accuracy, interval : float, (low, high)
        The estimate of today's accuracy and its 95 % interval; NaN, and from 0 to 1, where the condition is unknown.
    beta, ratio : float
        The inverse temperature that suits this batch, and the same over the fit's: `to_the_power(probs, ratio)` makes
        any calibrator's probabilities follow. The fit's, and 1, where the condition is unknown.
    others : dict of name to estimate
        Known estimators beside it: average confidence, difference of confidences, ATC, and prior shift (if nothing
        but the class mix had changed).
    views_used : bool
        Whether the views of the profile were there to be compared.
    """

    alarm: bool
    p_value: float
    alpha: float
    findings: tuple[Finding, ...]
    n_samples: int
    condition: Condition
    others: dict[str, float]
    accuracy_at_fit: float
    views_used: bool

    @property
    def known(self) -> bool:
        return self.condition.known

    @property
    def reason(self) -> str:
        return self.condition.reason

    @property
    def accuracy(self) -> float:
        return self.condition.accuracy

    @property
    def interval(self) -> Interval:
        return self.condition.interval

    @property
    def beta(self) -> float:
        return self.condition.beta

    @property
    def ratio(self) -> float:
        return self.condition.ratio

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "alarm": self.alarm,
            "p_value": self.p_value,
            "alpha": self.alpha,
            "n_samples": self.n_samples,
            "views_used": self.views_used,
            "accuracy": self.accuracy if self.known else None,
            "interval": list(self.interval),
            "beta": self.beta,
            "ratio": self.ratio,
            "known": self.known,
            "reason": self.reason,
            "accuracy_at_fit": self.accuracy_at_fit,
            "other_estimates": dict(self.others),
            "findings": [vars(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        differ = "differ from" if self.alarm else "cannot be told from"
        text = f"{self.n_samples:,} new inputs {differ} those of the fit (p = {self.p_value:.3g})."
        if not self.known:
            return f"{text} Accuracy is unknown: {self.reason}."
        low, high = self.interval
        return (
            f"{text} Estimated accuracy {self.accuracy:.1%} (95 % interval {low:.1%} to {high:.1%}); "
            f"at the fit {self.accuracy_at_fit:.1%}."
        )


def watch(
    profile: Profile,
    views: Views | ArrayLike,
    *,
    alpha: float = 0.01,
    permutations: int = 999,
    random_state: int | None = 0,
) -> WatchResult:
    """Compare a batch of new inputs with those of the fit, without labels.

    Confidence, class mix and, where the views are there, the share of answers that views change and the four groups are
    compared. If new inputs are like those of the fit, both can be shuffled: the p-value counts how many shuffles look
    at least as different, in whichever respect differs most (Westfall and Young's max-T). It is exact for any batch
    size, so a false alarm comes with probability at most `alpha`.

    Where the profile was made of labelled views of three or more damaging kinds, the logits of 50 or more inputs also
    tell the temperature that suits them and their accuracy (see `WatchResult`). What lies far from every view is called
    unknown instead.

    Parameters
    ----------
    profile : Profile
        Made by `recal.decisions.profile`, or a calibrator's ``profile_``.
    views : Views, or logits of shape (n_samples, n_classes)
    alpha : float
        The allowed probability of a false alarm.
    permutations : int
        Shuffles; the smallest p-value is 1 / (permutations + 1).
    random_state : int or None
        Seed of the shuffles.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import profile, watch
    >>> rng = np.random.default_rng(0)
    >>> def logits(n, strength):
    ...     y = rng.integers(0, 3, n)
    ...     return strength * np.eye(3)[y] + rng.normal(size=(n, 3)), y
    >>> kept = profile(*logits(1000, 3))
    >>> watch(kept, logits(500, 3)[0]).alarm, watch(kept, logits(500, 1.5)[0]).alarm
    (False, True)
    """
    check_share(alpha, "alpha")
    if permutations < 1 / alpha - 1:
        raise InputError(
            f"{permutations} shuffles cannot show p <= {alpha:g}; take {math.ceil(1 / alpha) - 1} or more."
        )
    batch = views if isinstance(views, Views) else Views(views)
    profile.check_classes(batch.n_classes)
    held = profile.held_by(batch)
    specs = profile.transforms if held else ()
    today, fit = reactions(batch, specs), profile.reactions
    if not held:
        fit = Reactions(fit.log_odds, fit.answers, fit.groups[:, :0])
    p_value, corrected = _max_t(fit, today, permutations, np.random.default_rng(random_state))
    shown = _shown(fit, today)
    findings = tuple(Finding(name, *shown[name], p_value=corrected[name]) for name in corrected)
    return WatchResult(
        alarm=p_value <= alpha,
        p_value=p_value,
        alpha=alpha,
        findings=findings,
        n_samples=batch.n_samples,
        condition=profile.condition(batch.logits),
        others=known_estimates(profile, batch.logits) if profile.labelled else {},
        accuracy_at_fit=profile.accuracy,
        views_used=bool(specs),
    )


def estimate_accuracy(profile: Profile, views: Views | ArrayLike) -> tuple[float, Interval, dict[str, float]]:
    """Estimate the accuracy on new inputs: the estimate, its 95 % interval, and the known estimators.

    As `watch` does, without its test. No estimator without labels can know of damage that leaves logits as they were.
    """
    batch = views if isinstance(views, Views) else Views(views)
    profile.check_classes(batch.n_classes)
    found = profile.condition(batch.logits)
    return found.accuracy, found.interval, known_estimates(profile, batch.logits) if profile.labelled else {}


def _shown(fit: Reactions, today: Reactions) -> dict[str, tuple[float, float]]:
    """What a person reads beside each p-value."""
    n_classes = int(max(fit.answers.max(), today.answers.max())) + 1
    shares = [np.bincount(one.answers, minlength=n_classes) / len(one.answers) for one in (fit, today)]
    moved = int(np.argmax(np.abs(shares[1] - shares[0])))
    shown = {
        "confidence": tuple(float(sigmoid(one.log_odds).mean()) for one in (fit, today)),
        "class mix": (float(shares[0][moved]), float(shares[1][moved])),
    }
    if fit.groups.shape[1]:
        shown["answers that views change"] = (float(fit.changed.mean()), float(today.changed.mean()))
        rose = [float((one.groups % 2 == 1).mean()) for one in (fit, today)]  # groups 1 and 3
        shown["groups"] = (rose[0], rose[1])
    return shown  # type: ignore[return-value]


def _max_t(
    fit: Reactions, today: Reactions, permutations: int, rng: np.random.Generator
) -> tuple[float, dict[str, float]]:
    """The overall p-value, and each statistic's own, corrected for the others."""
    statistics = _statistics(fit, today)
    n_fit, n_today = len(fit.answers), len(today.answers)
    total = n_fit + n_today
    found = np.empty((permutations + 1, len(statistics)))
    for draw in track(range(permutations + 1), "shuffle"):
        mine = np.zeros(total, np.bool_)
        rows = np.arange(n_fit, total) if draw == 0 else rng.permutation(total)[:n_today]
        mine[rows] = True
        found[draw] = [statistic(mine, rows) for statistic in statistics.values()]
    # On one scale, so that the largest says how unusual a draw is; all draws, today's too, make the scale.
    spread = found.std(axis=0)
    scaled = (found - found.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    largest = scaled.max(axis=1)
    corrected = {name: float((largest >= scaled[0, i]).mean()) for i, name in enumerate(statistics)}
    return float((largest >= largest[0]).mean()), corrected


Statistic = Callable[[NDArray[np.bool_], NDArray[np.intp]], float]


def _statistics(fit: Reactions, today: Reactions) -> dict[str, Statistic]:
    answers = np.concatenate([fit.answers, today.answers])
    found = {
        "confidence": _distance(np.concatenate([fit.log_odds, today.log_odds])),
        "class mix": _counts(answers[:, None]),
    }
    if fit.groups.shape[1]:
        groups = np.concatenate([fit.groups, today.groups]).astype(np.intp)
        found["answers that views change"] = _distance(np.concatenate([fit.changed, today.changed]))
        found["groups"] = _counts(groups + 4 * np.arange(groups.shape[1]))
    return found


def _distance(values: Vector) -> Statistic:
    """Kolmogorov and Smirnov's distance between today's values and the others."""
    order = np.argsort(values, kind="stable")
    ends = np.flatnonzero(np.r_[values[order][1:] != values[order][:-1], True])
    total = len(values)

    def statistic(mine: NDArray[np.bool_], rows: NDArray[np.intp]) -> float:
        today = np.cumsum(mine[order])[ends] / len(rows)
        others = (ends + 1 - today * len(rows)) / (total - len(rows))
        return float(np.abs(today - others).max())

    return statistic


def _counts(cells: NDArray[np.intp]) -> Statistic:
    """Pearson's chi-square of today's counts against those of all rows; a row is in one cell of each column."""
    n_cells = int(cells.max()) + 1
    share = np.bincount(cells.ravel(), minlength=n_cells) / len(cells)
    seen = share > 0

    def statistic(mine: NDArray[np.bool_], rows: NDArray[np.intp]) -> float:
        expected = share[seen] * len(rows)
        counts = np.bincount(cells[rows].ravel(), minlength=n_cells)[seen]
        return float(((counts - expected) ** 2 / expected).sum())

    return statistic
