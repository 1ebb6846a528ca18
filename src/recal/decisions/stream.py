"""A watch that may be looked at after every input, for as long as one likes, and still rarely cries wolf.

Each new sample gets a rank among all that came before it, those of the fit included. As long as inputs stay as they
were, ranks are independent and uniform, whatever the model (conformal p-values; Vovk, Gammerman and Shafer, 2005). A
player bets on each rank before it is seen, at fair odds; the capital can then reach 1/alpha with probability at most
alpha, over all times together (Ville's inequality). It grows when ranks drift (conformal test martingales; the bets are
the "simple jumper" of Vovk, Petej, Nouretdinov, Ahlberg, Carlsson and Gammerman, 2021).

Bets on clean inputs lose, so a player who had bet everything would have little left when a change comes at last. Half
of the capital is therefore kept back and put down bit by bit: this is a mixture of players who begin at every time, and
the alarm comes later by a logarithm of the clean inputs before the change, which no test with this promise can avoid.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.decisions.following.condition import Condition
from recal.decisions.following.statistics import RowNumbers
from recal.decisions.profiles import Profile, Reactions, Vector, reactions
from recal.decisions.rule import check_share
from recal.errors import InputError
from recal.views import Views

# How strongly the players bet that ranks are high or low, and how often they change their minds.
_BETS = np.array([-1.5, -0.5, 0.5, 1.5])
_JUMP = 0.01
# What is kept back at first, and how slowly it is put down: reserve x (1 + inputs / slow) ** -decay.
_RESERVE, _SLOW, _DECAY = 0.5, 20.0, 0.2
_FORTUNE = 1e200
# So many samples are judged together for their condition.
_WINDOW = 1000


class StreamWatch:
    """Follow inputs one after the other, without labels, and say when they differ from those of the fit.

    Confidence, the answered class and, with views, how many of them change the answer are played on separately, with a
    share of the capital each; that of the class is shared among the classes.

    Parameters
    ----------
    profile : Profile
    alpha : float
        The allowed probability of ever giving a false alarm.
    use_views : bool
        Whether the views of the profile are played on; new inputs then need them.
    random_state : int or None
        Seed of the numbers that order equal values.

    Attributes
    ----------
    capital : float
        What one unit has become; an e-value against "inputs are as they were".
    highest : float
        The most that it ever was; 1 / highest is a p-value that is valid at any time.
    n_seen : int
    alarm_at : int or None
        The number of samples seen when the capital first reached 1 / alpha.
    condition : Condition
        What the last samples, 1,000 or a little more, show together: the temperature that suits them and their
        accuracy, or why they are unknown.

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
        self, profile: Profile, alpha: float = 0.01, *, use_views: bool = True, random_state: int | None = 0
    ) -> None:
        self.profile, self.alpha = profile, check_share(alpha, "alpha")
        self.specs = profile.transforms if use_views else ()
        self._counts = np.bincount(profile.answers, minlength=profile.n_classes).astype(np.float64)
        self._rng = np.random.default_rng(random_state)
        fit = profile.reactions
        fit = fit if self.specs else Reactions(fit.log_odds, fit.answers, fit.groups[:, :0])
        self._pools = [sorted(column.tolist()) for column in _columns(fit)]
        # One row of players for each pool, then one for each class; what each row counts of the whole capital.
        n_pools, n_classes = len(self._pools), profile.n_classes
        self._players = np.full((n_pools + n_classes, len(_BETS)), (1.0 - _RESERVE) / len(_BETS))
        self._shares = np.r_[np.ones(n_pools), np.full(n_classes, 1 / n_classes)] / (n_pools + 1)
        self._recent: list[RowNumbers] = []
        self.n_seen = 0
        self.highest = 1.0
        self.alarm_at: int | None = None

    @property
    def capital(self) -> float:
        return float(self._shares @ self._players.sum(axis=1)) + _kept_back(self.n_seen)

    @property
    def alarm(self) -> bool:
        return self.alarm_at is not None

    def update(self, views: Views | ArrayLike) -> StreamWatch:
        """Take in new samples, in the order in which they came."""
        batch = views if isinstance(views, Views) else Views(views)
        self.profile.check_classes(batch.n_classes)
        if missing := [spec for spec in self.specs if not batch.holds(spec)]:
            raise InputError(
                f"These inputs hold no {missing[0]!r}, which the profile compares; or pass use_views=False."
            )
        self._remember(batch)
        found = reactions(batch, self.specs)
        for answer, *row in zip(found.answers.tolist(), *(column.tolist() for column in _columns(found))):
            ranks = [self._rank(pool, value) for pool, value in zip(self._pools, row)]
            self._bet(np.r_[ranks, self._class_ranks(answer)])
        return self

    @property
    def condition(self) -> Condition:
        if not self._recent:
            raise InputError("No samples were seen yet: call update(logits) first.")
        return self.profile.condition_of(self._recent)

    def _remember(self, batch: Views) -> None:
        """Keep what following needs of the last samples, and drop pieces that those after them make needless."""
        self._recent.append(self.profile.numbers(batch.logits[-_WINDOW:]))
        while sum(len(piece.answers) for piece in self._recent[1:]) >= _WINDOW:
            del self._recent[0]

    def _rank(self, pool: list[float], value: float) -> float:
        """Where a value stands among those before it and itself, equals at random; uniform if nothing changed."""
        below, through = bisect_left(pool, value), bisect_right(pool, value)
        insort(pool, value)
        return float((below + self._rng.random() * (through - below + 1)) / len(pool))

    def _class_ranks(self, answer: int) -> Vector:
        """For each class, the rank of "is it this one?" among all before; an answer of the class ranks above others."""
        total, part = self._counts.sum(), self._rng.random()
        ranks = part * (total - self._counts + 1) / (total + 1)
        ranks[answer] = (total - self._counts[answer] + part * (self._counts[answer] + 1)) / (total + 1)
        self._counts[answer] += 1
        return ranks

    def _bet(self, ranks: NDArray[np.float64]) -> None:
        capital = self._players.sum(axis=1, keepdims=True)
        put_down = _kept_back(self.n_seen) - _kept_back(self.n_seen + 1)
        mixed = (1 - _JUMP) * self._players + (_JUMP * capital + put_down) / len(_BETS)
        # A fortune is a fortune: beyond the limit it would overflow and says nothing more.
        self._players = np.minimum(mixed * (1 + _BETS * (ranks[:, None] - 0.5)), _FORTUNE)
        self.n_seen += 1
        now = self.capital
        self.highest = max(self.highest, now)
        if self.alarm_at is None and now >= 1 / self.alpha:
            self.alarm_at = self.n_seen


def _kept_back(n_seen: int) -> float:
    """The part of the capital on which nothing was bet yet."""
    return float(_RESERVE * (1.0 + n_seen / _SLOW) ** -_DECAY)


def _columns(found: Reactions) -> list[Vector]:
    """What is ranked: confidence, and how many views change the answer."""
    return [found.log_odds, found.changed] if found.groups.shape[1] else [found.log_odds]
