"""Lines and parabolas of the log-odds against scikit-learn's logistic regression."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from recal.calibrators import AffineScaling, QuadraticScaling


def two_classes(truth, n=3000, seed=0):
    """Log-odds z of the second class, as logits, and labels drawn with log-odds truth(z)."""
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.normal(size=n) - 0.5
    return np.stack([np.zeros(n), z], axis=1), (rng.random(n) < 1 / (1 + np.exp(-truth(z)))).astype(
        int
    )


@pytest.mark.parametrize(
    ("method", "powers"),
    [(AffineScaling(), (1,)), (QuadraticScaling(monotone=False), (1, 2))],
    ids=["line", "parabola"],
)
def test_two_classes_are_a_logistic_regression_without_a_penalty(method, powers):
    logits, y = two_classes(lambda z: 0.3 + 0.6 * z + 0.1 * z**2)
    features = np.stack([logits[:, 1] ** power for power in powers], axis=1)
    reference = (
        LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
        .fit(features, y)
        .predict_proba(features)
    )
    np.testing.assert_allclose(method.fit(logits, y).predict_proba(logits), reference, atol=2e-5)


def test_a_parabola_never_falls():
    logits, y = two_classes(lambda z: 1.0 + 0.5 * z - 0.3 * z**2)
    model = QuadraticScaling().fit(logits, y)
    ladder = np.stack([np.zeros(400), np.linspace(-30, 30, 400)], axis=1)
    assert (np.diff(model.predict_proba(ladder)[:, 1]) >= 0).all()
    plain = QuadraticScaling(monotone=False).fit(logits, y).predict_proba(ladder)[:, 1]
    assert (np.diff(plain) < 0).any()


@pytest.mark.parametrize("method", [AffineScaling, QuadraticScaling])
def test_scores_that_mean_the_opposite_are_not_followed(method):
    logits, y = two_classes(lambda z: -z)
    probs = method().fit(logits, y).predict_proba(logits)
    np.testing.assert_allclose(probs[:, 1], y.mean(), atol=1e-6)
