"""Class-wise weights for views: their optimum, and when they are used."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
from scipy.special import log_softmax

from recal import AutoCalibration, Views
from recal.calibrators import CalibrationEnsemble, ensemble
from recal.calibrators.samples import Samples
from recal.calibrators.stacking import Refinement, StackData, can_fit
from tests import problems


def stack_data(n=240, n_classes=3, seed=0):
    views, labels = problems.prompts(n, n_classes, seed, n_views=2)
    logits = np.array(
        [views.logits, 0.8 * views.logits, *(views.transformed(t) for t in views.transforms)]
    )
    features = log_softmax(logits, axis=2).astype(np.float32)
    plain = -features[0][np.arange(n), labels].astype(np.float64)
    samples, confidence = Samples(views, labels), np.exp(features[0].max(axis=1))
    return StackData(
        samples, views.transforms, features, confidence, plain, 1.0, 1e-4, "free", None, n_base=2
    )


@pytest.mark.parametrize("strength", [0.3, 10.0])
def test_the_matrices_minimise_the_penalised_loss(strength):
    data = stack_data()
    refinement = Refinement(data, np.ones(240, dtype=bool))
    n_classes, views = 3, [0, 2, 3]

    def loss(flat):
        point = flat.reshape(n_classes, 3 * n_classes + 1)
        scores = refinement.scores + point[:, -1]
        for place, view in enumerate(views):
            scores = (
                scores
                + data.features[view] @ point[:, place * n_classes : (place + 1) * n_classes].T
            )
        penalty = strength * np.square(point[:, :-1]).sum() + np.square(point[:, -1]).sum()
        mean = -log_softmax(scores, axis=1)[np.arange(240), data.samples.labels].mean()
        return mean + n_classes / 240 * penalty

    found = refinement.solve(strength, refinement.nothing(), tol=1e-12)
    start = loss(np.zeros(found.size))
    least = scipy.optimize.minimize(
        loss, np.zeros(found.size), method="BFGS", options={"maxiter": 60}
    ).fun
    assert least < start - 1e-3
    assert loss(found.ravel()) <= least + 1e-6


def test_views_that_know_one_class_each_get_matrices_and_a_lower_loss(monkeypatch):
    every, labels = problems.prompts(4000)
    views, y, fresh, truth = every[:1500], labels[:1500], every[1500:], labels[1500:]
    fitted = AutoCalibration().fit(views, y)
    blend = fitted.plan_
    assert np.shape(blend.matrices) == (1 + len(blend.weights), 4, 4)
    assert len(blend.weights) == 5
    assert "5.00 more forward passes" in fitted.reason_
    assert "with weights for each class" in fitted.reason_
    monkeypatch.setattr(ensemble, "choose_class_weights", lambda *_, **__: None)
    without = AutoCalibration().fit(views, y)
    losses = [problems.nll(one.predict_proba(fresh), truth) for one in (fitted, without)]
    assert losses[0] < 0.97 * losses[1]


@pytest.mark.parametrize("n_classes", [3, 10])
@pytest.mark.parametrize("seed", range(3))
def test_views_that_know_all_classes_alike_get_no_matrices(n_classes, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, 1500)
    own, view = (
        2.0 * np.eye(n_classes)[y] + 1.2 * rng.normal(size=(1500, n_classes)) for _ in range(2)
    )
    fitted = CalibrationEnsemble(random_state=seed).fit(Views(2 * own, {"flip": 2 * view}), y)
    assert fitted.plan_.weights
    assert not fitted.plan_.matrices


def test_few_samples_for_many_classes_get_no_matrices():
    assert can_fit(stack_data(n=150, n_classes=5), 2)
    assert not can_fit(stack_data(n=149, n_classes=5), 2)
    assert not can_fit(stack_data(n=99), 2)
