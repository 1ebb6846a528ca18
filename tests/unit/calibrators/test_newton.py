"""The solver on problems whose minimum is known."""

from __future__ import annotations

import numpy as np
import pytest

from recal.errors import ConvergenceWarning
from recal.solvers.convex import minimise


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
    found = minimise(Steep(), np.array([start]), tol=1e-12)
    assert Steep.gradient(found_at(found.point)) == pytest.approx(0.0, abs=1e-8)


def test_a_column_that_overshoots_does_not_shorten_the_steps_of_the_others():
    starts = np.array([[-30.0, 0.0, 40.0]])
    together = SteepColumns()
    found = minimise(together, starts, tol=1e-12)
    alone = [SteepColumns() for _ in starts[0]]
    points = [minimise(one, starts[:, [k]], tol=1e-12).point[0, 0] for k, one in enumerate(alone)]
    np.testing.assert_allclose(found.point[0], points, rtol=1e-8)
    assert together.n_steps <= max(one.n_steps for one in alone) + 1


def found_at(point):
    problem = Steep()
    problem.evaluate(point)
    return problem


def test_running_out_of_steps_is_said():
    with pytest.warns(ConvergenceWarning, match="above its minimum"):
        minimise(Steep(), np.array([-30.0]), max_iter=1)


def test_a_number_that_is_not_finite_is_said_and_the_last_good_point_kept():
    with np.errstate(all="ignore"), pytest.warns(ConvergenceWarning, match="nan"):
        found = minimise(Quadratic(np.diag([1.0, np.inf]), np.ones(2)), np.zeros(2))
    assert np.isfinite(found.point).all()
