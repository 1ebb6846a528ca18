"""ViewStacking: it finds the views that help, leaves calibrated models alone, and never costs a pass
for nothing.
"""

from __future__ import annotations

import numpy as np
import pytest

from recal import TemperatureScaling, Views, ViewStacking, metrics
from recal.maps.arrays import softmax
from recal.transforms import Named


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
    tilted = Views(
        views.logits - np.array([1.5, 0, 0, 0, 0]),
        {t: views.transformed(t) for t in views.transforms},
    )
    fitted = ViewStacking(answers="free", max_views=0).fit(tilted, y)
    assert fitted.plan_.offsets[0] - np.mean(fitted.plan_.offsets[1:]) == pytest.approx(
        1.5, abs=0.25
    )
    kept = ViewStacking(max_views=0).fit(tilted, y)
    assert (kept.predict_proba(tilted).argmax(1) == tilted.logits.argmax(1)).all()


def test_of_two_views_that_help_alike_the_one_that_loses_nothing_is_taken():
    (own, good, _), y = looks()
    rng = np.random.default_rng(5)
    near = good + rng.normal(size=good.shape) * 0.01
    fitted = ViewStacking(max_views=1).fit(Views(own, {"zoom:0.5": good, "flip": near}), y)
    assert [str(t) for t in fitted.plan_.transforms] == ["flip"]
    clearly = ViewStacking(max_views=1).fit(
        Views(own, {"zoom:0.5": good, "flip": looks(noises=(9,))[0][0]}), y
    )
    assert [str(t) for t in clearly.plan_.transforms] == ["zoom:0.5"]


def test_the_gate_spares_the_sure():
    (own, good, _), y = looks(n=3000)
    views = Views(2.0 * own, {"mine": 2.0 * good})
    always = ViewStacking(gate=None).fit(views, y)
    gated = ViewStacking(gate=0.8).fit(views, y)
    assert always.plan_.gate is None
    assert always.plan_.needs_views(views.logits).all()
    assert 0.05 < gated.plan_.needs_views(views.logits).mean() < 0.95


def test_the_same_seed_gives_the_same_plan_from_memory_and_from_disk(tmp_path):
    (own, good, poor), y = looks()
    views = Views(
        own.astype(np.float32),
        {"mine": good.astype(np.float32), "zoom:0.5": poor.astype(np.float32)},
        y,
    )
    from recal import read_views

    on_disk = read_views(views.write(tmp_path / "views.zarr"))
    assert not on_disk.in_memory
    plan = ViewStacking(random_state=3).fit(views).plan_
    assert ViewStacking(random_state=3).fit(on_disk).plan_ == plan
    assert ViewStacking(random_state=3).fit(views).plan_ == plan


def test_too_many_values_are_shortlisted_and_drawn(monkeypatch):
    (own, good, *_), y = looks(n=2000)
    rng = np.random.default_rng(1)
    useless = {f"zoom:0.{i}": rng.normal(size=own.shape) for i in range(10, 40)}
    views = Views(own, {**useless, "mine": good})
    monkeypatch.setattr("recal.calibrators.stacking._MOST_VALUES", 9 * 5 * 800)
    fitted = ViewStacking().fit(views, y)
    assert [str(t) for t in fitted.plan_.transforms] == ["mine"]
    assert len(fitted.views_report_) == 8
