"""The fit of weights that are never negative, against the formula written out and minimised by
another solver.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from recal.solvers.softmax import StackedMap
from tests.problems import falling_looks


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
    theta = np.r_[tight.weights, tight.offsets]
    for _ in range(5):
        other = theta + np.random.default_rng(0).normal(size=theta.shape) * 1e-3
        assert (
            formula(
                np.r_[np.maximum(other[:2], 0), other[2:]], features, labels, rows, 0.75, 5e-5, 2
            )
            > tight.loss
        )


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
