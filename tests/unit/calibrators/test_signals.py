"""Confidence from the signals of graded answers."""

from __future__ import annotations

import array_api_strict
import numpy as np
import onnxruntime
import pandas
import polars
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.preprocessing import SplineTransformer

from recal import SignalCalibration, decide, export_onnx, load, save
from recal.calibrators import signals
from recal.calibrators.signal_models import (
    _b_splines,
    fit_linear,
    fit_platt,
    fit_scale,
    fit_splines,
    fit_trees,
    ridge_logistic,
)
from recal.calibrators.signal_table import SignalTable
from recal.clusters import stratified_folds
from recal.errors import FewSamplesWarning, InputError, NotFittedError
from recal.maps.signals import CATEGORY, LOG_ODDS, LOGARITHM, PLAIN
from tests.problems import graded_answers


def nll(confidence, correct):
    return -np.mean(np.log(np.where(correct, confidence, 1 - confidence)))


@pytest.fixture(scope="module", name="problem")
def many_answers():
    return graded_answers(800, seed=1)


@pytest.fixture(scope="module")
def fitted(problem):
    signals, correct, groups, _ = problem
    return SignalCalibration().fit(signals, correct, groups=groups)


def test_confidence_is_calibrated_and_better_than_the_best_signal_alone(fitted):
    signals, correct, groups, truth = graded_answers(6000, seed=2)
    confidence = fitted.predict_confidence(signals, groups)
    columns = np.column_stack([signals["stated"], signals["tokens"], signals["judge"]])
    train, train_correct, _, _ = graded_answers(800, seed=1)
    seen = np.column_stack([train["stated"], train["tokens"], train["judge"]])
    scale = fit_scale(seen)
    platt = fit_platt(*scale.standardise(seen), train_correct.astype(float), np.ones(800))
    alone = 1 / (1 + np.exp(-platt.log_odds(*scale.standardise(columns))))
    assert nll(confidence, correct) < 0.97 * nll(alone, correct)
    assert nll(confidence, correct) < nll(truth, correct) + 0.07  # the true skill is hidden
    order = np.argsort(confidence).reshape(10, -1)
    assert np.abs(confidence[order].mean(1) - correct[order].mean(1)).mean() < 0.05


def test_frames_and_arrays_of_the_same_values_give_the_same_fit():
    signals, correct, groups, _ = graded_answers(120, seed=1)
    fits = [
        SignalCalibration().fit(form, correct, groups=groups).map_
        for form in (signals, pandas.DataFrame(signals), polars.DataFrame(signals))
    ]
    assert fits[0] == fits[1] == fits[2]
    numbers = pandas.DataFrame(signals).drop(columns="kind")
    plain = SignalCalibration().fit(numbers.to_numpy(), correct)
    assert plain.map_ == SignalCalibration().fit(numbers, correct).map_
    assert plain.table_.names == ("signal 0", "signal 1", "signal 2")


@pytest.mark.parametrize(
    ("dtype", "value"), [("boolean", True), ("string", "essay"), ("Int64", 3), ("Float64", 0.5)]
)
def test_missing_values_of_pandas_own_types_are_missing_values(dtype, value):
    column = pandas.Series([value, pandas.NA, value], dtype=dtype)
    for form in (pandas.DataFrame({"signal": column}), {"signal": column}):
        table = SignalTable.of(form)
        assert np.isnan(table.values(form)[:, 0]).tolist() == [False, True, False]


def test_new_data_are_matched_by_column_name_and_unseen_levels_get_no_offset(fitted, problem):
    signals, _, groups, _ = problem
    frame = pandas.DataFrame(signals)
    expected = fitted.predict_confidence(signals, groups)
    np.testing.assert_array_equal(
        fitted.predict_confidence(frame[frame.columns[::-1]], groups), expected
    )
    with pytest.raises(InputError, match="lack the column 'tokens' of the fit; they have stated"):
        fitted.predict_confidence({"stated": [0.5]})
    unseen = fitted.predict_confidence(signals, np.full(len(groups), "never seen"))
    np.testing.assert_array_equal(unseen, fitted.predict_confidence(signals))
    assert (unseen != expected).any()


def test_columns_are_scaled_by_what_they_hold():
    rng = np.random.default_rng(0)
    values = np.column_stack(
        [
            rng.random(500),
            rng.lognormal(5, 1, 500),
            rng.normal(size=500),
            rng.integers(0, 3, 500),
            rng.poisson(1, 500),
        ]
    )
    values[3, 0] = 683.0  # a slip of whatever extracted a probability
    assert fit_scale(values, categories=(3,)).kind.tolist() == [
        LOG_ODDS,
        LOGARITHM,
        PLAIN,
        CATEGORY,
        LOGARITHM,
    ]
    scaled, missing = fit_scale(values).standardise(np.full((1, 5), np.nan))
    assert not scaled.any()
    assert missing.all()
    wild = fit_scale(np.append(rng.normal(size=999), 1e9)[:, None])
    assert wild.spread[0] < 3


