"""Parametric calibrators against plain scipy minimisations of their objectives, and against others'
numbers.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from recal.calibrators import (
    DirichletCalibration,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    VectorScaling,
)
from tests.problems import nll, waves


def scipy_minimum(features, labels, ridge, centre) -> tuple[float, np.ndarray]:
    """Minimise mean NLL of softmax(X W^T + b) + sum(ridge * ([W | b] - centre)^2), slowly and
    plainly.
    """
    shape = ridge.shape
    onehot = np.eye(shape[0])[labels]

    def objective(flat):
        theta = flat.reshape(shape)
        logs = log_softmax(features @ theta[:, :-1].T + theta[:, -1], axis=1)
        residual = (np.exp(logs) - onehot) / len(labels)
        gradient = np.column_stack([residual.T @ features, residual.sum(axis=0)])
        loss = -(logs * onehot).sum() / len(labels) + (ridge * (theta - centre) ** 2).sum()
        return loss, (gradient + 2 * ridge * (theta - centre)).ravel()

    start = np.eye(*shape).ravel()
    found = minimize(
        objective, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000}
    )
    return float(found.fun), found.x.reshape(shape)


def robust(logits, beta, n):
    return np.log(
        (1 - 1 / (n + 1)) * softmax(beta * logits, axis=1) + 1 / (n + 1) / logits.shape[1]
    )


@pytest.mark.parametrize("method", [VectorScaling, StructuredVectorScaling])
def test_vector_scaling_finds_the_minimum_that_scipy_finds(method):
    logits, labels = waves()
    n, k = logits.shape
    model = method().fit(logits, labels)
    features, ridge = logits, 0.0
    if method is StructuredVectorScaling:
        features, ridge = robust(logits, model.map_.beta, n), k / n

    def objective(theta):
        logs = log_softmax(features * theta[:k] + theta[k:], axis=1)
        penalty = ((theta[:k] - 1) ** 2).sum() + (theta[k:] ** 2).sum()
        return -logs[np.arange(n), labels].mean() + ridge * penalty

    found = minimize(
        objective, np.r_[np.ones(k), np.zeros(k)], method="BFGS", options={"gtol": 1e-7}
    )
    fitted = np.r_[model.map_.scale, model.map_.shift]
    assert objective(fitted) == pytest.approx(found.fun, abs=1e-7)
    expected = softmax(features * found.x[:k] + found.x[k:], axis=1)
    np.testing.assert_allclose(model.predict_proba(logits), expected, atol=1e-4)


def test_structured_matrix_scaling_finds_the_minimum_that_scipy_finds():
    logits, labels = waves()
    n, k = logits.shape
    model = StructuredMatrixScaling().fit(logits, labels)
    ridge = np.full((k, k + 1), k * (k - 1) / n)
    ridge[np.arange(k), np.arange(k)] = ridge[:, -1] = k / n
    _, theta = scipy_minimum(robust(logits, model.map_.beta, n), labels, ridge, np.eye(k, k + 1))
    np.testing.assert_allclose(model.map_.weights, theta[:, :-1], atol=1e-4)
    np.testing.assert_allclose(model.map_.intercept, theta[:, -1], atol=1e-4)


@pytest.mark.parametrize(("lam", "mu"), [(0.01, 0.01), (1.0, 100.0), (300.0, 0.1), (1e4, 1e4)])
@pytest.mark.parametrize(
    "method", [MatrixScaling, DirichletCalibration], ids=lambda method: method.short_name
)
def test_odir_finds_the_minimum_that_scipy_finds(method, lam, mu):
    """Mean NLL + lambda * mean squared off-diagonal weight + mu * mean squared intercept."""
    logits, labels = waves(300, 4)
    k = 4
    features = logits if method is MatrixScaling else log_softmax(logits, axis=1)
    off = ~np.eye(k, dtype=bool)

    def objective(weights, intercept):
        logs = log_softmax(features @ weights.T + intercept, axis=1)
        fit = -logs[np.arange(len(labels)), labels].mean()
        return fit + lam * (weights[off] ** 2).mean() + mu * (intercept**2).mean()

    ridge = np.full((k, k + 1), lam / off.sum())
    np.fill_diagonal(ridge, 0.0)
    ridge[:, -1] = mu / k
    least, theta = scipy_minimum(features, labels, ridge, 0.0)
    assert objective(theta[:, :-1], theta[:, -1]) == pytest.approx(least, abs=1e-12)
    model = method(penalty=lam, intercept_penalty=mu).fit(logits, labels)
    assert objective(model.map_.weights[0], model.map_.intercepts[0]) == pytest.approx(
        least, abs=1e-7
    )
    expected = softmax(features @ theta[:, :-1].T + theta[:, -1], axis=1)
    np.testing.assert_allclose(model.predict_proba(logits), expected, atol=2e-3)


# Mean NLL on the fitted half and on the other half, by probmetrics 1.3.0 (float32 features, its
# default solver).
PROBMETRICS = {
    VectorScaling: (1.0983071644, 1.1113486165),
    StructuredVectorScaling: (1.0973671456, 1.1119743681),
    StructuredMatrixScaling: (0.9663080966, 1.0078650093),
}


@pytest.mark.parametrize("method", PROBMETRICS, ids=lambda method: method.short_name)
def test_agrees_with_probmetrics(method):
    logits, labels = waves(600, 5)
    model = method().fit(logits[:300], labels[:300])
    halves = slice(300), slice(300, None)
    figures = [nll(model.predict_proba(logits[half]), labels[half]) for half in halves]
    np.testing.assert_allclose(figures, PROBMETRICS[method], rtol=2e-5)
