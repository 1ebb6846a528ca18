"""The parts of a loss where the truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from recal.calibrators import TemperatureScaling
from recal.errors import InputError
from recal.metrics import brier, decompose, nll


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("loss", "score"), [("nll", nll), ("brier", brier)])
def test_the_parts_are_those_of_the_truth(loss, score):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6000, 3))
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    sure = softmax(3.0 * logits)
    parts = decompose(sure, y, loss=loss)
    assert parts.loss == score(sure, y)
    assert parts.refinement == pytest.approx(score(softmax(logits), y), abs=2e-3)
    assert parts.calibration == pytest.approx(parts.loss - parts.refinement)


def test_nothing_is_to_be_gained_from_the_truth_itself():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(4000, 4))
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    parts = decompose(softmax(logits), y, calibrator=TemperatureScaling())
    assert abs(parts.calibration) < 2e-3


def test_hard_zeros_of_votes_do_not_hide_what_can_be_gained():
    rng = np.random.default_rng(2)
    truth = softmax(rng.normal(scale=2.0, size=(1500, 3)))
    y = (rng.uniform(size=(1500, 1)) > truth.cumsum(axis=1)).sum(axis=1).clip(max=2)
    votes = np.array([rng.multinomial(10, row) for row in truth]) / 10
    parts = decompose(votes, y)
    assert parts.loss > 3, "a true class without a vote"
    assert parts.refinement < 0.8, "0.813 with the smallest float for zeros"


def test_another_loss_is_refused():
    with pytest.raises(InputError, match="'nll' or 'brier', got 'ece'"):
        decompose([[0.5, 0.5]] * 4, [0, 1, 0, 1], loss="ece")
