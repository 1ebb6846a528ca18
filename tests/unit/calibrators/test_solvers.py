"""Solvers on problems whose minimum is known, softmax maps, and weights of at least zero."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from recal.errors import ConvergenceWarning
from recal.solvers.convex import minimise
from recal.solvers.softmax import DiagonalMap, LinearMap, StackedMap
from tests.problems import falling_looks


class Quadratic:
    """0.5 x'Ax - b'x, without a preconditioner."""

    def __init__(self, matrix, linear):
        self.matrix, self.linear = matrix, linear

    def evaluate(self, point):
        self.point = point
        return float(0.5 * point @ self.matrix @ point - self.linear @ point)

    def gradient(self):
        return self.matrix @ self.point - self.linear

    def hessian_times(self, direction):
        return self.matrix @ direction

    def precondition(self, residual):
        return residual.copy()


class Steep(Quadratic):
    """log(1 + e^-x) + 1e-3 x^2, where a full Newton step from far left overshoots."""

    def __init__(self):
        pass

    def evaluate(self, point):
        self.point = point
        return float(np.logaddexp(0.0, -point[0]) + 1e-3 * point[0] ** 2)

    def gradient(self):
        self.n_steps = getattr(self, "n_steps", -1) + 1
        return -1.0 / (1.0 + np.exp(self.point)) + 2e-3 * self.point

    def hessian_times(self, direction):
        p = 1.0 / (1.0 + np.exp(-self.point))
        return (p * (1.0 - p) + 2e-3) * direction


class SteepColumns(Steep):
    """The same problem in each column, with a loss of its own."""

    def evaluate(self, point):
        self.point = point
        return np.logaddexp(0.0, -point[0]) + 1e-3 * point[0] ** 2

    def precondition(self, residual):
        return residual / self.hessian_times(np.ones_like(residual))


def test_an_ill_conditioned_quadratic_is_solved():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    matrix = basis * np.geomspace(1e-3, 1e3, 12) @ basis.T
    linear = matrix @ np.arange(12.0)
    found = minimise(Quadratic(matrix, linear), np.zeros(12), tol=1e-12)
    np.testing.assert_allclose(found.point, np.arange(12.0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("start", [-30.0, 0.0, 40.0])
def test_a_step_that_overshoots_is_shortened(start):
    problem = Steep()
    minimise(problem, np.array([start]), tol=1e-12)
    assert problem.gradient() == pytest.approx(0.0, abs=1e-8)  # at the final point


def test_a_column_that_overshoots_does_not_shorten_the_steps_of_the_others():
    starts = np.array([[-30.0, 0.0, 40.0]])
    together = SteepColumns()
    found = minimise(together, starts, tol=1e-12)
    alone = [SteepColumns() for _ in starts[0]]
    points = [minimise(one, starts[:, [k]], tol=1e-12).point[0, 0] for k, one in enumerate(alone)]
    np.testing.assert_allclose(found.point[0], points, rtol=1e-8)
    assert together.n_steps <= max(one.n_steps for one in alone) + 1


def test_running_out_of_steps_is_said():
    with pytest.warns(ConvergenceWarning, match="above its minimum"):
        minimise(Steep(), np.array([-30.0]), max_iter=1)


def test_a_number_that_is_not_finite_is_said_and_the_last_good_point_kept():
    with np.errstate(all="ignore"), pytest.warns(ConvergenceWarning, match="nan"):
        found = minimise(Quadratic(np.diag([1.0, np.inf]), np.ones(2)), np.zeros(2))
    assert np.isfinite(found.point).all()


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


def formula(theta, features, labels, rows, offset_penalty, view_ridge, m):
    weights, offsets = theta[:m], theta[m:]
    scores = np.einsum("v,vnk->nk", weights, features.astype(np.float64)) + offsets
    scores -= scores.max(1, keepdims=True)
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(labels)), labels]
    return (
        rows @ losses + offset_penalty * offsets @ offsets + view_ridge * weights[1:] @ weights[1:]
    )


def by_scipy(features, labels, rows, offset_penalty, view_ridge=5e-5):
    m, _, n_classes = features.shape
    start = np.r_[1.0, np.zeros(m - 1 + n_classes)]
    bounds = [(0, None)] * m + [(None, None)] * n_classes
    arguments = (features, labels, rows, offset_penalty, view_ridge, m)
    options = {"ftol": 1e-14, "gtol": 1e-9, "maxfun": 10**6, "maxiter": 5000}
    return minimize(
        formula, start, args=arguments, bounds=bounds, method="L-BFGS-B", options=options
    )


@pytest.mark.parametrize("n_classes", [2, 4, 9])
@pytest.mark.parametrize("n_views", [1, 2, 4])
def test_agrees_with_another_solver(n_classes, n_views):
    features, labels = falling_looks(n_classes=n_classes, seed=n_classes, n_views=max(n_views, 2))
    features, rows = features[:n_views], np.full(300, 1 / 300)
    found = StackedMap(features, labels, rows, offset_penalty=n_classes / 300).solve(
        tuple(range(n_views))
    )
    best = by_scipy(features, labels, rows, n_classes / 300)
    assert found.loss == pytest.approx(best.fun, abs=1e-7)
    np.testing.assert_allclose(np.r_[found.weights, found.offsets], best.x, atol=2e-3)


def test_rows_of_weight_zero_are_left_out_of_the_fit_but_not_of_the_losses():
    features, labels = falling_looks()
    rows = (np.arange(300) % 3 > 0) / 200
    whole = StackedMap(features, labels, rows, offset_penalty=0.02)
    part = StackedMap(
        features[:, rows > 0].copy(), labels[rows > 0], np.full(200, 1 / 200), offset_penalty=0.02
    )
    found, alone = whole.solve((0, 1)), part.solve((0, 1))
    np.testing.assert_allclose(found.weights, alone.weights, atol=1e-6)
    np.testing.assert_allclose(found.offsets, alone.offsets, atol=1e-6)
    np.testing.assert_allclose(whole.losses[rows > 0], part.losses, atol=1e-6)
    assert np.isfinite(whole.losses).all()


def test_many_classes_take_the_diagonal_of_the_offsets_and_still_arrive():
    features, labels = falling_looks(n=400, n_classes=300, n_views=2)
    rows = np.full(400, 1 / 400)
    found = StackedMap(features, labels, rows, offset_penalty=300 / 400).solve((0, 1))
    tight = StackedMap(features, labels, rows, offset_penalty=300 / 400).solve((0, 1), tol=1e-14)
    assert found.loss == pytest.approx(tight.loss, abs=1e-8)
    other = tight.offsets + 1e-3 * np.random.default_rng(0).normal(size=300)
    theta = np.r_[tight.weights, other]
    assert formula(theta, features, labels, rows, 0.75, 5e-5, 2) > tight.loss


def test_the_screen_ranks_candidates_as_their_fits_do_and_never_promises_to_a_useless_one():
    features, labels = falling_looks(n=2000, n_views=6)
    problem_ = StackedMap(features, labels, np.full(2000, 1 / 2000), offset_penalty=4 / 2000)
    base = problem_.solve((0,))
    promised = problem_.promised_gains(base, (1, 2, 3, 4, 5))
    real = np.array([base.loss - problem_.solve((0, v), base).loss for v in range(1, 6)])
    assert promised[-1] == 0.0
    assert np.argsort(promised).tolist() == np.argsort(real).tolist()
    np.testing.assert_allclose(promised[:2], real[:2], rtol=0.5)


def test_sums_do_not_depend_on_the_number_of_threads(monkeypatch):
    features, labels = falling_looks(n=30_000, n_classes=10, n_views=2)
    rows = np.full(30_000, 1 / 30_000)
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("RECAL_NUM_THREADS", threads)
        found.append(StackedMap(features, labels, rows, offset_penalty=1e-3).solve((0, 1)))
    np.testing.assert_array_equal(found[0].weights, found[1].weights)
    np.testing.assert_array_equal(found[0].offsets, found[1].offsets)
