"""Paired draws: differences spread as the rows themselves say."""

import numpy as np
import pytest

from recal.metrics.intervals import PAIRED, paired_draws
from recal.metrics.row_scores import score


@pytest.mark.parametrize("n", [900, 6000])
def test_differences_spread_as_the_rows_themselves_say(n):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(n, 4))
    truth = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    y = (truth.cumsum(1) > rng.random((n, 1))).argmax(1)
    sharp = np.exp(1.5 * logits + rng.normal(0, 0.3, logits.shape))
    methods = [score(p, y) for p in (truth, sharp / sharp.sum(1, keepdims=True))]
    draws = paired_draws(methods, 800)
    assert set(draws) == set(PAIRED)
    for name, divisor in (("nll", 1), ("brier", 4)):
        gaps = (getattr(methods[1], name) - getattr(methods[0], name)) / divisor
        apart = draws[name][1] - draws[name][0]
        assert apart.std() == pytest.approx(gaps.std() / np.sqrt(n), rel=0.15), name
        assert apart.mean() == pytest.approx(gaps.mean(), abs=0.3 * apart.std()), name
    assert draws["ece"][1].mean() > draws["ece"][0].mean() + 3 * draws["ece"].std(axis=1).max()
