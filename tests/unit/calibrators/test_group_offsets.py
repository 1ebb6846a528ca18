"""Offsets per group: closed forms, shrinkage, unseen groups, and their way through fit, save and
decide.
"""

from __future__ import annotations

import numpy as np
import pytest

from recal import AutoCalibration, TemperatureScaling, load, save
from recal.calibrators.group_offsets import GroupOffsets, OffsetProblem, fit_group_offsets
from recal.errors import InputError
from recal.maps.arrays import log_odds, sigmoid


def test_the_offset_is_the_zero_of_the_penalised_slope():
    rng = np.random.default_rng(1)
    scores, index = rng.normal(size=300), rng.integers(0, 4, 300)
    right, weights = (rng.random(300) < 0.7).astype(float), rng.integers(1, 4, 300).astype(float)
    ridge = 1.5
    offsets = OffsetProblem(scores, right, weights, index, 4, ridge).solve()
    chance = sigmoid(scores + offsets[index])
    slope = np.bincount(index, weights * (chance - right)) + ridge * offsets
    np.testing.assert_allclose(slope, 0.0, atol=1e-8)
    repeated = np.repeat(np.arange(300), weights.astype(int))
    data = scores[repeated], right[repeated], np.ones(len(repeated)), index[repeated]
    again = OffsetProblem(*data, 4, ridge).solve()
    np.testing.assert_allclose(again, offsets, rtol=1e-8)


def test_groups_that_do_not_differ_get_no_offset():
    zero = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        confidence = rng.uniform(0.5, 1.0, 600)
        right, groups = rng.random(600) < confidence, rng.integers(0, 20, 600)
        zero += not fit_group_offsets(confidence, right, groups).offsets.any()
    assert zero >= 16


def test_offsets_lower_the_loss_on_new_samples_of_the_groups():
    rng = np.random.default_rng(2)
    truth = rng.normal(0, 0.8, 30)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        index, confidence = rng.integers(0, 30, n), rng.uniform(0.5, 0.98, n)
        return confidence, rng.random(n) < sigmoid(log_odds(confidence) + truth[index]), index

    def loss(confidence: np.ndarray, right: np.ndarray) -> float:
        return float(-np.log(np.where(right, confidence, 1 - confidence)).mean())

    fitted = fit_group_offsets(*draw(1000))
    confidence, right, index = draw(20_000)
    gain = loss(confidence, right) - loss(fitted.apply(confidence, index), right)
    best = loss(confidence, right) - loss(sigmoid(log_odds(confidence) + truth[index]), right)
    assert gain > 0.6 * best


def test_clusters_are_not_divided_between_folds():
    """Within a cluster all answers are alike.

    Only folds that keep clusters whole see that groups teach nothing.
    """
    rng = np.random.default_rng(3)
    clusters = np.repeat(np.arange(60), 20)
    right, groups = np.repeat(rng.random(60) < 0.7, 20), clusters // 2
    confidence = np.full(1200, right.mean())
    divided = fit_group_offsets(confidence, right, groups)
    whole = fit_group_offsets(confidence, right, groups, clusters=clusters)
    assert np.abs(whole.offsets).max() < 0.6 * np.abs(divided.offsets).max()


def grouped(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return logits, labels and groups; half of the answers of group "b" are guesses."""
    rng = np.random.default_rng(seed)
    y, groups = rng.integers(0, 3, n), rng.choice(["a", "b"], n)
    logits = 3 * np.eye(3)[y] + rng.normal(size=(n, 3))
    y = np.where((groups == "b") & (rng.random(n) < 0.5), rng.integers(0, 3, n), y)
    return logits, y, groups


@pytest.mark.parametrize("method", [TemperatureScaling(), AutoCalibration()])
def test_a_fit_with_groups_changes_confidences_only(method, tmp_path):
    logits, y, groups = grouped(800, 4)
    fitted = method.fit(logits, y, groups=groups)
    new, truth, kinds = grouped(4000, 5)
    right = fitted.predict(new) == truth
    plain, shifted = fitted.predict_confidence(new), fitted.predict_confidence(new, groups=kinds)
    for rows in (kinds == "a", kinds == "b"):
        ours, before = (abs(one[rows].mean() - right[rows].mean()) for one in (shifted, plain))
        assert ours < 0.05 < before
    probs, both = fitted.predict_both(new, groups=kinds)
    np.testing.assert_array_equal(both, shifted)
    np.testing.assert_array_equal(probs, fitted.predict_proba(new))
    np.testing.assert_array_equal(fitted.predict_confidence(new, groups=np.full(4000, "c")), plain)
    again = load(save(fitted, tmp_path / "fitted.recal"))
    np.testing.assert_array_equal(again.predict_confidence(new, groups=kinds), shifted)
    fitted.fit(logits, y)
    with pytest.raises(InputError, match="--group COLUMN"):
        fitted.predict_confidence(new, groups=kinds)


@pytest.mark.parametrize(
    ("names", "offsets"), [("a", [0, 0]), ("aa", [0, 0]), ((1,), [0]), ("a", [np.nan])]
)
def test_offsets_that_no_fit_makes_are_refused(names, offsets):
    with pytest.raises(InputError):
        GroupOffsets(tuple(names), np.array(offsets, float))
