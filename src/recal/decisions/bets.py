"""Bets at fair odds: evidence against a hypothesis that can be read after every outcome.

Players bet a fixed fraction of their capital on each outcome before they see it. If the hypothesis
holds, an outcome is at most 0 on average, so the capital is a supermartingale: it ever reaches
1 / alpha with probability at most alpha (Ville's inequality), however often one looks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


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
    >>> from recal.decisions.bets import Bets
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
