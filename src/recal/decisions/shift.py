"""Have inputs changed since the fit? A test without labels that shuffles new inputs and those of
the fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Vector
from recal.copies import count_fitted, kept_hashes, warn_of_fitted
from recal.decisions.following import Finding, WatchResult
from recal.decisions.profiles import Profile, Units
from recal.decisions.rule import check_share
from recal.errors import InputError
from recal.maps.arrays import sigmoid
from recal.progress import track
from recal.schema import LARGEST
from recal.views import Views


def watch(
    profile: Profile,
    views: Views | ArrayLike,
    *,
    clusters: ArrayLike | None = None,
    signals: Mapping[str, ArrayLike] | None = None,
    alpha: float = 0.01,
    permutations: int = 999,
    random_state: int | None = 0,
) -> WatchResult:
    """Compare a batch of new inputs with those of the fit, without labels.

    The test compares confidence, class mix and further signals. If new inputs are like those of the
    fit, the two can be shuffled. The p-value counts how many shuffles look at least as different in
    whichever quantity differs most (Westfall and Young's max-T). It is exact for any batch size, so
    the probability of a false alarm is at most `alpha`.

    If the profile was made from labelled views of three or more damaging kinds, the logits of 50 or
    more inputs also give the temperature that suits them and their accuracy. Inputs that are unlike
    every view are called unknown.

    Parameters
    ----------
    profile : Profile
        Made by `recal.profile`, or a calibrator's ``profile_``.
    views : Views, or logits of shape (n_samples, n_classes)
        For a profile of confidences: confidences of shape (n_samples,).
    clusters : array-like of shape (n_samples,), optional
        Rows that belong together, such as frames of one recording; by default those of the views.
        Needed if the profile has clusters. Whole clusters are shuffled.
    signals : mapping of name to column, optional
        Further numbers of each answer; needed if the profile has signals.
    alpha : float
        The allowed probability of a false alarm.
    permutations : int
        Number of shuffles; the smallest possible p-value is 1 / (permutations + 1).
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
    if not isinstance(profile, Profile):
        raise InputError(
            f"must be a Profile, got {type(profile).__name__}",
            argument="profile",
            remedy="Pass its profile_"
            if hasattr(profile, "profile_")
            else "Make one with recal.profile(views, y)",
        )
    fit, (today, logits) = profile.numbers, profile.read(views, signals)
    if clusters is None and isinstance(views, Views):
        clusters = views.clusters
    # Rows of the fit are recognised by their log-odds, which agree to the last digit.
    warn_of_fitted(
        count_fitted(_digits(today), kept_hashes(_digits(fit)), len(fit)),
        len(today),
        "comparing them with the fit says nothing about new inputs",
        "Pass new inputs.",
    )
    # Logits say how confident the model was before any calibration.
    first = "confidence" if profile.graded else "confidence of the model"
    units = profile.units(clusters, len(today))
    rng = np.random.default_rng(random_state)
    p_value, findings = _max_t(fit, today, units, (first, *profile.signal_names), permutations, rng)
    alarm = p_value <= alpha
    if logits is None:
        found = profile.graded_condition(today[:, 0], units, alarm=alarm)
    else:
        found = profile.condition(logits)
    test: dict[str, Any] = {"alarm": alarm, "p_value": p_value, "alpha": alpha}
    return replace(found, **test, findings=findings, accuracy_at_fit=profile.accuracy)


def _digits(numbers: Vector) -> Vector:
    """Return log-odds as two float32 numbers, because rows are hashed as float32, and predictions."""
    rough = numbers[:, 0].astype(np.float32).astype(np.float64)
    return np.column_stack([rough, numbers[:, 0] - rough, numbers[:, 1]])


def _max_t(
    fit: Vector,
    today: Vector,
    units: Units,
    names: tuple[str, ...],
    permutations: int,
    rng: np.random.Generator,
) -> tuple[float, tuple[Finding, ...]]:
    """Return the overall p-value, and the compared quantities with p-values that are corrected for
    each other.

    Units are the clusters of both sets of rows, or the rows themselves. The set with fewer units
    is drawn, so a shuffle of a million new inputs costs no more than one of the rows of the fit.
    """
    quantities = _quantities(fit, today, names)
    n_fit = len(fit)
    at_fit, now = (int(numbers.max()) + 1 for numbers in units)
    unit = np.r_[units[0], units[1] + at_fit]
    single = at_fit + now == len(unit)
    draws = np.empty((permutations + 1, len(quantities)))
    for draw in track(range(permutations + 1), "shuffle"):
        if draw == 0:
            chosen = np.arange(at_fit) if at_fit <= now else np.arange(at_fit, at_fit + now)
        else:
            chosen = rng.choice(at_fit + now, min(at_fit, now), replace=False, shuffle=False)
        rows = chosen if single else np.flatnonzero(np.isin(unit, chosen))
        draws[draw] = [statistic(rows) for statistic, _ in quantities.values()]
    # Sums in another order differ in the last bits; equal distances must count as equal.
    draws = draws.astype(np.float32).astype(np.float64)
    # Put statistics on one scale, made from all draws including today's, so that their maximum is
    # meaningful.
    spread = draws.std(axis=0)
    scaled = (draws - draws.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    largest = scaled.max(axis=1)
    findings = (
        Finding(
            name, _mean(numbers[:n_fit]), _mean(numbers[n_fit:]), float((largest >= own).mean())
        )
        for (name, (_, numbers)), own in zip(quantities.items(), scaled[0])
    )
    return float((largest >= largest[0]).mean()), tuple(findings)


def _mean(numbers: NDArray[Any]) -> float:
    """Return the mean of the numbers that are not missing; NaN if there are none."""
    present = numbers[~np.isnan(numbers)] if numbers.dtype.kind == "f" else numbers
    return float(present.mean()) if len(present) else math.nan


# How far the rows of one group are from all other rows; the same for either of the two groups.
Statistic = Callable[[NDArray[np.intp]], float]


def _quantities(
    fit: Vector, today: Vector, names: tuple[str, ...]
) -> dict[str, tuple[Statistic, NDArray[Any]]]:
    """Return the compared quantities: a statistic, and numbers of each row whose means are shown
    beside the p-value.
    """
    confidence, predictions, *signals = np.concatenate([fit, today]).T
    quantities: dict[str, tuple[Statistic, NDArray[Any]]] = {
        names[0]: (_distance(confidence), sigmoid(confidence))
    }
    if highest := int(predictions.max()):
        classes = predictions.astype(np.intp)
        at_fit, now = (
            np.bincount(part, minlength=highest + 1) / len(part)
            for part in np.split(classes, [len(fit)])
        )
        most = int(np.argmax(np.abs(now - at_fit)))
        quantities["class mix"] = _counts(classes), classes == most
    for name, column in zip(names[1:], signals):
        # The largest numbers stand for missing and infinite ones.
        finite = np.abs(column) < LARGEST
        quantities[name] = _distance(column), np.where(finite, column, np.nan)
    return quantities


def _distance(values: Vector) -> Statistic:
    """Return the Kolmogorov-Smirnov distance between the values of some rows and those of the
    others.
    """
    place = np.unique(values, return_inverse=True)[1].astype(np.int32)
    # Rows below each distinct value, and all rows at the end.
    through = np.r_[0, np.cumsum(np.bincount(place))]
    total = len(values)

    def statistic(rows: NDArray[np.intp]) -> float:
        mine, size = np.sort(place[rows]), len(rows)
        last = np.flatnonzero(np.r_[mine[1:] != mine[:-1], True])
        # Between two of these values only the share of the others changes, so extremes are at the
        # ends.
        own = np.r_[last + 1, 0, last[:-1] + 1]
        all_rows = np.r_[through[mine[last] + 1], through[mine[last]]]
        return float(np.abs(own / size - (all_rows - own) / (total - size)).max())

    return statistic


def _counts(classes: NDArray[np.intp]) -> Statistic:
    """Return Pearson's chi-square of some rows' counts against those of all rows.

    The counts of two groups deviate by the same numbers, so the two statistics differ by a constant
    factor.
    """
    share = np.bincount(classes) / len(classes)
    used = share > 0

    def statistic(rows: NDArray[np.intp]) -> float:
        expected = share[used] * len(rows)
        counts = np.bincount(classes[rows], minlength=len(share))[used]
        return float(((counts - expected) ** 2 / expected).sum())

    return statistic
