"""The ensemble: weights that samples left out decide, and members that stand on their own; and
AutoCalibration, which takes the simplest that does as well."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from recal import AutoCalibration, TemperatureScaling, Views, ViewStacking
from recal.calibrators import CalibrationEnsemble, auto
from recal.calibrators.ensemble import fit_members, member_names, places_read
from recal.calibrators.samples import Samples
from recal.maps.blend import member_probs
from recal.solvers.convex import mixture_weights
from tests.problems import logits_and_labels, nll, second_look

problem = partial(logits_and_labels, scale=2)


@pytest.mark.parametrize("prior", [np.zeros(3), np.array([2.0, 0.0, 1.0])])
def test_weights_maximise_the_penalised_likelihood(prior):
    rng = np.random.default_rng(0)
    likelihoods, counts = rng.beta(3, 1, (400, 3)), rng.uniform(0.5, 2.0, 400)
    found = mixture_weights(likelihoods, counts, prior)

    slow = np.full(3, 1 / 3)
    for _ in range(20_000):
        shares = likelihoods * slow
        shares /= shares.sum(axis=1, keepdims=True)
        slow = (counts @ shares + prior) / (counts.sum() + prior.sum())
    np.testing.assert_allclose(found, slow, atol=1e-5)


def test_a_tilted_model_gains_over_temperature_scaling_and_keeps_its_answers():
    z, y = problem(1500, tilt=0.7)
    new, truth = problem(1500, seed=1, tilt=0.7)
    ensemble = CalibrationEnsemble().fit(z, y)
    assert nll(ensemble.predict_proba(new), truth) < 0.97 * nll(
        TemperatureScaling().fit(z, y).predict_proba(new), truth
    )
    np.testing.assert_array_equal(ensemble.predict_proba(new).argmax(axis=1), new.argmax(axis=1))
    assert list(ensemble.weights_.values()) == sorted(ensemble.weights_.values(), reverse=True)
    assert min(ensemble.weights_.values()) >= 1e-3


def test_the_answer_is_the_weighted_mean_of_the_members():
    z, y = problem(600, tilt=0.5)
    ensemble = CalibrationEnsemble(answers="free").fit(z, y)
    expected = np.zeros_like(z)
    members = dict(zip(ensemble.map_.names, ensemble.map_.members))
    for name, weight in ensemble.weights_.items():
        given = np.log(members["ets"].probs(z)) if name.startswith("ets-") else z
        expected += weight * members[name].probs(given)
    np.testing.assert_allclose(ensemble.predict_proba(z), expected, atol=1e-12)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize("case", ["few", "right"])
def test_where_nothing_can_be_chosen_it_is_temperature_scaling(case):
    z, y = problem(49)
    if case == "right":
        z, _ = problem(200)
        y = z.argmax(axis=1)
    ensemble = CalibrationEnsemble().fit(z, y)
    assert ensemble.weights_ == {"ts": 1.0}
    np.testing.assert_allclose(
        ensemble.predict_proba(z), TemperatureScaling().fit(z, y).predict_proba(z), atol=1e-12
    )


def test_many_classes_leave_out_the_members_that_need_samples_of_each():
    assert "sms" in member_names(256)
    assert member_names(257) == ("ts", "ets", "svs", "beta", "ets-svs")


def test_amounts_are_weights_and_no_counts():
    def are_counts(weights):
        rows = Views(np.full((len(weights), 2), 3.0)), np.zeros(len(weights), dtype=int)
        return Samples(*rows, weights).without_counts().weights is None

    assert are_counts(np.full(100, 500.0))
    assert not are_counts(np.full(100, 501.0)), "50,100 rows of 100"
    assert are_counts(np.full(10_000, 10.0))
    assert not are_counts(np.array([1.0, 1.5]))


@pytest.mark.filterwarnings("ignore::recal.errors.DependentRowsWarning")
@pytest.mark.parametrize("method", [CalibrationEnsemble, AutoCalibration])
def test_whole_weights_are_repeated_samples(method):
    z, y = problem(300, tilt=0.7)
    often = np.random.default_rng(0).integers(0, 4, 300)
    repeated = np.repeat(np.arange(300), often)
    weighted = method().fit(z, y, sample_weight=often).predict_proba(z)
    np.testing.assert_array_equal(weighted, method().fit(z[repeated], y[repeated]).predict_proba(z))


def test_fits_near_those_of_all_samples_are_as_good_as_from_the_start():
    z, y = problem(900, tilt=0.7)
    rest = np.arange(900) % 3 > 0
    names = member_names(4)
    samples = Samples(Views(z), y)
    near = fit_members(names, samples[rest], near=fit_members(names, samples))
    anew = fit_members(names, samples[rest])
    maps = [[member.map_ for member in fits.values()] for fits in (near, anew)]
    for one, other in zip(*(member_probs(each, places_read(names), z) for each in maps)):
        assert abs(nll(one[~rest], y[~rest]) - nll(other[~rest], y[~rest])) < 1e-3
        np.testing.assert_allclose(one, other, atol=0.01)


def test_views_that_help_are_chosen_and_the_sentence_says_so():
    fitted = AutoCalibration().fit(*second_look())
    assert fitted.choice_ == "ensemble"
    assert isinstance(fitted.calibrator_, CalibrationEnsemble)
    assert fitted.plan_ == fitted.calibrator_.plan_
    assert fitted.reason_.startswith("Chosen: ensemble, which ")
    assert "stacks zoom:0.5 on top for " in fitted.reason_
    assert "more forward passes per answer" in fitted.reason_
    assert fitted.needed_transforms() == fitted.plan_.transforms


def test_recal_is_tried_where_200_mistakes_can_judge_it(monkeypatch):
    seeds, recal = [], auto.ReCal
    tried = lambda random_state: seeds.append(random_state) or recal(max_iter=1)  # noqa: E731
    monkeypatch.setattr(auto, "ReCal", tried)
    views, y = second_look(1500, seed=1, useful=False)
    wrong = np.flatnonzero(views.logits.argmax(axis=1) != y)
    right = np.setdiff1d(np.arange(1500), wrong)
    for count, tried in ((199, False), (200, True)):
        rows = np.sort(np.r_[wrong[:count], right])
        AutoCalibration().fit(views[rows], y[rows])
        assert bool(seeds) == tried


def test_a_calibrated_model_gets_a_temperature_without_views():
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


@pytest.mark.parametrize(("n", "used"), [(99, ()), (100, ("zoom:0.5",))])
def test_fewer_than_100_samples_do_not_judge_views(n, used):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    own, view = (4.0 * np.eye(3)[y] + noise * rng.normal(size=(n, 3)) for noise in (4.0, 1.5))
    for method in (CalibrationEnsemble(), ViewStacking()):
        fitted = method.fit(Views(own, {"zoom:0.5": view}), y)
        assert tuple(map(str, fitted.needed_transforms())) == used
