"""An audit: does a rule keep its promise while it is used?

A person checks a few of the accepted answers, drawn with known probabilities. Each grade settles
bets (`recal.decisions.bets`), so the error rate has an interval, and the promise an alarm, that
stay valid however often one looks.

An answer that is likelier to be wrong is drawn more often and counts less: its weight is the mean
probability of being drawn divided by its own. Weighted grades have the same mean as the error rate
and vary less. Half of each probability is the same for all answers, so no weight exceeds 2.

Some answers just below the threshold are drawn, too. If the error rate of the accepted answers
together with this band is below the risk, the rule can be loosened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Vector, check_confidences
from recal.clusters import check_names
from recal.decisions.bets import Bets
from recal.decisions.rule import DecisionRule, check_share
from recal.errors import InputError
from recal.schema import Number, check


class Check(NamedTuple):
    """An answer that was drawn for a check."""

    name: Any  # the row among the answers it was drawn from, or the name that the user gave
    confidence: float
    accepted: bool  # otherwise the answer lies in the band below the threshold
    group: str
    weight: float  # how much its grade counts for the error rate of all accepted answers
    group_weight: float  # the same for the accepted answers of its group


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
        names: ArrayLike | None = None,
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
        names : array-like of shape (n_samples,), optional
            Names by which `add` may refer to the answers; by default their rows.
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
        keys = np.arange(len(values)) if names is None else np.asarray(names)
        if keys.shape != values.shape:
            raise InputError(f"must name each of {len(values)} answers", argument="names")
        labels = self._groups(groups, taken)
        inside = np.flatnonzero(taken)
        if not len(inside):
            raise InputError(f"The rule accepts none of these {len(values)} answers.")
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
        self.pending += [
            Check(key, float(values[row]), bool(taken[row]), str(labels[row]), *pair)
            for key, row, *pair in zip(
                keys[rows].tolist(), rows, weights[rows].tolist(), group_weights[rows].tolist()
            )
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
        if len(self.rule.thresholds) > 1 or self.below == 0.0 or taken.all():
            return np.empty(0, np.intp)
        if self.band_from is None:
            size = round(n_inside * self.below / (1.0 - self.below))
            rejected = np.sort(values[~taken])[::-1]
            self.band_from = float(rejected[: max(size, 1)][-1])
        return np.flatnonzero(~taken & (values >= self.band_from))

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

    def add(self, grades: ArrayLike | Mapping[Any, bool]) -> int:
        """Add grades; return how many were used.

        Parameters
        ----------
        grades : array-like of bool, or mapping of name to bool
            Whether answers are right: in the order of the draw, possibly not yet all of them, or
            by name. Grades of answers that were not drawn, such as reviews of rejected ones, are
            not used, because nobody knows how they were chosen.
        """
        if isinstance(grades, Mapping):
            known = [one for one in self.pending if one.name in grades]
            if len({one.name for one in known}) < len(known):
                problem = "name answers that were drawn more than once"
                remedy = "Pass names=, one of its own for each answer, to draw"
                raise InputError(problem, argument="grades", remedy=remedy)
            values = np.array([grades[check.name] for check in known], dtype=object)
        else:
            values = np.asarray(grades).ravel()
            if len(values) > len(self.pending):
                problem = f"{len(values)} grades were given for {len(self.pending)} drawn answers"
                raise InputError(problem, remedy="Call draw(confidence, n) first")
            known = self.pending[: len(values)]
        try:
            right = values.astype(float)
        except (TypeError, ValueError):
            right = np.full(len(values), np.nan)
        if not np.isin(right, (0.0, 1.0)).all():
            raise InputError("must say which answers are right: True or False", argument="grades")
        if known == self.pending[: len(known)]:
            del self.pending[: len(known)]
        else:
            settled = set(map(id, known))
            self.pending = [one for one in self.pending if id(one) not in settled]
        self.replay((one, not is_right) for one, is_right in zip(known, right))
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
        new = self.graded[self._with_band.n_played :]
        seen = np.array([one.weight * wrong for one, wrong in new])[:, None]
        self._with_band.play((self.rule.risk - seen) / (self._largest - self.rule.risk))
        enough = bool(self._with_band.highest[0] >= 1.0 / self.level)
        return enough and not self.alarm and self.band_from is not None

    def updated_rule(self) -> DecisionRule | None:
        """Return a looser rule if the band can be accepted, a stricter one after an alarm, else None.

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
            return replace(self.rule, thresholds=(float("inf"),) * len(self.rule.thresholds))
        decision = decide(
            [one.confidence for one, _ in kept],
            [not wrong for _, wrong in kept],
            self.rule.risk,
            self.rule.confidence,
            groups=[one.group for one, _ in kept] if self.rule.groups else None,
        )
        stricter = dict(zip(decision.rule.groups or ("",), decision.rule.thresholds))
        names = self.rule.groups or ("",)
        thresholds = tuple(stricter.get(name, float("inf")) for name in names)
        return replace(self.rule, thresholds=thresholds)

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
        share, risk = f"{1.0 - self.level:.0%}", f"{100 * self.rule.risk:g} %"
        found = (
            f"{self.error:.1%} of the accepted answers are wrong ({low:.1%} to {high:.1%} at {share} "
            f"confidence, valid at any time), estimated from {self.n_graded:,} checked answers."
        )
        sentences = {
            "refuted": f"The promise of at most {risk} errors is refuted.",
            "can be loosened": f"The promise of at most {risk} errors holds, also for answers from a "
            f"confidence of {self.band_from or 0.0:.3g} on: the rule can be loosened.",
            "holds": f"The promise of at most {risk} errors holds.",
            "open": f"The promise of at most {risk} errors is neither confirmed nor refuted yet.",
        }
        return f"{found} {sentences[self.verdict]}"


def _systematic(chance: Vector, n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw `n` rows without replacement such that each is drawn with its own probability.

    The rows are laid out in random order on a line, each as long as its probability, and points
    at distance 1 from each other choose the rows that they meet.
    """
    order = rng.permutation(len(chance))
    ends = np.cumsum(chance[order])
    points = rng.random() + np.arange(min(n, len(chance)))
    return np.asarray(order[np.minimum(np.searchsorted(ends, points), len(order) - 1)])
