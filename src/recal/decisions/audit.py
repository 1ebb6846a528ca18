"""An audit: does a rule keep its promise while it is used?

A person checks a few of the accepted answers, drawn with known probabilities. Each grade settles
bets, so the error rate has an interval, and the promise an alarm, that stay valid however often one
looks: if the hypothesis holds, an outcome is at most 0 on average, so the capital of the players is
a supermartingale and ever reaches 1 / alpha with probability at most alpha (Ville's inequality).

An answer that is likelier to be wrong is drawn more often and counts less: its weight is the mean
probability of being drawn divided by its own. Weighted grades have the same mean as the error rate
and vary less. Half of each probability is the same for all answers, so no weight exceeds 2.

Some answers just below the threshold are drawn, too. If the error rate of the accepted answers
together with this band is below the risk, the rule can be loosened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Vector, check_confidences, grades_of
from recal.clusters import check_names
from recal.decisions.rule import DecisionRule, check_share, percentage
from recal.errors import InputError
from recal.schema import Number, check


class Check(NamedTuple):
    """An answer that was drawn for a check."""

    name: Any  # the row among the answers it was drawn from
    confidence: float
    accepted: bool  # otherwise the answer lies in the band below the threshold
    group: str
    weight: float  # how much its grade counts for the error rate of all accepted answers
    group_weight: float  # the same for the accepted answers of its group
    with_band: bool = True  # whether the draw could also have chosen an answer of the band


class Audit:
    """Follow the error rate among accepted answers from the grades of a few of them.

    Parameters
    ----------
    rule : DecisionRule or Decision
    confidence : float
        Level of the interval and of the alarm. While the error rate is at most the risk, an alarm
        is ever raised with probability at most 1 - confidence.
    weighted : bool
        Draw answers that are likelier to be wrong more often.
    below : float
        The share of draws from just below the threshold. The band is chosen at the first draw: the
        most confident rejected answers, as many as this share of accepted and band together.
    random_state : int

    Attributes
    ----------
    n_graded : int
        The number of grades of accepted answers.
    error : float
        The estimated error rate among accepted answers; NaN before the first grade.
    interval : (low, high)
        Contains the error rate at all times at once, as long as it does not change.
    alarm : bool
        Whether the promise is refuted: the error rate, or that of a group, exceeds the risk.
    alarm_at : int or None
        The number of grades at the first alarm.
    can_loosen : bool
        Whether the answers of the band can be accepted as well.
    band_from : float or None
        The lowest confidence of the band.
    graded : list of (Check, wrong)
        All grades in their order; `replay` restores the state from them.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import Audit, DecisionRule
    >>> rng = np.random.default_rng(0)
    >>> confidence = rng.uniform(0.5, 1.0, 5000)
    >>> right = rng.random(5000) < confidence
    >>> audit = Audit(DecisionRule((0.9,), risk=0.1, confidence=0.95))
    >>> rows = audit.draw(confidence, 400)
    >>> audit.add(right[rows])
    400
    >>> audit.alarm, 0.03 < audit.error < 0.07, audit.interval[1] < 0.1
    (False, True, True)
    """

    def __init__(
        self,
        rule: Any,
        *,
        confidence: float = 0.95,
        weighted: bool = True,
        below: float = 0.1,
        random_state: int = 0,
    ) -> None:
        self.rule: DecisionRule = getattr(rule, "rule", rule)
        if not isinstance(self.rule, DecisionRule):
            remedy = "Pass the result of recal.decide, or its .rule"
            problem = f"must be a decision rule, got {type(rule).__name__}"
            raise InputError(problem, argument="rule", remedy=remedy)
        self.level = 1.0 - check_share(confidence, "confidence")
        self.weighted, self.below = weighted, check(below, Number(0.0, 1.0, ends="[)"), "below")
        self.graded: list[tuple[Check, bool]] = []
        self.pending: list[Check] = []
        self.band_from: float | None = None
        self.alarm_at: int | None = None
        self._rng = np.random.default_rng(random_state)
        # Small fractions win if mistakes are somewhat too frequent, large ones if they are rare.
        small, large = (0.01, 0.03, 0.1, 0.3), (0.1, 0.3, 0.6, 0.9)
        names = self.rule.groups or ("",)
        self._alarms = {name: Bets(small, jump=0.001, reserve=0.5) for name in names}
        low = np.geomspace(0.001, 0.5, 120)
        self._rates = np.r_[low, 1.0 - low[-2::-1]]
        self._largest = 2.0 if weighted else 1.0  # weight
        self._seen: list[float] = []  # weighted mistakes among accepted answers
        self._above = Bets(small, len(self._rates))
        self._below = Bets(large, len(self._rates))
        self._with_band = Bets(large)

    def draw(
        self,
        confidence: ArrayLike,
        n: int,
        *,
        accepted: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> NDArray[np.intp]:
        """Draw answers for a check, without replacement; return their rows.

        Parameters
        ----------
        confidence : array-like of shape (n_samples,)
            The confidence of new answers, accepted or not.
        n : int
            How many answers to draw.
        accepted : array-like of bool, shape (n_samples,), optional
            Which answers were accepted. By default the rule decides; a rule with a threshold per
            class cannot decide from confidences alone.
        groups : array-like of shape (n_samples,), optional
            Needed if the rule has a threshold per group.
        """
        values = check_confidences(confidence, np.size(confidence))
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise InputError(f"must be a whole number of at least 1, got {n!r}", argument="n")
        taken = np.asarray(
            self.rule.accept(values, groups=groups) if accepted is None else accepted
        )
        if taken.shape != values.shape or taken.dtype != bool:
            problem = f"must be True or False for each of {len(values)} answers"
            raise InputError(problem, argument="accepted")
        labels = self._groups(groups, taken)
        inside = np.flatnonzero(taken)
        if not len(inside):
            rule = f"The rule accepts none of these {len(values)} answers, so none can be checked"
            raise InputError(rule, remedy="Choose a rule with a higher risk (--risk) first")
        band = self._band(values, taken, len(inside))
        # As large a share of the draws as of the answers, so that both weigh the same.
        in_band = int(n * len(band) / (len(band) + len(inside)) + self._rng.random())
        in_band = min(in_band, len(band), n)
        chance = self._chances(values[inside], n - in_band)
        weights, group_weights = np.ones(len(values)), np.ones(len(values))
        weights[inside] = chance.mean() / chance
        for name in np.unique(labels[inside]):
            own = labels[inside] == name
            group_weights[inside[own]] = chance[own].mean() / chance[own]
        rows = inside[_systematic(chance, n - in_band, self._rng)]
        rows = np.r_[rows, self._rng.choice(band, in_band, replace=False)].astype(np.intp)
        self._rng.shuffle(rows)
        both = np.column_stack([weights, group_weights])[rows].tolist()
        self.pending += [
            Check(row, float(values[row]), bool(taken[row]), str(labels[row]), *pair)
            for row, pair in zip(rows.tolist(), both)
        ]
        return rows

    def _groups(self, groups: ArrayLike | None, taken: NDArray[np.bool_]) -> NDArray[np.str_]:
        """Return the group of each answer; accepted ones must be in a group of the rule."""
        if not self.rule.groups:
            return np.full(len(taken), "")
        names, index = check_names([] if groups is None else groups, len(taken), "groups")
        labels = np.array(names)[index]
        unknown = labels[taken & ~np.isin(labels, self.rule.groups)]
        if len(unknown):
            raise InputError(
                f"The rule has no group {str(unknown[0])!r}, so it accepts nothing there",
                argument="accepted",
            )
        return labels

    def _band(self, values: Vector, taken: NDArray[np.bool_], n_inside: int) -> NDArray[np.intp]:
        """Return the rejected answers just below the threshold; none if thresholds differ."""
        near = ~taken & (values < self.rule.thresholds[0])
        if self.rule.groups or self.rule.per_class or self.below == 0.0 or not near.any():
            return np.empty(0, np.intp)
        if self.band_from is None:
            size = round(n_inside * self.below / (1.0 - self.below))
            rejected = np.sort(values[near])[::-1]
            self.band_from = float(rejected[: max(size, 1)][-1])
        return np.flatnonzero(near & (values >= self.band_from))

    def _chances(self, confidence: Vector, n: int) -> Vector:
        """Return the probability with which each accepted answer is drawn; their sum is `n`."""
        odds = np.ones(len(confidence))
        doubt = 1.0 - confidence
        if self.weighted and doubt.sum() > 0:
            odds = 0.5 + 0.5 * doubt / doubt.mean()
        if n >= len(odds):
            return np.ones(len(odds))
        chance = n * odds / odds.sum()
        while (chance > 1.0).any():  # certain answers leave the others more draws
            certain = chance >= 1.0
            rest = odds[~certain].sum()
            chance = np.where(certain, 1.0, (n - certain.sum()) * odds / rest)
        return np.asarray(chance if n else odds / odds.sum())

    def add(self, grades: ArrayLike) -> int:
        """Add grades; return how many there are.

        Parameters
        ----------
        grades : array-like of bool
            Whether answers are right, in the order of the draw; possibly not yet all of them.
            Nobody knows how other answers were chosen, so grades of these do not count.
        """
        values = np.asarray(grades).ravel()
        if len(values) > len(self.pending):
            problem = f"{len(values)} grades were given for {len(self.pending)} drawn answers"
            raise InputError(problem, remedy="Call draw(confidence, n) first")
        right = grades_of(values, words=False)
        if np.isnan(right).any():
            raise InputError("must say which answers are right: True or False", argument="grades")
        known, self.pending = self.pending[: len(right)], self.pending[len(right) :]
        self.replay(zip(known, (right == 0.0).tolist()))
        return len(known)

    def replay(self, graded: Iterable[tuple[Check, bool]]) -> Audit:
        """Settle the bets for checks with known grades, in their order."""
        risk = self.rule.risk
        for one, wrong in graded:
            self.graded.append((one, bool(wrong)))
            if not one.accepted:
                continue
            self._seen.append(one.weight * wrong)
            alarm = self._alarms[one.group]
            alarm.play([(one.group_weight * wrong - risk) / risk])
            if self.alarm_at is None and alarm.capital[0] >= len(self._alarms) / self.level:
                self.alarm_at = self.n_graded
        return self

    @property
    def alarm(self) -> bool:
        return self.alarm_at is not None

    @property
    def n_graded(self) -> int:
        return len(self._seen)

    @property
    def error(self) -> float:
        weights = [one.weight for one, _ in self.graded if one.accepted]
        return sum(self._seen) / sum(weights) if weights else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        new = np.array(self._seen[self._above.n_played :])[:, None]
        refuted, rates = 2.0 / self.level, self._rates
        self._above.play((new - rates) / rates)
        self._below.play((rates - new) / (self._largest - rates))
        low = self._rates[self._above.highest >= refuted]
        high = self._rates[self._below.highest >= refuted]
        return float(low.max(initial=0.0)), float(high.min(initial=1.0))

    @property
    def can_loosen(self) -> bool:
        seen = [one.weight * wrong for one, wrong in self.graded if one.with_band]
        new = np.array(seen[self._with_band.n_played :])[:, None]
        self._with_band.play((self.rule.risk - new) / (self._largest - self.rule.risk))
        enough = bool(self._with_band.highest[0] >= 1.0 / self.level)
        return enough and not self.alarm and self.band_from is not None

    def updated_rule(self) -> DecisionRule | None:
        """Return a looser rule if the band can be accepted, a stricter one after an alarm, else
        None.

        The stricter rule comes from `decide` on the checked answers alone, thinned to a uniform
        sample; without enough evidence it accepts nothing.
        """
        if self.can_loosen and self.band_from is not None:
            return replace(self.rule, thresholds=(self.band_from,))
        if not self.alarm:
            return None
        from recal.decisions import decide

        inside = [pair for pair in self.graded if pair[0].accepted]
        keep = np.random.default_rng(0).random(len(inside)) * 2.0
        kept = [one for one, bar in zip(inside, keep) if one[0].weight >= bar or not self.weighted]
        if not kept:
            return replace(self.rule, thresholds=(inf,) * len(self.rule.thresholds))
        decision = decide(
            [one.confidence for one, _ in kept],
            [not wrong for _, wrong in kept],
            self.rule.risk,
            self.rule.confidence,
            groups=[one.group for one, _ in kept] if self.rule.groups else None,
        )
        found = dict(zip(decision.rule.groups or ("",), decision.rule.thresholds))
        before = self.rule.thresholds
        names = self.rule.groups or ("",) * len(before)
        # No answer below the thresholds was checked, so none of them may fall.
        stricter = (max(old, found.get(name, inf)) for name, old in zip(names, before))
        return replace(self.rule, thresholds=tuple(stricter))

    @property
    def verdict(self) -> str:
        """One of "refuted", "can be loosened", "holds" and "open"."""
        if self.alarm:
            return "refuted"
        if self.can_loosen:
            return "can be loosened"
        return "holds" if self.interval[1] <= self.rule.risk else "open"

    def __str__(self) -> str:
        if not self.n_graded:
            return "No accepted answer was checked yet."
        low, high = self.interval
        share, risk = f"{1.0 - self.level:.0%}", percentage(self.rule.risk)
        found = (
            f"{self.error:.1%} of the accepted answers are wrong ({low:.1%} to {high:.1%} at "
            f"{share} confidence, valid at any time), estimated from {self.n_graded:,} checked "
            "answers."
        )
        sentences = {
            "refuted": f"The promise of at most {risk} errors is refuted. "
            f"{self.rule.note_on_refuted}",
            "can be loosened": f"The promise of at most {risk} errors holds, also for answers "
            f"from a confidence of {self.band_from or 0.0:.3g} on: the rule can be loosened.",
            "holds": f"The promise of at most {risk} errors holds.",
            "open": f"The promise of at most {risk} errors is neither confirmed nor refuted yet.",
        }
        return f"{found} {sentences[self.verdict]}".rstrip()


def _systematic(chance: Vector, n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw `n` rows without replacement such that each is drawn with its own probability.

    The rows are laid out in random order on a line, each as long as its probability, and points
    at distance 1 from each other choose the rows that they meet.
    """
    order = rng.permutation(len(chance))
    ends = np.cumsum(chance[order])
    points = rng.random() + np.arange(min(n, len(chance)))
    return np.asarray(order[np.minimum(np.searchsorted(ends, points), len(order) - 1)])


