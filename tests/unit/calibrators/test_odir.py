"""The search over lambda and mu of matrix scaling and Dirichlet calibration, and the folds it
stands on.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from recal.calibrators import DirichletCalibration, MatrixScaling
from recal.clusters import stratified_folds


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    calibrated = rng.normal(scale=1.5, size=(240, 3))
    labels = (calibrated + rng.gumbel(size=calibrated.shape)).argmax(axis=1)
    return 2.0 * calibrated, labels


def test_the_grid_holds_the_held_out_loss_of_each_pair(data):
    logits, labels = data
    model = MatrixScaling(penalty=[1.0, 100.0], intercept_penalty=[0.1, 10.0], random_state=3).fit(
        logits, labels
    )
    assert model.search_["lambdas"] == [100.0, 1.0]
    assert model.search_["mus"] == [10.0, 0.1]
    fold = stratified_folds(labels, 5, np.random.default_rng(3))
    for i, lam in enumerate(model.search_["lambdas"]):
        for j, mu in enumerate(model.search_["mus"]):
            held = np.empty(len(labels))
            for number in range(5):
                out = fold == number
                plain = MatrixScaling(penalty=lam, intercept_penalty=mu).fit(
                    logits[~out], labels[~out]
                )
                held[out] = -np.log(
                    plain.predict_proba(logits[out])[np.arange(out.sum()), labels[out]]
                )
            assert model.search_["nll"][i][j] == pytest.approx(held.mean(), abs=2e-4)


def test_average_is_the_mean_of_the_folds_answers(data):
    logits, labels = data
    model = MatrixScaling(penalty=[1.0, 2.0], intercept_penalty=1.0, random_state=0).fit(
        logits, labels
    )
    assert model.weights_.shape == (5, 3, 3)
    answers = [softmax(logits @ w.T + b, axis=1) for w, b in zip(model.weights_, model.intercepts_)]
    np.testing.assert_allclose(model.predict_proba(logits), np.mean(answers, axis=0), atol=1e-12)


def test_refit_is_one_map_of_all_samples(data):
    logits, labels = data
    model = DirichletCalibration(final="refit", random_state=0).fit(logits, labels)
    plain = DirichletCalibration(penalty=model.lambda_, intercept_penalty=model.mu_).fit(
        logits, labels
    )
    assert model.weights_.shape == (1, 3, 3)
    np.testing.assert_array_equal(model.predict_proba(logits), plain.predict_proba(logits))
    assert plain.search_ == {}


@pytest.mark.filterwarnings("ignore::recal.errors.DoubtfulLabelsWarning")
@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_a_path_that_only_gets_worse_is_left():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(60, 20)), rng.integers(0, 20, 60)
    search = MatrixScaling(random_state=0).fit(logits, labels).search_
    first, *_, last = search["nll"]
    assert all(score is not None for score in first)
    assert all(score is None for score in last)


def test_a_strong_lambda_leaves_one_scale_per_class(data):
    model = MatrixScaling(penalty=1e9, intercept_penalty=1e9).fit(*data)
    off = model.weights_[0][~np.eye(3, dtype=bool)]
    assert np.abs(off).max() < 1e-6
    assert np.diag(model.weights_[0]).min() > 0.2
