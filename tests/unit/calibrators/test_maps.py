"""The two softmax maps: derivatives against differences, the stand-in for the Hessian, and rows
alone or in a batch.
"""

from __future__ import annotations

import numpy as np
import pytest

from recal.solvers.softmax import DiagonalMap, LinearMap

N, K = 40, 4


@pytest.fixture
def data():
    rng = np.random.default_rng(3)
    return rng.normal(scale=2.0, size=(N, K)) + 1.0, rng.integers(0, K, N), rng


def linear(data):
    features, labels, rng = data
    problem = LinearMap(features, labels, K)
    problem.penalise(rng.uniform(0.01, 0.1, size=(K, K + 1)), np.eye(K, K + 1))
    return problem, np.eye(K, K + 1) + 0.2 * rng.normal(size=(K, K + 1))


def diagonal(data):
    features, labels, rng = data
    problem = DiagonalMap(features, labels, K)
    problem.penalise(np.array([[0.02], [0.05]]), np.array([[1.0], [0.0]]))
    return problem, np.stack([np.ones(K), np.zeros(K)]) + 0.2 * rng.normal(size=(2, K))


@pytest.mark.parametrize("build", [linear, diagonal])
def test_gradient_and_hessian_are_those_of_the_loss(data, build):
    problem, point = build(data)
    direction = np.random.default_rng(5).normal(size=point.shape)
    problem.evaluate(point)
    gradient, product = problem.gradient(), problem.hessian_times(direction)
    step = 1e-5
    ahead = problem.evaluate(point + step * direction)
    gradient_ahead = problem.gradient()
    behind = problem.evaluate(point - step * direction)
    gradient_behind = problem.gradient()
    assert np.vdot(gradient, direction) == pytest.approx((ahead - behind) / (2 * step), rel=1e-6)
    np.testing.assert_allclose(
        product, (gradient_ahead - gradient_behind) / (2 * step), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("build", [linear, diagonal])
def test_the_stand_in_is_symmetric_positive_and_close(data, build):
    problem, point = build(data)
    problem.evaluate(point)
    problem.gradient()
    basis = np.eye(point.size).reshape(point.size, *point.shape)
    inverse = np.array([problem.precondition(column).ravel() for column in basis])
    hessian = np.array([problem.hessian_times(column).ravel() for column in basis])
    np.testing.assert_allclose(inverse, inverse.T, rtol=1e-9, atol=1e-12)
    assert np.linalg.eigvalsh(inverse).min() > 0.0
    spread = np.abs(np.linalg.eigvals(inverse @ hessian))
    assert spread.max() / spread.min() < np.linalg.cond(hessian)


def test_a_common_shift_of_the_weights_goes_where_the_ridge_is_least(data):
    problem, point = linear(data)
    fixed = problem.solve(point, max_iter=0, warn=False).point
    shift = fixed - point
    np.testing.assert_allclose(shift, np.broadcast_to(shift[:1], shift.shape), atol=1e-12)
    best = problem.evaluate(fixed)
    for nudge in np.eye(K + 1):
        assert problem.evaluate(fixed + 0.1 * nudge) > best
        assert problem.evaluate(fixed - 0.1 * nudge) > best
