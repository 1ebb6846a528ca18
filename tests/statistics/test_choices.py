"""What a view or a method must gain before it is taken: constants and edges, each pinned from both
sides.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from recal import AutoCalibration, TemperatureScaling, Views
from recal.calibrators import auto, view_selection
from recal.calibrators.ensemble import EnsembleFit
from recal.calibrators.samples import LossGain, Samples
from recal.calibrators.view_selection import GrowingStack, StackData, _pays
from recal.clusters import effective_count
from recal.comparison.recommendation import PROPER, recommend
from recal.errors import DependentRowsWarning
from recal.solvers.softmax import Stack
from recal.transforms import Named
from tests.problems import logits_and_labels, nll


def test_a_gain_must_exceed_so_many_errors_and_five_over_the_root_of_n():
    assert LossGain(1.51, 1.0).exceeds(1.0, 100)
    assert not LossGain(1.49, 1.0).exceeds(1.0, 100)
    assert LossGain(2.06, 1.0).exceeds(2.0, 10_000)
    assert not LossGain(2.04, 1.0).exceeds(2.0, 10_000)


def test_a_gain_is_clear_beyond_one_standard_error():
    assert LossGain(1.01, 1.0).is_clear
    assert not LossGain(1.0, 1.0).is_clear


def test_the_error_of_a_gain_counts_clusters():
    rng = np.random.default_rng(0)
    before, after, weights = rng.normal(size=50), rng.normal(size=50), rng.random(50)
    clusters = np.repeat(np.arange(50), 4)
    for one, four in ((None, None), (weights, np.repeat(weights, 4))):
        alone = LossGain.between(before, after, one, np.arange(50))
        copied = LossGain.between(np.repeat(before, 4), np.repeat(after, 4), four, clusters)
        assert copied.mean == pytest.approx(alone.mean)
        assert copied.error == pytest.approx(alone.error)
    assert LossGain.between(before, after, None, np.arange(50)).error == pytest.approx(
        LossGain.between(before, after, None, None).error
    )
    assert LossGain.between(before, after, None, np.zeros(50, int)).error == np.inf


def test_the_effective_count_is_that_of_independent_rows():
    rng = np.random.default_rng(0)
    values, clusters = rng.normal(size=400), np.repeat(np.arange(400), 5)
    assert effective_count(np.repeat(values, 5), clusters) == pytest.approx(400)
    # Rows with a correlation of 0.25 in clusters of 5 have the design effect 1 + 4 x 0.25 = 2.
    counts = []
    for _ in range(20):
        shared, own = rng.normal(size=400), rng.normal(size=2000)
        counts.append(effective_count(np.repeat(shared, 5) + np.sqrt(3) * own, clusters))
    assert np.mean(counts) * (1 + 2 * np.sqrt(2 / 400)) == pytest.approx(1000, rel=0.05)
    assert effective_count(rng.normal(size=90), np.repeat(np.arange(9), 10)) == pytest.approx(9)


def test_the_default_does_not_overfit_to_near_copies_in_clusters():
    rng = np.random.default_rng(0)
    fit, labels = logits_and_labels(100, 5, seed=3, scale=2.0)
    test, truth = logits_and_labels(5000, 5, seed=2, scale=2.0)
    rows = np.repeat(np.arange(100), 10)
    fit, labels = fit[rows] + 0.01 * rng.normal(size=(1000, 5)), labels[rows]
    plain, with_clusters, without = (
        nll(calibrator.predict_proba(test), truth)
        for calibrator in (
            TemperatureScaling().fit(fit, labels, clusters=rows),
            AutoCalibration().fit(fit, labels, clusters=rows),
            _fit_with_a_warning(fit, labels),
        )
    )
    assert with_clusters < 1.03 * plain
    assert without > 1.1 * plain


def _fit_with_a_warning(logits, labels):
    with pytest.warns(DependentRowsWarning, match="Pass clusters="):
        return AutoCalibration().fit(logits, labels)


def test_trust_is_what_steins_estimator_leaves():
    assert LossGain(2.0, 1.0).trust == pytest.approx(1 - 0.25**2)
    assert LossGain(1.0, 1.0).trust == 0.0


def test_a_gain_is_a_mean_of_paired_differences_with_its_error():
    before, after = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 2.0, 1.0, 3.0])
    plain = LossGain.between(before, after, None, None)
    assert plain.mean == pytest.approx(1.0)
    assert plain.error == pytest.approx(np.std([1, 0, 2, 1], ddof=1) / 2)
    weighted = LossGain.between(before, after, np.array([1.0, 1.0, 0.0, 0.0]), None)
    assert weighted.mean == pytest.approx(0.5)
    assert weighted.error == pytest.approx(np.sqrt(2 * 0.5**2 * 0.5**2))


def test_the_first_view_must_be_clearer_than_a_further_one():
    assert _pays(LossGain(1.2, 1.0), 0.0, chosen=1, n_samples=400)
    assert not _pays(LossGain(1.2, 1.0), 0.0, chosen=0, n_samples=400)  # 1 + 5 / 20 errors
    assert _pays(LossGain(1.3, 1.0), 0.0, chosen=0, n_samples=400)
    assert not _pays(LossGain(0.9, 1.0), 0.0, chosen=1, n_samples=400)


def test_a_view_must_gain_the_least_that_its_pass_is_worth():
    assert _pays(LossGain(0.0050, 0.0001), 0.005, chosen=0, n_samples=10_000)
    assert not _pays(LossGain(0.0049, 0.0001), 0.005, chosen=0, n_samples=10_000)
    assert view_selection._LEAST_SHARE == 0.005


def data_of(candidates=(), confidence=(), rows=4):
    samples = Samples(Views(np.tile([3.0, 0.0], (rows, 1))), np.zeros(rows, int))
    features = np.zeros((1, rows, 2))
    return StackData(
        samples, candidates, features, np.array(confidence), None, 1.0, 1e-4, "free", 0.99
    )


def test_a_sample_at_the_gate_needs_no_view():
    gated = data_of(confidence=[0.98, 0.99, 0.995]).gated(np.zeros(3), np.ones(3))
    assert gated.tolist() == [1.0, 0.0, 0.0]


def growing(lossless, rows=4):
    one = object.__new__(GrowingStack)
    names = tuple(Named("flip" if gentle else "blur") for gentle in lossless)
    one.data, one.rows = data_of(names, rows=rows), np.ones(rows, bool)
    return one


def stack(view, loss):
    return Stack((0, view), np.ones(2), np.zeros(2), loss, 1)


def test_the_contender_of_least_loss_is_taken_and_a_lossy_one_only_if_clearly_better():
    lossy, gentle = stack(1, 0.9), stack(2, 1.0)
    little = [(gentle, np.array([1.0, 1.0, 1.0, 1.0])), (lossy, np.array([0.2, 1.2, 0.6, 1.6]))]
    clear = [(gentle, np.array([1.0, 1.0, 1.0, 1.0])), (lossy, np.array([0.9, 0.8, 0.9, 1.0]))]
    assert growing((False, True))._best(little) is gentle
    assert growing((False, True))._best(clear) is lossy
    assert growing((False, False))._best(little) is lossy


def test_the_two_views_of_most_promise_are_fitted_and_the_second_only_if_near():
    one = growing((False, False, False, True))
    rest = (1, 2, 3, 4)
    assert one._contenders(rest, np.array([0.5, 1.0, 0.81, -1.0])) == [1, 2]
    assert one._contenders(rest, np.array([0.5, 1.0, 0.79, 0.1])) == [1, 3]


@pytest.mark.parametrize(("loss", "wins"), [(0.9890, True), (0.9910, False)])
def test_recal_must_gain_half_a_per_cent_for_each_pass_more(monkeypatch, loss, wins):
    """Two passes more: its loss times 1.01 must be below the ensemble's."""
    truth = np.exp(-loss)

    class Fake:
        def __init__(self, random_state):
            self.plan_ = SimpleNamespace(transforms=("a", "b", "c"))

        def learn(self, samples): ...

        def _predict_proba(self, views):
            return np.tile([truth, 1 - truth], (len(views), 1))

    monkeypatch.setattr(auto, "ReCal", Fake)
    n = 20
    means = {"ts": 1.2, "ensemble": 1.1, "ensemble with views": 1.0}
    losses = {name: np.full(n, mean) for name, mean in means.items()}
    samples = Samples(Views(np.tile([3.0, 0.0], (n, 1))), np.zeros(n, int))
    fit = EnsembleFit({}, {}, samples, 1.0, np.arange(n) % 2, losses, passes=1.0)
    _, reason = auto._try_recal(fit, 0)
    assert bool(reason) is wins


