"""Is it still true today? New inputs against those of the fit, without labels: a test, and an estimate of accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.decisions.bounds import Interval
from recal.decisions.following.class_mix import ClassMix, class_mix
from recal.decisions.following.condition import Condition
from recal.decisions.following.estimates import known_estimates
from recal.decisions.profiles import Profile, Reactions, Vector, reactions, sigmoid
from recal.decisions.rule import check_share
from recal.engine.same_rows import kept_hashes, seen_among, warn_of_fitted
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
    class_mix : ClassMix or None
        The shares of the classes, estimated where another mix alone explains the batch; None without labels at the fit.
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
    class_mix: ClassMix | None = None

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
            "class_mix": None if self.class_mix is None else self.class_mix.to_dict(),
            "findings": [vars(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        differ = "differ from" if self.alarm else "do not differ detectably from"
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
    batch = _batch(profile, views)
    held = profile.held_by(batch)
    specs = profile.transforms if held else ()
    today, fit = reactions(batch, specs), profile.reactions
    if not held:
        fit = Reactions(fit.log_odds, fit.answers, fit.groups[:, :0])
    warn_of_fitted(
        _seen_before(fit, today),
        batch.n_samples,
        "comparing them with the fit says nothing about new inputs",
        "Give the logits of new inputs.",
    )
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
        class_mix=class_mix(profile, batch.logits) if profile.labelled else None,
    )


def estimate_accuracy(profile: Profile, views: Views | ArrayLike) -> tuple[float, Interval, dict[str, float]]:
    """Estimate the accuracy on new inputs: the estimate, its 95 % interval, and the known estimators.

    As `watch` does, without its test. No estimator without labels can know of damage that leaves logits as they were.
    """
    batch = _batch(profile, views)
    found = profile.condition(batch.logits)
    return found.accuracy, found.interval, known_estimates(profile, batch.logits) if profile.labelled else {}


def _batch(profile: Profile, views: Views | ArrayLike) -> Views:
    """Return new inputs, if they have the classes of what is a profile."""
    if not isinstance(profile, Profile):
        held = " Pass its `profile_`." if hasattr(profile, "profile_") else " Make one with recal.profile(views, y)."
        raise InputError(f"Inputs are compared with a Profile, got {type(profile).__name__}.{held}")
    batch = views if isinstance(views, Views) else Views(views)
    profile.check_classes(batch.n_classes)
    return batch


def _seen_before(fit: Reactions, today: Reactions) -> int:
    """How many of today's rows are those of the fit: their log-odds are the same to the last digit."""
    return seen_among(_digits(today), kept_hashes(_digits(fit)), len(fit.answers))[1]


def _digits(rows: Reactions) -> Vector:
    """Log-odds as two float32 numbers, which is what rows are hashed by, and answers."""
    rough = rows.log_odds.astype(np.float32).astype(np.float64)
    return np.column_stack([rough, rows.log_odds - rough, rows.answers])


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
    """The overall p-value, and each statistic's own, corrected for the others.

    A shuffle is known by the rows of the smaller group, so it costs as much as that one holds: a million new inputs
    are compared with at most 20,000 of the fit.
    """
    statistics = _statistics(fit, today)
    n_fit, n_today = len(fit.answers), len(today.answers)
    total, smaller = n_fit + n_today, min(n_fit, n_today)
    found = np.empty((permutations + 1, len(statistics)))
    for draw in track(range(permutations + 1), "shuffle"):
        if draw == 0:
            rows = np.arange(n_fit) if n_fit <= n_today else np.arange(n_fit, total)
        else:
            rows = rng.choice(total, smaller, replace=False, shuffle=False)
        found[draw] = [statistic(rows) for statistic in statistics.values()]
    # Draws that are equally far away count as such: sums in another order differ in the last bits.
    found = found.astype(np.float32).astype(np.float64)
    # On one scale, so that the largest says how unusual a draw is; all draws, today's too, make the scale.
    spread = found.std(axis=0)
    scaled = (found - found.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    largest = scaled.max(axis=1)
    corrected = {name: float((largest >= scaled[0, i]).mean()) for i, name in enumerate(statistics)}
    return float((largest >= largest[0]).mean()), corrected


# How far the rows of one group lie from all others; the same number for either of two groups.
Statistic = Callable[[NDArray[np.intp]], float]


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
    """Kolmogorov and Smirnov's distance between the values of some rows and those of the others."""
    place = np.unique(values, return_inverse=True)[1].astype(np.int32)
    through = np.r_[0, np.cumsum(np.bincount(place))]  # rows below each distinct value, and all of them at the end
    total = len(values)

    def statistic(rows: NDArray[np.intp]) -> float:
        mine, size = np.sort(place[rows]), len(rows)
        last = np.flatnonzero(np.r_[mine[1:] != mine[:-1], True])
        # Between two of these values their share stays and that of the others rises: the ends are the extremes.
        own = np.r_[last + 1, 0, last[:-1] + 1]
        all_rows = np.r_[through[mine[last] + 1], through[mine[last]]]
        return float(np.abs(own / size - (all_rows - own) / (total - size)).max())

    return statistic


def _counts(cells: NDArray[np.intp]) -> Statistic:
    """Pearson's chi-square of some rows' counts against those of all rows; a row is in one cell of each column.

    The counts of two groups deviate by the same numbers, so that the statistic of either is the other's times a factor
    that no shuffle changes.
    """
    n_cells = int(cells.max()) + 1
    share = np.bincount(cells.ravel(), minlength=n_cells) / len(cells)
    seen = share > 0

    def statistic(rows: NDArray[np.intp]) -> float:
        expected = share[seen] * len(rows)
        counts = np.bincount(cells[rows].ravel(), minlength=n_cells)[seen]
        return float(((counts - expected) ** 2 / expected).sum())

    return statistic
