"""Watching a stream: have inputs changed since the fit? A test that can be read after every input.

Each new sample gets a rank among all samples before it, those of the fit included. While inputs
stay as they were, ranks are independent and uniform for any model (conformal p-values; Vovk,
Gammerman and Shafer, 2005). Bets on these ranks (`recal.decisions.bets`) win when ranks drift
(conformal test martingales; the bets are the "simple jumper" of Vovk, Petej, Nouretdinov, Ahlberg,
Carlsson and Gammerman, 2021).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.decisions.bets import Bets
from recal.decisions.follow import WatchResult
from recal.decisions.profiles import Profile, as_batch, confidence_reactions, reactions
from recal.decisions.rule import check_share
from recal.errors import InputError
from recal.schema import Number, check
from recal.views import Views

Vector = NDArray[np.float64]
# Accuracy and temperature are estimated from this many recent samples.
_WINDOW = 1000


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
            self._recent.append(self.profile.numbers(batch.logits[-_WINDOW:]))
            clusters = batch.clusters if clusters is None else clusters
        while sum(map(len, self._recent[1:])) >= _WINDOW:
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
        if self.profile.graded:
            result = self.profile.graded_condition(
                np.concatenate(self._recent)[-_WINDOW:], alarm=self.alarm
            )
        else:
            result = self.profile.condition_of(self._recent)
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
