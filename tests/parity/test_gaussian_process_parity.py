"""The latent process against a slow reference of its bound, and against a general maximiser."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

import recal.calibrators.gaussian_process as latent_process
from recal.calibrators.gaussian_process import LatentProcess
from recal.engine import row_blocks

POINTS = np.linspace(-5.0, 0.0, 4)
LENGTH, VARIANCE = 1.5, 0.8


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(2)
    return log_softmax(2.0 * rng.normal(size=(12, 3)), axis=1), rng.integers(0, 3, 12)


def kernel(x, t):
    return np.exp(-0.5 * ((x[:, None] - t[None, :]) / LENGTH) ** 2)


def slow_bound(log_probs, labels, mean, covariance):
    """Sum of E[log p(y | f)], to second order, minus KL(q || prior): sample by sample with explicit
    matrices.
    """
    root = np.linalg.cholesky(kernel(POINTS, POINTS) + 1e-6 * np.eye(len(POINTS)))
    total = 0.0
    for x, y in zip(log_probs, labels):
        phi = np.linalg.solve(root, kernel(x, POINTS).T).T
        f, f_covariance = x + phi @ mean, phi @ covariance @ phi.T
        p = softmax(f)
        total += np.log(p[y]) - 0.5 * np.trace((np.diag(p) - np.outer(p, p)) @ f_covariance)
    width = len(mean)
    divergence = 0.5 * (
        (np.trace(covariance) + mean @ mean) / VARIANCE
        - width
        + width * np.log(VARIANCE)
        - np.linalg.slogdet(covariance)[1]
    )
    return total - divergence


def bound(data, mean, covariance):
    process = LatentProcess(*data, POINTS, LENGTH)
    process.variance = VARIANCE
    return process.bound(mean, covariance)


def test_the_bound_is_the_plain_sum(data):
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(4, 4))
    mean, covariance = rng.normal(size=4), factor @ factor.T + 0.1 * np.eye(4)
    value, _ = bound(data, mean, covariance)
    assert value == pytest.approx(slow_bound(*data, mean, covariance), rel=1e-9)


def test_no_mean_and_covariance_reach_a_higher_bound(data):
    found = LatentProcess(*data, POINTS, LENGTH).fit(VARIANCE)
    lower = np.tril_indices(4)

    def negative(flat):
        factor = np.zeros((4, 4))
        factor[lower] = flat[4:]
        return -slow_bound(*data, flat[:4], factor @ factor.T + 1e-12 * np.eye(4))

    start = np.concatenate([np.zeros(4), np.sqrt(VARIANCE) * np.eye(4)[lower]])
    best = -minimize(negative, start, method="BFGS", options={"gtol": 1e-6}).fun
    assert found.bound == pytest.approx(slow_bound(*data, found.mean, found.covariance), abs=1e-8)
    assert found.bound == pytest.approx(best, abs=2e-3)


def test_taking_samples_in_parts_changes_nothing(data, monkeypatch):
    whole = LatentProcess(*data, POINTS, LENGTH).fit(VARIANCE)
    monkeypatch.setattr(latent_process, "row_blocks", lambda *shape: row_blocks(*shape[:2], 60))
    parts = LatentProcess(*data, POINTS, LENGTH).fit(VARIANCE)
    assert parts.bound == pytest.approx(whole.bound, abs=1e-10)
    np.testing.assert_allclose(parts.mean, whole.mean, atol=1e-8)
