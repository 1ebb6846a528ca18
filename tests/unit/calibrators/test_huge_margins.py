"""Scores whose softmax is all zeros and ones: what sorts by them must not lose the order that is in
them.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.datasets import load_breast_cancer
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import roc_auc_score

from recal import calibrators
from recal.maps.arrays import class_scores

SORTED_BY_SCORES = (
    calibrators.IsotonicCalibration, calibrators.IsotonicMulticlass, calibrators.IsotonicOneVsAll,
    calibrators.HistogramBinning, calibrators.BayesianBinning, calibrators.PlattScaling, calibrators.BetaCalibration,
)  # fmt: skip


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0, 1e4, 1e12])
def test_log_odds_are_exact_for_any_margin(scale):
    rng = np.random.default_rng(0)
    two = scale * rng.normal(size=(50, 2))
    np.testing.assert_allclose(class_scores(two)[:, 1], two[:, 1] - two[:, 0], rtol=1e-9)
    many = scale * rng.normal(size=(50, 5))
    for k in range(5):
        exact = many[:, k] - logsumexp(np.delete(many, k, axis=1), axis=1)
        np.testing.assert_allclose(class_scores(many)[:, k], exact, rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def margins():
    """Return the margins of a linear model that was given features of any size, as many do, and
    labels, twice.
    """
    data = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(data.target))
    train, fitting, test = np.split(order, [150, 380])
    model = SGDClassifier(random_state=0).fit(data.data[train], data.target[train])
    scores = model.decision_function(data.data)
    assert np.median(np.abs(scores)) > 700, "softmax of these is 0 or 1"
    logits = np.stack([np.zeros_like(scores), scores], axis=1)
    return logits[fitting], data.target[fitting], logits[test], data.target[test]


@pytest.mark.parametrize("method", SORTED_BY_SCORES, ids=lambda method: method.short_name)
def test_ranking_survives_calibration(method, margins):
    logits, y, fresh, truth = margins
    ranked = roc_auc_score(truth, fresh[:, 1])
    curve = IsotonicRegression(out_of_bounds="clip").fit(logits[:, 1], y).predict(fresh[:, 1])
    answer = roc_auc_score(truth, method().fit(logits, y).predict_proba(fresh)[:, 1])
    assert answer > min(ranked, roc_auc_score(truth, curve)) - 0.015
