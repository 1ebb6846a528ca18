"""Stacking of views, class-wise weights, and averaging."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
from scipy.special import log_softmax

from recal import AutoCalibration, TemperatureScaling, Views, ViewStacking, metrics
from recal.calibrators import CalibrationEnsemble, ViewAveraging, ensemble
from recal.calibrators.samples import Samples
from recal.calibrators.view_selection import Refinement, StackData, can_fit
from recal.errors import FewSamplesWarning
from recal.maps.arrays import softmax
from recal.transforms import Named
from tests import problems


def looks(seed=0, n=1500, n_classes=5, noises=(2.0, 2.0, 5.0)):
    """Independent noisy looks at one truth: what a model sees of the original, and of each view."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    signal = 3.0 * np.eye(n_classes)[y]
    return [signal + rng.normal(size=signal.shape) * noise for noise in noises], y


def calibrated(seed, n, n_classes=5, n_views=6, sharpness=2.5):
    """A calibrated model: labels are drawn from its own probabilities.

    Its views are noisier copies, of no use.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, n_classes)) * sharpness
    y = np.array([rng.choice(n_classes, p=row) for row in softmax(logits)])
    views = {
        f"zoom:0.{9 - v}": logits * 0.8 + rng.normal(size=logits.shape) * (v + 1) / 3
        for v in range(n_views)
    }
    return Views(logits, views), y


def test_takes_the_view_that_helps_and_says_what_the_others_would_do():
    (own, good, poor), y = looks()
    noise = np.random.default_rng(9).normal(size=own.shape)
    views = Views(own, {"zoom:0.3": noise, "mine": good, "zoom:0.5": poor})
    fitted = ViewStacking(random_state=0).fit(views[:1000], y[:1000])
    assert fitted.plan_.transforms[0] == Named("mine")
    report = {record["view"]: record for record in fitted.views_report_}
    assert next(iter(report)) == "mine"
    assert report["mine"]["order"] == 1
    assert report["mine"]["added"] > 3 * report["mine"]["standard_error"] > 0
    assert report["mine"]["weight"] == dict(fitted.plan_.weights)[Named("mine")] > 0
    assert report["mine"]["alone"] > report["zoom:0.5"]["alone"] > 5 * report["zoom:0.3"]["alone"]
    plain = TemperatureScaling().fit(views[:1000], y[:1000]).predict_proba(views[1000:])
    probs = fitted.predict_proba(views[1000:])
    for score in (metrics.nll, metrics.brier, metrics.aurc):
        assert score(probs, y[1000:]) < 0.9 * score(plain, y[1000:])
    assert (probs.argmax(1) == own[1000:].argmax(1)).all()


def test_free_answers_make_fewer_errors():
    (own, good, _), y = looks()
    views = Views(own, {"mine": good})
    fitted = ViewStacking(answers="free").fit(views[:1000], y[:1000])
    assert not fitted.keeps_accuracy
    assert ViewStacking().keeps_accuracy
    assert ViewStacking.keeps_accuracy
    probs = fitted.predict_proba(views[1000:])
    assert metrics.error_rate(probs, y[1000:]) < 0.9 * np.mean(own[1000:].argmax(1) != y[1000:])
    np.testing.assert_array_equal(fitted.predict(views[1000:]), probs.argmax(1))


@pytest.mark.parametrize("n", [300, 1000])
def test_a_calibrated_model_is_left_alone(n):
    accepted = [ViewStacking().fit(*calibrated(seed, n)).plan_.transforms for seed in range(8)]
    assert sum(map(bool, accepted)) <= 1


def test_what_is_refused_costs_no_pass_and_is_temperature_scaling():
    views, y = calibrated(3, 600)
    fitted = ViewStacking().fit(views, y)
    assert fitted.plan_.transforms == ()
    assert fitted.plan_ == TemperatureScaling().fit(views, y).plan_
    fitted.predict_proba(np.asarray(views.logits))


def test_offsets_are_found_where_views_give_nothing():
    views, y = calibrated(4, 2000)
    others = {t: views.transformed(t) for t in views.transforms}
    tilted = Views(views.logits - np.array([1.5, 0, 0, 0, 0]), others)
    first, *rest = ViewStacking(answers="free", max_views=0).fit(tilted, y).plan_.offsets
    assert first - np.mean(rest) == pytest.approx(1.5, abs=0.25)
    kept = ViewStacking(max_views=0).fit(tilted, y)
    assert (kept.predict_proba(tilted).argmax(1) == tilted.logits.argmax(1)).all()


def test_of_two_views_that_help_alike_the_one_that_loses_nothing_is_taken():
    (own, good, _), y = looks()
    rng = np.random.default_rng(5)
    near = good + rng.normal(size=good.shape) * 0.01
    fitted = ViewStacking(max_views=1).fit(Views(own, {"zoom:0.5": good, "flip": near}), y)
    assert [str(t) for t in fitted.plan_.transforms] == ["flip"]
    worse = Views(own, {"zoom:0.5": good, "flip": looks(noises=(9,))[0][0]})
    clearly = ViewStacking(max_views=1).fit(worse, y)
    assert [str(t) for t in clearly.plan_.transforms] == ["zoom:0.5"]


def test_the_gate_spares_the_sure():
    (own, good, _), y = looks(n=3000)
    views = Views(2.0 * own, {"mine": 2.0 * good})
    always = ViewStacking(gate=None).fit(views, y)
    gated = ViewStacking(gate=0.8).fit(views, y)
    assert always.plan_.gate is None
    assert always.plan_.needs_views(views.logits).all()
    assert 0.05 < gated.plan_.needs_views(views.logits).mean() < 0.95


def test_too_many_values_are_shortlisted_and_drawn(monkeypatch):
    (own, good, *_), y = looks(n=2000)
    rng = np.random.default_rng(1)
    useless = {f"zoom:0.{i}": rng.normal(size=own.shape) for i in range(10, 40)}
    views = Views(own, {**useless, "mine": good})
    monkeypatch.setattr("recal.calibrators.stacking._MOST_VALUES", 9 * 5 * 800)
    fitted = ViewStacking().fit(views, y)
    assert [str(t) for t in fitted.plan_.transforms] == ["mine"]
    assert len(fitted.views_report_) == 8


def test_averaging_is_the_mean_over_the_original_and_the_views():
    rng = np.random.default_rng(0)
    z, a, b = rng.normal(size=(3, 60, 4))
    views = Views(z, {"zoom:0.5": a, "brightness:0.5": b}, z.argmax(axis=1))
    with pytest.warns(FewSamplesWarning):
        fitted = ViewAveraging().fit(views)
    expected = (softmax(z) + softmax(a) + softmax(b)) / 3
    np.testing.assert_allclose(fitted.predict_proba(views), expected, rtol=0, atol=1e-15)
    assert (fitted.predict(views) != z.argmax(axis=1)).any()


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
            own = point[:, place * n_classes : (place + 1) * n_classes]
            scores = scores + data.features[view] @ own.T
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
