"""Resampling of blocks stands for resampling of rows: differences spread alike, and as the rows
say.
"""

import numpy as np
import pytest

from recal.metrics import differences, row_scores
from recal.metrics.differences import PAIRED, paired_draws
from recal.metrics.row_scores import score


@pytest.fixture(scope="module")
def methods():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(6000, 4))
    truth = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    y = (truth.cumsum(1) > rng.random((6000, 1))).argmax(1)
    sharp = np.exp(1.5 * logits + rng.normal(0, 0.3, logits.shape))
    return [score(p, y) for p in (truth, sharp / sharp.sum(1, keepdims=True))]


def apart(draws, name):
    return draws[name][1] - draws[name][0]


def test_blocks_spread_as_rows_do(methods, monkeypatch):
    by_row = paired_draws(methods, 400)
    monkeypatch.setattr(row_scores, "EXACT_ROWS", 100)
    monkeypatch.setattr(differences, "EXACT_ROWS", 100)
    by_block = paired_draws(methods, 400)
    for name in PAIRED:
        if name != "mce":  # the luck of one small bin
            row, block = apart(by_row, name), apart(by_block, name)
            assert block.std() == pytest.approx(row.std(), rel=0.25), name
            assert block.mean() == pytest.approx(row.mean(), abs=row.std()), name


@pytest.mark.parametrize("most", [100, 16_384])
def test_proper_scores_spread_as_the_rows_themselves_say(methods, monkeypatch, most):
    monkeypatch.setattr(row_scores, "EXACT_ROWS", most)
    monkeypatch.setattr(differences, "EXACT_ROWS", most)
    draws = paired_draws(methods, 600)
    for name, divisor in (("nll", 1), ("brier", 4)):
        gaps = (getattr(methods[1], name) - getattr(methods[0], name)) / divisor
        assert apart(draws, name).std() == pytest.approx(gaps.std() / np.sqrt(6000), rel=0.15), name