def test_the_trees_in_the_map_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(600, 4))
    missing = (rng.random(values.shape) < 0.2).astype(float)
    values *= 1 - missing
    correct = (rng.random(600) < 1 / (1 + np.exp(-values[:, 0] * values[:, 1]))).astype(float)
    trees = fit_trees(values, missing, correct, np.ones(600))
    with_gaps = np.where(missing > 0, np.nan, values)
    peer = HistGradientBoostingClassifier(
        max_iter=60, max_leaf_nodes=6, min_samples_leaf=30, early_stopping=False, random_state=0
    ).fit(with_gaps, correct)
    np.testing.assert_allclose(
        trees.log_odds(values, missing), peer.decision_function(with_gaps), atol=1e-9
    )
    assert np.isfinite(
        fit_trees(values, np.ones_like(missing), correct, np.ones(600)).log_odds(values, missing)
    ).all()


def test_splines_are_those_of_scikit_learn_and_missing_values_have_their_own_weight():
    values, knots = np.linspace(-2, 2, 101), np.array([-2.0, -1.0, 0.5, 2.0])
    peer = SplineTransformer(degree=2, knots=knots[:, None]).fit_transform(values[:, None])
    np.testing.assert_allclose(_b_splines(values, knots), peer, atol=1e-12)
    rng = np.random.default_rng(0)
    signals = rng.normal(size=(2000, 1))
    missing = (rng.random((2000, 1)) < 0.3).astype(float)
    signals *= 1 - missing
    chance = np.where(missing[:, 0] > 0, 0.2, 1 / (1 + np.exp(-(signals[:, 0] ** 2))))
    correct = (rng.random(2000) < chance).astype(float)
    model = fit_splines(signals, missing, correct, np.ones(2000))
    confidence = 1 / (1 + np.exp(-model.log_odds(signals, missing)))
    assert abs(confidence[missing[:, 0] > 0][0] - 0.2) < 0.05
    assert np.abs(confidence - chance).mean() < 0.04


def test_ridge_regression_minimises_its_penalised_loss():
    rng = np.random.default_rng(0)
    features, counts = rng.normal(size=(300, 3)), rng.random(300) + 0.5
    correct = (rng.random(300) < 0.7).astype(float)
    intercept, weights = ridge_logistic(features, correct, counts, np.array(2.0))
    probability = 1 / (1 + np.exp(-(intercept + features @ weights)))
    np.testing.assert_allclose(
        features.T @ (counts * (probability - correct)) + 2.0 * weights, 0, atol=1e-3
    )
    np.testing.assert_allclose(counts @ (probability - correct), 0, atol=1e-3)


def test_offsets_shrink_with_their_strength_and_rows_without_level_are_ignored():
    values = np.array([0.0] * 50 + [1.0] * 50 + [np.nan] * 20)[:, None]
    correct = np.array([1.0] * 45 + [0.0] * 5 + [1.0] * 25 + [0.0] * 25 + [0.0] * 20)
    problem, level = (
        signals._GradedAnswers(values, correct, np.ones(120), (0,)),
        np.repeat([0, 1, 2], [50, 50, 20]),
    )
    every = np.ones(120, dtype=bool)
    weak, strong = (
        problem._offsets(np.zeros(120), level, 2, each, every) for each in (1e-6, 100.0)
    )
    np.testing.assert_allclose(weak, [np.log(9), 0, 0], atol=1e-4)
    assert 0 < strong[0] < 0.5 * weak[0]


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_with_few_answers_it_is_never_much_worse_than_platt_scaling():
    ratios = []
    for seed in range(12):
        signals, correct, _, _ = graded_answers(60, seed=seed, strength=0.5)
        new, right, _, _ = graded_answers(3000, seed=100 + seed, strength=0.5)
        columns = ["stated", "tokens", "judge"]
        train, test = (np.column_stack([each[name] for name in columns]) for each in (signals, new))
        fitted = SignalCalibration().fit(train, correct)
        scale = fit_scale(train)
        platt = fit_platt(*scale.standardise(train), correct.astype(float), np.ones(60))
        alone = 1 / (1 + np.exp(-platt.log_odds(*scale.standardise(test))))
        ratios.append(nll(fitted.predict_confidence(test), right) / nll(alone, right))
    assert max(ratios) < 1.03
    assert np.mean(ratios) < 1.005


def test_very_few_answers_get_platt_scaling_alone_and_a_warning():
    signals, correct, groups, _ = graded_answers(30, seed=0)
    with pytest.warns(FewSamplesWarning, match="at least 50"):
        few = SignalCalibration().fit(signals, correct, groups=groups)
    assert few.weights_ == {"Platt scaling": 1.0}
    assert "too few to combine" in few.reason_


