"""Platt scaling and beta calibration against scikit-learn's logistic regression, class by class."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression

from recal.calibrators import BetaCalibration, PlattScaling
from recal.calibrators.logistic import fit_jointly


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    calibrated = rng.normal(loc=(0.5, 0.0, -0.5), scale=1.5, size=(400, 3))
    return 2.0 * calibrated, (calibrated + rng.gumbel(size=calibrated.shape)).argmax(axis=1)


def soft_regression(
    features: np.ndarray, positive: np.ndarray, smooth: float
) -> tuple[np.ndarray, float]:
    """Unpenalised logistic regression on soft targets: every sample counts once as each class,
    weighted.
    """
    n_pos, n_neg = positive.sum(), (~positive).sum()
    high, low = (n_pos + smooth) / (n_pos + 2 * smooth), smooth / (n_neg + 2 * smooth)
    target = np.where(positive, high, low)
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000)
    y = np.repeat([1, 0], len(positive))
    model.fit(
        np.vstack([features, features]), y, sample_weight=np.concatenate([target, 1 - target])
    )
    return model.coef_[0], float(model.intercept_[0])


@pytest.mark.parametrize("smooth", [1.0, 0.0])
def test_platt_is_a_logistic_regression_on_the_log_odds(data, smooth):
    logits, labels = data
    probs = softmax(logits, axis=1)
    model = PlattScaling(penalty=smooth).fit(logits, labels)
    scores = np.empty(probs.shape)
    for k in range(3):
        log_odds = np.log(probs[:, k] / (1 - probs[:, k]))[:, None]
        (slope,), intercept = soft_regression(log_odds, labels == k, smooth)
        assert model.map_.coefficients[0, k] == pytest.approx(slope, abs=1e-4)
        assert model.map_.coefficients[1, k] == pytest.approx(intercept, abs=1e-4)
        scores[:, k] = expit(slope * log_odds[:, 0] + intercept)
    np.testing.assert_allclose(
        model.predict_proba(logits), scores / scores.sum(axis=1, keepdims=True), atol=1e-4
    )


@pytest.mark.parametrize("smooth", [1.0, 0.0])
def test_beta_is_the_published_formula(data, smooth):
    """q = 1 / (1 + 1 / (e^c p^a / (1 - p)^b)), with a, b, c by logistic regression on log p and
    -log(1 - p).
    """
    logits, labels = data
    probs = softmax(logits, axis=1)
    model = BetaCalibration(penalty=smooth, joint=False).fit(logits, labels)
    maps = np.empty(probs.shape)
    for k in range(3):
        p = probs[:, k]
        (a, b), c = soft_regression(
            np.column_stack([np.log(p), -np.log(1 - p)]), labels == k, smooth
        )
        assert a > 0
        assert b > 0
        np.testing.assert_allclose(model.map_.coefficients[:, k], [a, b, c], atol=2e-3)
        maps[:, k] = 1 / (1 + 1 / (np.exp(c) * p**a / (1 - p) ** b))
    np.testing.assert_allclose(
        model.predict_proba(logits), maps / maps.sum(axis=1, keepdims=True), atol=1e-4
    )


def test_curves_that_move_together_end_at_the_least_penalised_loss(data):
    """Beside a plain minimiser of the formula: mean NLL of sigmoids divided by their sum, held near
    their start.
    """
    logits, labels = data
    probs = softmax(logits, axis=1)
    features = np.array([np.log(probs), -np.log(1 - probs), np.ones(probs.shape)])
    size = np.sqrt(np.square(features).mean(axis=1))
    start = BetaCalibration(joint=False).fit(logits, labels).map_.coefficients

    def loss(flat):
        coef = flat.reshape(3, 3)
        maps = expit((features * coef[:, None, :]).sum(axis=0))
        nll = -np.log(maps[np.arange(400), labels] / maps.sum(axis=1)).mean()
        return nll + 1e-3 * 3 / 400 * np.square((coef - start) * size).sum()

    least = minimize(
        loss, start.ravel(), method="SLSQP", bounds=[(0, None)] * 6 + [(None, None)] * 3, tol=1e-13
    )
    found = fit_jointly(features[:2], labels, start, steps=1000)
    assert loss(found.ravel()) == pytest.approx(least.fun, abs=1e-6)
    assert least.fun < loss(start.ravel()) - 1e-4, "the move must matter"


def test_beta_drops_a_negative_coefficient_and_fits_the_rest_again():
    rng = np.random.default_rng(4)
    p = rng.uniform(0.02, 0.98, size=500)
    # Rises like a power of p alone, and falls slightly near 1: b would be negative.
    truth = expit(2.0 * np.log(p) + 0.4 * np.log(1 - p) + 1.5)
    labels = (rng.uniform(size=500) < truth).astype(int)
    logits = np.column_stack([np.zeros(500), np.log(p / (1 - p))])
    (_, b), _ = soft_regression(np.column_stack([np.log(p), -np.log(1 - p)]), labels == 1, False)
    assert b < 0, "the problem must need the rule"
    (a,), c = soft_regression(np.log(p)[:, None], labels == 1, False)
    model = BetaCalibration(penalty=0).fit(logits, labels)
    np.testing.assert_allclose(model.map_.coefficients[:, 1], [a, 0.0, c], atol=1e-4)
    # The other class sees the mirror image: log(1 - p) and -log(p) change places.
    np.testing.assert_allclose(model.map_.coefficients[:, 0], [0.0, a, -c], atol=1e-4)


@pytest.mark.parametrize("method", [PlattScaling, BetaCalibration])
def test_two_classes_are_solved_once_and_each_class_by_itself_gives_the_same(data, method):
    logits, labels = data[0][:, :2], data[1] % 2
    model = method(penalty=0.1).fit(logits, labels)
    for k in range(2):
        p = softmax(logits, axis=1)[:, k]
        features = [np.log(p / (1 - p))] if method is PlattScaling else [np.log(p), -np.log(1 - p)]
        coef, intercept = soft_regression(np.column_stack(features), labels == k, 0.1)
        np.testing.assert_allclose(model.map_.coefficients[:, k], [*coef, intercept], atol=2e-3)
    # One curve gives both classes, so that dividing by the sum changes nothing.
    assert np.abs(model.predict_proba(logits).sum(axis=1) - 1).max() < 1e-12
