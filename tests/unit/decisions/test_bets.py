"""Bets at fair odds: a fair game, a reserve, and many bets at once."""

from __future__ import annotations

import numpy as np
import pytest

from recal.decisions.bets import Bets

FRACTIONS = (-0.75, -0.25, 0.25, 0.75)


def test_capital_is_a_fair_game():
    """One bet multiplies the capital by 1 on average over a uniform rank."""
    after = []
    for rank in (np.arange(1000) + 0.5) / 1000:
        bets = Bets(FRACTIONS, 3, jump=0.01, reserve=0.5)
        bets.play(np.full(3, 2 * rank - 1))
        after.append(bets.capital)
    np.testing.assert_allclose(np.mean(after, axis=0), 1.0, atol=1e-12)


def test_half_is_bet_at_once_and_the_rest_is_kept_back():
    bets = Bets(FRACTIONS, reserve=0.5)
    assert bets.capital[0] == pytest.approx(1.0)
    bets.play([1.0])
    released = 0.5 - 0.5 * (1 + 1 / 20) ** -0.2
    players = (0.125 + released / 4) * (1 + np.array(FRACTIONS))
    assert bets.capital[0] == pytest.approx(players.sum() + 0.5 - released)


def test_many_bets_at_once_give_the_same_capital():
    outcomes = np.random.default_rng(0).uniform(-1, 1.2, (300, 5))
    whole, single = Bets((0.1, 0.5), 5), Bets((0.1, 0.5), 5)
    whole.play(outcomes)
    for row in outcomes:
        single.play(row)
    np.testing.assert_allclose(whole.capital, single.capital, rtol=1e-9)
    np.testing.assert_allclose(whole.highest, single.highest, rtol=1e-9)
    assert (whole.highest >= whole.capital).all()


def test_a_long_clean_history_delays_the_alarm_little():
    rng, delays = np.random.default_rng(0), {}
    for clean in (100, 3000):
        bets = Bets(FRACTIONS, jump=0.01, reserve=0.5)
        bets.play(rng.uniform(-1, 1, (clean, 1)))
        assert bets.capital[0] > 0.1  # the reserve
        while bets.capital[0] < 100:
            bets.play([0.8 * rng.random() - 1])
        delays[clean] = bets.n_played - clean
    assert delays[3000] < 2.5 * delays[100]


def test_capital_never_overflows():
    bets = Bets((0.5,))
    bets.play(np.full((5000, 1), 100.0))
    assert np.isfinite(bets.capital).all()
