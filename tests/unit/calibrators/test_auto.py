"""AutoCalibration: it takes what pays on samples left out, and the cheapest of what does."""

from __future__ import annotations

import numpy as np
import pytest

from recal import AutoCalibration, TemperatureScaling, Views, ViewStacking, load, save
from recal.calibrators import CalibrationEnsemble, ensemble
from recal.errors import FileError
from tests.problems import second_look


def test_views_that_pay_are_chosen_and_the_sentence_says_so():
    fitted = AutoCalibration().fit(*second_look())
    assert fitted.choice_ == "ensemble"
    assert isinstance(fitted.calibrator_, CalibrationEnsemble)
    assert fitted.plan_ == fitted.calibrator_.plan_
    assert fitted.reason_.startswith("Chosen: ensemble, which ")
    assert "stacks zoom:0.5 on top for " in fitted.reason_
    assert "more forward passes per answer" in fitted.reason_
    assert fitted.needed_transforms() == fitted.plan_.transforms


def test_recal_is_tried_where_200_mistakes_can_judge_it(monkeypatch):
    seeds, recal = [], ensemble.ReCal
    monkeypatch.setattr(
        ensemble, "ReCal", lambda random_state: seeds.append(random_state) or recal(max_iter=1)
    )
    views, y = second_look(1500, seed=1, useful=False)
    wrong = np.flatnonzero(views.logits.argmax(axis=1) != y)
    right = np.setdiff1d(np.arange(1500), wrong)
    for count, tried in ((199, False), (200, True)):
        rows = np.sort(np.r_[wrong[:count], right])
        AutoCalibration().fit(views[rows], y[rows])
        assert bool(seeds) == tried


def test_a_calibrated_model_gets_a_temperature_and_pays_nothing():
    views, y = second_look(1500, seed=1, useful=False)
    fitted = AutoCalibration().fit(views, y)
    assert fitted.choice_ in ("ts", "ets")
    assert fitted.needed_transforms() == ()
    plain = TemperatureScaling().fit(views, y).predict_proba(views)
    np.testing.assert_allclose(fitted.predict_proba(views.logits), plain, atol=0.01)
    assert fitted.reason_.startswith(f"Chosen: {fitted.choice_}, since on samples left out")


def test_a_gain_that_chance_explains_is_called_so():
    views, y = second_look(200, seed=1, useful=False)
    told = AutoCalibration().fit(views, y).reason_
    assert "its NLL is about that of temperature scaling (" in told
    assert "which chance explains)" in told
    tilted, y = second_look(1500, seed=3, useful=False, tilt=0.8)
    assert "lower than that of temperature scaling." in AutoCalibration().fit(tilted, y).reason_


def test_too_few_samples_choose_nothing():
    fitted = AutoCalibration().fit(*second_look(40))
    assert fitted.choice_ == "ts"
    assert "fewer than 50 samples" in fitted.reason_


def test_a_new_fit_forgets_the_plan_of_the_last():
    fitted = AutoCalibration(answers="free").fit(*second_look())
    assert fitted.plan_.transforms
    views, y = second_look(1500, seed=3, useful=False, tilt=0.8)
    assert not hasattr(fitted.fit(views.logits, y), "plan_")


def test_a_file_without_the_chosen_method_is_refused(tmp_path):
    fitted = AutoCalibration().fit(*second_look(40))
    fitted.calibrator_ = None
    with pytest.raises(FileError, match="`calibrator_` must be a Calibrator"):
        load(save(fitted, tmp_path / "c"))
    del fitted.calibrator_
    with pytest.raises(FileError, match="`map_` is missing"):
        load(save(fitted, tmp_path / "d"))


@pytest.mark.parametrize(("n", "used"), [(99, ()), (100, ("zoom:0.5",))])
def test_fewer_than_100_samples_do_not_judge_views(n, used):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    own, view = (4.0 * np.eye(3)[y] + noise * rng.normal(size=(n, 3)) for noise in (4.0, 1.5))
    for method in (CalibrationEnsemble(), ViewStacking()):
        assert (
            tuple(map(str, method.fit(Views(own, {"zoom:0.5": view}), y).needed_transforms()))
            == used
        )
