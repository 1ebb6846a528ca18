"""Venn-Abers against the direct way: two isotonic regressions for every sample."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from recal.calibrators import VennAbers


def direct(scores, hits, new):
    """Return p0 and p1 of each new score by fitting isotonic regression anew with either label."""
    fits = [
        [
            IsotonicRegression().fit(np.append(scores, s), np.append(hits, label)).predict([s])[0]
            for label in (0.0, 1.0)
        ]
        for s in new
    ]
    return np.array(fits).T


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize("digits", [0, 1, 8], ids=["many ties", "ties", "no ties"])
@pytest.mark.parametrize("seed", range(3))
def test_both_probabilities_are_those_of_two_isotonic_regressions(seed, digits):
    rng = np.random.default_rng(seed)
    scores = np.round(2 * rng.normal(size=60), digits)
    hits = (rng.random(60) < 1 / (1 + np.exp(-scores))).astype(int)
    new = np.concatenate([scores[:10], 3 * rng.normal(size=15), [-50.0, 50.0]])
    model = VennAbers().fit(np.stack([np.zeros(60), scores], axis=1), hits)
    fresh = np.stack([np.zeros(len(new)), new], axis=1)
    low, high = model.predict_interval(fresh)
    expected_low, expected_high = direct(scores, hits, new)
    np.testing.assert_allclose(low[:, 1], expected_low, atol=1e-12)
    np.testing.assert_allclose(high[:, 1], expected_high, atol=1e-12)
    merged = expected_high / (1 - expected_low + expected_high)
    np.testing.assert_allclose(model.predict_proba(fresh)[:, 1], merged, atol=1e-12)


def test_with_more_classes_each_stands_against_the_rest():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(80, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    model = VennAbers().fit(logits, labels)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    low, high = model.predict_interval(logits[:5])
    for k in range(3):
        odds = np.log(probs[:, k] / (1 - probs[:, k]))
        expected_low, expected_high = direct(odds, (labels == k).astype(float), odds[:5])
        np.testing.assert_allclose(low[:, k], expected_low, atol=1e-9)
        np.testing.assert_allclose(high[:, k], expected_high, atol=1e-9)
    merged = high / (1 - low + high)
    np.testing.assert_allclose(
        model.predict_proba(logits[:5]), merged / merged.sum(axis=1, keepdims=True)
    )
