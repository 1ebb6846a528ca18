"""The search over lambda and mu of matrix scaling and Dirichlet calibration, and the folds it
stands on.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from recal.calibrators import MatrixScaling, scaling
from recal.clusters import stratified_folds
from recal.solvers.temperature import fit_beta
from tests.problems import logits_and_labels


@pytest.fixture(scope="module")
def data():
    return logits_and_labels(240, 3, seed=1, scale=2.0)


def test_the_search_holds_the_held_out_loss_of_each_pair(data):
    logits, labels = data
    fold = stratified_folds(labels, 5, np.random.default_rng(3))
    lambdas, mus = (100.0, 1.0), (10.0, 0.1)
    found = scaling._held_out_losses(logits, labels, fold, fit_beta(logits, labels), lambdas, mus)
    for i, lam in enumerate(lambdas):
        for j, mu in enumerate(mus):
            held = np.empty(len(labels))
            for out in (fold == number for number in range(5)):
                plain = MatrixScaling(penalty=lam, intercept_penalty=mu)
                probs = plain.fit(logits[~out], labels[~out]).predict_proba(logits[out])
                held[out] = -np.log(probs[np.arange(out.sum()), labels[out]])
            assert found[i][j] == pytest.approx(held.mean(), abs=2e-4)


def test_the_answer_is_the_mean_of_the_folds_answers(data):
    logits, labels = data
    model = MatrixScaling(penalty=[1.0, 2.0], intercept_penalty=1.0).fit(logits, labels).map_
    assert model.weights.shape == (5, 3, 3)
    answers = [softmax(logits @ w.T + b, axis=1) for w, b in zip(model.weights, model.intercepts)]
    np.testing.assert_allclose(model.probs(logits), np.mean(answers, axis=0), atol=1e-12)


def test_a_path_that_only_gets_worse_is_left():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(60, 20)), rng.integers(0, 20, 60)
    fold = stratified_folds(labels, 5, rng)
    lambdas = 380.0 * 10.0 ** np.arange(3, -5, -1)
    found = scaling._held_out_losses(
        logits, labels, fold, fit_beta(logits, labels), lambdas, (2.0,)
    )
    assert np.isfinite(found[0]).all()
    assert np.isinf(found[-1]).all()