def compared(shifts, passes=(1.0, 1.0, 1.0, 1.0)):
    """Methods whose NLL differs by a hair from row to row, and by `shifts` on average, in standard
    errors.
    """
    n = 100
    wave = np.where(np.arange(n) % 2 == 0, 1.0, -1.0) * 0.001
    error = 0.001 / np.sqrt(n - 1)
    names = ["uncalibrated", "first", "second", "third"]
    base = 0.5 + np.linspace(0, 0.3, n)
    waves = [0 * wave, 0 * wave, wave, 0 * wave]
    rows = {
        name: SimpleNamespace(nll=base + one + shift * error, brier=np.full(n, 0.2))
        for name, shift, one in zip(names, shifts, waves)
    }
    found = SimpleNamespace(methods=tuple(names), samples=rows, passes=passes, clusters=None)
    found.values = {
        one: np.array([[getattr(rows[n], one).mean() for n in names]]) for one in PROPER
    }
    found.keeps_accuracy, found.setup = (True,) * 4, SimpleNamespace(splits=1, n_classes=1)
    found.calibration_tests = dict.fromkeys(names, SimpleNamespace(rejected=True))
    return found


@pytest.mark.parametrize(("ahead", "chosen"), [(0.49, "first"), (0.51, "second"), (2.5, "second")])
def test_a_method_that_costs_the_same_is_taken_if_it_is_half_a_standard_error_better(ahead, chosen):
    assert recommend(compared((50.0, 0.0, -ahead, 50.0))).method == chosen


def test_forward_passes_are_bought_by_a_difference_that_is_proven():
    dear = (1.0, 1.0, 3.0, 1.0)
    assert recommend(compared((50.0, 0.0, -2.5, 50.0), dear)).method == "first"
    assert recommend(compared((50.0, 0.0, -4.0, 50.0), dear)).method == "second"


def test_a_model_that_passes_the_calibration_test_is_left_unless_a_difference_is_proven():
    found = compared((0.0, 50.0, -2.5, 50.0))
    assert recommend(found).method == "second"
    found.calibration_tests["uncalibrated"].rejected = False
    assert recommend(found).method == "uncalibrated"


def test_both_scores_must_be_near_the_best():
    """By NLL all are alike; by Brier score the second is clearly ahead of the first."""
    found = compared((50.0, 0.0, 0.0, 50.0))
    wave = np.where(np.arange(100) % 2 == 0, 0.001, -0.001)
    found.samples["second"].brier = 0.2 + wave - 0.0001
    found.values["brier"][0, 2] = found.samples["second"].brier.mean()
    assert recommend(found).method == "second"
    found.values["nll"][0, 2] = 0.9
    found.samples["second"].nll = found.samples["second"].nll + wave + 0.0002
    assert recommend(found).method == "first", "where they contradict each other, the NLL decides"