def test_importance_finds_the_signals_that_matter(fitted):
    names = list(fitted.signal_importance_)
    assert set(names) == {"stated", "tokens", "judge", "kind", "groups"}
    assert fitted.signal_importance_["judge"] > 0.01
    assert names.index("tokens") > names.index("judge")  # the length tells nothing in this problem
    assert "graded answers: NLL" in fitted.reason_


def test_weights_count_answers():
    signals, correct, _, _ = graded_answers(200, seed=3)
    flipped = np.concatenate([correct, ~correct])
    twice = {name: np.concatenate([values, values]) for name, values in signals.items()}
    weighted = SignalCalibration().fit(twice, flipped, sample_weight=np.repeat([1.0, 1e-9], 200))
    plain = SignalCalibration().fit(signals, correct)
    gap = weighted.predict_confidence(signals) - plain.predict_confidence(signals)
    assert np.abs(gap).mean() < 0.05


def test_wrong_inputs_are_refused(problem):
    signals, correct, _, _ = problem
    with pytest.raises(NotFittedError):
        SignalCalibration().predict_confidence(signals)
    with pytest.raises(InputError, match="equals the grades in every row"):
        SignalCalibration().fit({**signals, "leak": correct}, correct)
    with pytest.raises(InputError, match="equals the grades in every row"):
        SignalCalibration().fit({**signals, "leak": 1 - correct.astype(int)}, correct)
    with pytest.raises(InputError, match="must be True or False"):
        SignalCalibration().fit(signals, np.arange(800))
    with pytest.raises(InputError, match="are graded as right"):
        SignalCalibration().fit(signals, np.ones(800))
    with pytest.raises(InputError, match="one value per answer, 800"):
        SignalCalibration().fit(signals, correct[:5])


@pytest.mark.parametrize("seed", ["x", -1, 0.5])
def test_a_wrong_seed_is_refused_by_name(problem, seed):
    signals, correct, _, _ = problem
    with pytest.raises(InputError, match="`random_state` must be a whole number of at least 0"):
        SignalCalibration(random_state=seed).fit(signals, correct)


def test_decide_says_that_it_cannot_check_the_rows_of_a_signal_calibration(fitted, problem):
    signals, correct, groups, _ = problem
    with pytest.raises(
        InputError,
        match=r"of logits or views, got SignalCalibration\. Others keep no record .* leave it out",
    ):
        decide(fitted.predict_confidence(signals, groups), correct, risk=0.2, calibrator=fitted)


def test_every_runtime_gives_the_same_confidence(fitted, problem, tmp_path):
    signals, _, groups, _ = problem
    expected = fitted.predict_confidence(signals, groups)
    again = load(save(fitted, tmp_path / "signals.recal"))
    assert again.map_ == fitted.map_
    assert again.signal_importance_ == fitted.signal_importance_
    np.testing.assert_array_equal(again.predict_confidence(signals, groups), expected)
    values = fitted.table_.values(signals, groups)
    missing = np.argwhere(np.isnan(values))
    assert len(missing) > 2
    values[tuple(missing[0])], values[tuple(missing[1])] = np.inf, -np.inf
    for convert in (torch.from_numpy, array_api_strict.asarray):
        np.testing.assert_allclose(
            np.asarray(fitted.map_.confidence(convert(values))), expected, atol=1e-12
        )
    path = export_onnx(fitted, path=tmp_path / "signals.onnx")
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {"signals": values})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(fitted.map_.probs(values)[:, 1], expected)
    assert (
        '"levels": ["essay", "list"]'
        in session.get_modelmeta().custom_metadata_map["recal_signals"]
    )


def test_a_linear_model_without_signals_that_matter_is_the_mean():
    rng = np.random.default_rng(0)
    scaled, missing = rng.normal(size=(5000, 2)), np.zeros((5000, 2))
    correct = (rng.random(5000) < 0.8).astype(float)
    confidence = 1 / (
        1 + np.exp(-fit_linear(scaled, missing, correct, np.ones(5000)).log_odds(scaled, missing))
    )
    np.testing.assert_allclose(confidence, correct.mean(), atol=0.05)


def test_answers_of_one_cluster_are_never_divided(monkeypatch):
    drawn = []

    def spy(*args, **options):
        drawn.append(stratified_folds(*args, **options))
        return drawn[-1]

    monkeypatch.setattr(signals, "stratified_folds", spy)
    values, correct, groups, _ = graded_answers(300)
    clusters = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 3))
    SignalCalibration().fit(values, correct, groups, clusters=clusters)
    assert len(drawn) == 2
    for folds in drawn:
        assert all(len(set(folds[clusters == cluster].tolist())) == 1 for cluster in range(100))


def test_copies_in_clusters_are_too_few_answers_to_combine_signals():
    values, correct, _, _ = graded_answers(40)
    rows = np.repeat(np.arange(40), 10)
    with pytest.warns(FewSamplesWarning, match="counted as independent"):
        fitted = SignalCalibration().fit(
            {name: values[name][rows] for name in values}, correct[rows], clusters=rows
        )
    assert fitted.weights_ == {"Platt scaling": 1.0}
