"""Have inputs changed since the fit? Two tests that need no labels.

`watch` compares a batch with the inputs of the fit by shuffling the two. `StreamWatch` can be read
after every input: each new sample gets a rank among all samples before it, those of the fit
included. While inputs stay as they were, ranks are independent and uniform for any model (conformal
p-values; Vovk, Gammerman and Shafer, 2005). Bets on these ranks (`recal.decisions.bets`) win when
ranks drift (conformal test martingales; the bets are the "simple jumper" of Vovk, Petej,
Nouretdinov, Ahlberg, Carlsson and Gammerman, 2021).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Vector
from recal.copies import count_fitted, kept_hashes, warn_of_fitted
from recal.decisions.bets import Bets
from recal.decisions.follow import Finding, WatchResult
from recal.decisions.profiles import Profile, Reactions, as_batch, confidence_reactions, reactions
from recal.decisions.rule import check_share
from recal.errors import InputError
from recal.maps.arrays import sigmoid
from recal.progress import track
from recal.schema import LARGEST, Number, check
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

    The test compares confidence, class mix and, if the views are available, how often views change
    the prediction and the four groups of ReCal. If new inputs are like those of the fit, the two
    can be shuffled. The p-value counts how many shuffles look at least as different in whichever
    quantity differs most (Westfall and Young's max-T). It is exact for any batch size, so the
    probability of a false alarm is at most `alpha`.

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
    batch = as_batch(profile, views)
    specs = () if batch is None or not profile.held_by(batch) else profile.transforms
    if batch is None:
        today = confidence_reactions(views, profile.signal_columns(signals))
    else:
        today = reactions(batch, specs)
        clusters = batch.clusters if clusters is None else clusters
    fit = profile.reactions(views=bool(specs))
    # Rows of the fit are recognised by their log-odds, which agree to the last digit.
    warn_of_fitted(
        count_fitted(_digits(today), kept_hashes(_digits(fit)), len(fit.answers)),
        len(today.answers),
        "comparing them with the fit says nothing about new inputs",
        "Pass new inputs.",
    )
    # Logits say how confident the model was before any calibration.
    first = "confidence" if profile.graded else "confidence of the model"
    names = (first, *profile.signal_names)
    units = profile.units(clusters, len(today.answers))
    p_value, findings = _max_t(
        fit, today, units, names, permutations, np.random.default_rng(random_state)
    )
    alarm = p_value <= alpha
    result = (
        profile.graded_condition(today.log_odds, alarm=alarm)
        if batch is None
        else profile.condition(batch.logits)
    )
    return replace(
        result,
        alarm=alarm,
        p_value=p_value,
        alpha=alpha,
        findings=findings,
        accuracy_at_fit=profile.accuracy,
        views_used=bool(specs),
    )


def _digits(rows: Reactions) -> Vector:
    """Return log-odds as two float32 numbers, because rows are hashed as float32, and predictions."""
    rough = rows.log_odds.astype(np.float32).astype(np.float64)
    return np.column_stack([rough, rows.log_odds - rough, rows.answers])


def _max_t(
    fit: Reactions,
    today: Reactions,
    units: tuple[NDArray[np.intp], NDArray[np.intp]],
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
    n_fit = len(fit.answers)
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
    fit: Reactions, today: Reactions, names: tuple[str, ...]
) -> dict[str, tuple[Statistic, NDArray[Any]]]:
    """Return the compared quantities: a statistic, and numbers of each row whose means are shown
    beside the p-value.
    """
    rows = fit.joined(today)
    quantities: dict[str, tuple[Statistic, NDArray[Any]]] = {
        names[0]: (_distance(rows.log_odds), sigmoid(rows.log_odds))
    }
    if highest := int(rows.answers.max()):
        at_fit, now = (
            np.bincount(one.answers, minlength=highest + 1) / len(one.answers)
            for one in (fit, today)
        )
        most = int(np.argmax(np.abs(now - at_fit)))
        quantities["class mix"] = _counts(rows.answers[:, None]), rows.answers == most
    if rows.groups.shape[1]:
        quantities["answers that views change"] = _distance(rows.changed), rows.changed
        cells = rows.groups.astype(np.intp) + 4 * np.arange(rows.groups.shape[1])
        rises = rows.groups % 2 == 1  # in groups 1 and 3
        quantities["groups"] = _counts(cells), rises
    for name, column in zip(names[1:], rows.signals.T):
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


def _counts(cells: NDArray[np.integer]) -> Statistic:
    """Return Pearson's chi-square of some rows' counts against those of all rows; columns are
    counted separately.

    The counts of two groups deviate by the same numbers, so the two statistics differ by a constant
    factor.
    """
    n_cells = int(cells.max()) + 1
    share = np.bincount(cells.ravel(), minlength=n_cells) / len(cells)
    used = share > 0

    def statistic(rows: NDArray[np.intp]) -> float:
        expected = share[used] * len(rows)
        counts = np.bincount(cells[rows].ravel(), minlength=n_cells)[used]
        return float(((counts - expected) ** 2 / expected).sum())

    return statistic


class StreamWatch:
    """Watch inputs one after the other, without labels, and say when they differ from those of the
    fit.

    Confidence, predicted class and, with views, the number of views that change the prediction are
    tested separately. Each has an equal share of the capital; the share of the predicted class is
    divided among the classes.

    Parameters
    ----------
    profile : Profile
    alpha : float
        The allowed probability of ever raising a false alarm.
    use_views : bool
        Whether the views of the profile are used; new inputs then need them.
    block : int
        Neighbouring inputs of one camera or sensor resemble each other. The test then alarms
        without a change (at an autocorrelation of 0.9 almost always), unless it uses only the first
        of every `block` inputs: choose a block over which the resemblance is lost. The rows of the
        profile must be in their order of arrival, too. A profile with clusters uses the first row
        of each cluster instead.
    random_state : int or None
        Seed of the numbers that order equal values.

    Attributes
    ----------
    capital : float
        The current value of one unit of capital; an e-value against "inputs have not changed".
    highest : float
        The largest capital so far; 1 / highest is a p-value that is valid at any time.
    n_seen : int
    alarm_at : int or None
        The number of samples seen when the capital first reached 1 / alpha.
    result : WatchResult
        Alarm and p-value of the stream, with accuracy and temperature of about the last 1,000
        samples.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import StreamWatch, profile
    >>> rng = np.random.default_rng(0)
    >>> kept = profile(3 * rng.normal(size=(500, 4)))
    >>> stream = StreamWatch(kept)
    >>> stream.update(3 * rng.normal(size=(300, 4))).alarm
    False
    >>> stream.update(1 * rng.normal(size=(300, 4))).alarm
    True
    """

    def __init__(
        self,
        profile: Profile,
        alpha: float = 0.01,
        *,
        use_views: bool = True,
        block: int = 1,
        random_state: int | None = 0,
    ) -> None:
        self.profile, self.alpha = profile, check_share(alpha, "alpha")
        self.block = check(block, Number(1, whole=True), "block")
        self.specs = profile.transforms if use_views else ()
        self._rng = np.random.default_rng(random_state)
        fit = profile.reactions(views=use_views)
        n_fit = len(fit.answers)
        units = np.arange(n_fit) // block if profile.clusters is None else profile.clusters
        first = np.unique(units, return_index=True)[1]
        self._pools = [sorted(column[first].tolist()) for column in fit.columns]
        answers, n_classes = fit.answers[first], profile.n_classes
        self._counts = np.bincount(answers, minlength=n_classes).astype(np.float64)
        # One game per pool and one per class, and the share of the capital of each game.
        n_pools = len(self._pools)
        self._bets = Bets((-0.75, -0.25, 0.25, 0.75), n_pools + n_classes, jump=0.01, reserve=0.5)
        self._shares = np.r_[np.ones(n_pools), np.full(n_classes, 1 / n_classes)] / (n_pools + 1)
        # Numbers of the last samples; log-odds in a profile of confidences.
        self._recent: list[Any] = []
        self._window = 1000
        self._clusters: set[Any] = set()
        self.n_seen = 0
        self.highest = 1.0
        self.alarm_at: int | None = None

    @property
    def capital(self) -> float:
        return float(self._shares @ self._bets.capital)

    @property
    def alarm(self) -> bool:
        return self.alarm_at is not None

    def update(
        self,
        views: Views | ArrayLike,
        *,
        clusters: ArrayLike | None = None,
        signals: Mapping[str, ArrayLike] | None = None,
    ) -> StreamWatch:
        """Add new samples in their order of arrival.

        Parameters
        ----------
        views : Views, logits, or confidences, as in `watch`
        clusters : array-like of shape (n_samples,), optional
            The cluster of each sample, by name; needed if the profile has clusters.
        signals : mapping of name to column, optional
            Needed if the profile has signals.
        """
        batch = as_batch(self.profile, views)
        if batch is None:
            new = confidence_reactions(views, self.profile.signal_columns(signals))
            self._recent.append(new.log_odds)
        else:
            if missing := [spec for spec in self.specs if not batch.holds(spec)]:
                raise InputError(
                    f"These inputs hold no {missing[0]!r}, which the profile compares",
                    remedy="Add this view, or pass use_views=False",
                )
            new = reactions(batch, self.specs)
            self._recent.append(self.profile.numbers(batch.logits[-self._window :]))
            clusters = batch.clusters if clusters is None else clusters
        while sum(map(len, self._recent[1:])) >= self._window:
            del self._recent[0]
        used = self._first_of_unit(len(new.answers), clusters)
        columns = [column[used].tolist() for column in new.columns]
        for position, answer, *row in zip(used.tolist(), new.answers[used].tolist(), *columns):
            ranks = [self._rank(pool, value) for pool, value in zip(self._pools, row)]
            self._bets.play(2.0 * np.r_[ranks, self._class_ranks(answer)] - 1.0)
            now = self.capital
            self.highest = max(self.highest, now)
            if self.alarm_at is None and now >= 1 / self.alpha:
                self.alarm_at = self.n_seen + position + 1
        self.n_seen += len(new.answers)
        return self

    def _first_of_unit(self, n: int, clusters: ArrayLike | None) -> NDArray[np.intp]:
        """Return the rows that are the first of their block or cluster."""
        if self.profile.clusters is None:
            return np.flatnonzero((self.n_seen + np.arange(n)) % self.block == 0)
        names = self.profile.cluster_names(clusters, n)
        rows = []
        for row, name in enumerate(names):
            if name not in self._clusters:
                self._clusters.add(name)
                rows.append(row)
        return np.array(rows, np.intp)

    @property
    def result(self) -> WatchResult:
        if not self._recent:
            raise InputError("No samples were seen yet: call update(logits) first.")
        recent = np.concatenate(self._recent)
        if self.profile.graded:
            result = self.profile.graded_condition(recent[-self._window :], alarm=self.alarm)
        else:
            result = self.profile.condition_of(recent)
        return replace(
            result,
            alarm=self.alarm,
            p_value=min(1.0, 1.0 / self.highest),
            alpha=self.alpha,
            accuracy_at_fit=self.profile.accuracy,
            views_used=bool(self.specs),
        )

    def _rank(self, pool: list[float], value: float) -> float:
        """Return the rank of a value among those before it and itself, ties at random; uniform if
        nothing changed.
        """
        below, through = bisect_left(pool, value), bisect_right(pool, value)
        insort(pool, value)
        return float((below + self._rng.random() * (through - below + 1)) / len(pool))

    def _class_ranks(self, answer: int) -> Vector:
        """Return, for each class, the rank of "is it this class?" among all samples before."""
        total, part = self._counts.sum(), self._rng.random()
        ranks = part * (total - self._counts + 1) / (total + 1)
        ranks[answer] = (total - self._counts[answer] + part * (self._counts[answer] + 1)) / (
            total + 1
        )
        self._counts[answer] += 1
        return ranks