class Bets:
    """Several games with the same players, each starting with a capital of 1.

    Parameters
    ----------
    fractions : sequence of float
        The fraction of its capital that each player bets; negative ones bet on low outcomes.
    n_games : int
    jump : float
        The share of the capital that moves to the other players before each bet. Above 0, players
        that lost early take part again after a change.
    reserve : float
        The share of the capital that is held back and bet bit by bit. Bets lose while nothing
        changes; with a reserve, the alarm after n unchanged outcomes comes later by a logarithm of
        n only, which no test with this guarantee can avoid.

    Examples
    --------
    >>> from recal.decisions.audit import Bets
    >>> bets = Bets((-0.5, 0.5))
    >>> for _ in range(9):
    ...     bets.play([1.0])
    >>> float(bets.capital[0].round(1))
    19.2
    """

    def __init__(
        self, fractions: ArrayLike, n_games: int = 1, *, jump: float = 0.0, reserve: float = 0.0
    ) -> None:
        self.fractions = np.asarray(fractions, np.float64)
        self.jump, self.reserve, self.n_played = jump, reserve, 0
        size = len(self.fractions)
        self._players = np.full((n_games, size), (1.0 - reserve) / size)
        self.highest = np.ones(n_games)

    @property
    def capital(self) -> NDArray[np.float64]:
        """The capital of each game, (n_games,); an e-value against its hypothesis."""
        return np.asarray(self._players.sum(axis=1) + self._held(self.n_played))

    def play(self, outcomes: ArrayLike) -> None:
        """Settle bets: outcomes of shape (n_games,), or (n_bets, n_games) one after the other.

        Outcomes are -1 or more; where players bet on low outcomes, they are at most 1.
        """
        rounds = np.atleast_2d(np.asarray(outcomes, np.float64))
        # Without jumps, capitals are products, and many bets can be settled at once.
        at_once = 1 if self.jump or self.reserve else 64
        for start in range(0, len(rounds), at_once):
            block = rounds[start : start + at_once]
            self._move()
            with np.errstate(over="ignore"):
                growth = np.cumprod(1.0 + self.fractions * block[:, :, None], axis=0)
                players = np.minimum(self._players * growth, 1e200)
            self._players = players[-1]
            self.n_played += len(block)
            capital = players.sum(axis=2).max(axis=0) + self._held(self.n_played)
            np.maximum(self.highest, capital, out=self.highest)

    def _move(self) -> None:
        """Move capital between the players and from the reserve."""
        if self.jump or self.reserve:
            released = self._held(self.n_played) - self._held(self.n_played + 1)
            moved = self.jump * self._players.sum(axis=1, keepdims=True) + released
            self._players = (1.0 - self.jump) * self._players + moved / len(self.fractions)

    def _held(self, n_played: int) -> float:
        """Return the part of the capital that has not been bet yet."""
        return float(self.reserve * (1.0 + n_played / 20.0) ** -0.2)
