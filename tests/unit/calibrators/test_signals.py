"""Confidence from the signals of graded answers."""

from __future__ import annotations

import warnings

import array_api_strict
import numpy as np
import onnxruntime
import pandas
import polars
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from recal import SignalCalibration, decide, export_onnx, load, save
from recal.calibrators.signal_models import choose_kinds, encoding_of, fit_regressions, ridge
from recal.calibrators.signal_table import SignalTable
from recal.clusters import stratified_folds
from recal.errors import (
    DependentRowsWarning,
    FewSamplesWarning,
    InputError,
    NotFittedError,
    SameRowsWarning,
    UnseenValuesWarning,
)
from recal.maps.arrays import sigmoid
from recal.maps.signals import CATEGORY, IDENTITY, LOG_ODDS, LOGARITHM, RANKS
from tests.problems import graded_answers, rows_of
from tests.problems import nll_of_graded as nll


@pytest.fixture(scope="module", name="problem")
def many_answers():
    return graded_answers(800, seed=1)


@pytest.fixture(scope="module")
def fitted(problem):
    signals, correct, groups, _ = problem
    return SignalCalibration().fit(signals, correct, groups=groups)


def test_confidence_is_calibrated_and_nearly_as_good_as_the_truth(fitted):
    signals, correct, groups, truth = graded_answers(6000, seed=2)
    confidence = fitted.predict_confidence(signals, groups)
    assert nll(confidence, correct) < nll(truth, correct) + 0.07  # the true skill is hidden
    assert fitted.losses_["mixture"] < 0.97 * fitted.losses_["Platt scaling"]
    assert abs(fitted.losses_["mixture"] - nll(confidence, correct)) < 0.05
    order = np.argsort(confidence).reshape(10, -1)
    assert np.abs(confidence[order].mean(1) - correct[order].mean(1)).mean() < 0.05


@pytest.mark.parametrize(
    ("other", "loss"),
    [(lambda rng: rng.choice(["a", "b"], 4000), 0.50), (lambda rng: rng.normal(size=4000), 0.58)],
    ids=["slopes by category", "products"],
)
def test_effects_of_two_signals_together_are_learned(other, loss):
    rng = np.random.default_rng(0)
    signal, second = rng.normal(size=4000), other(rng)
    factor = second if second.dtype.kind == "f" else np.where(second == "a", 1.0, -1.0)
    correct = rng.random(4000) < sigmoid(2.0 * factor * signal)
    fitted = SignalCalibration().fit({"one": signal[:700], "two": second[:700]}, correct[:700])
    new = fitted.predict_confidence({"one": signal[700:], "two": second[700:]})
    assert nll(new, correct[700:]) < loss  # 0.69 without the second signal


@pytest.mark.parametrize(
    "transform",
    [
        lambda e: np.exp(-20 + 5 * e),
        lambda e: 1 - np.exp(-20 - 5 * e),
        lambda e: np.exp(3 * e),
        lambda e: np.sign(e) * e**6,
    ],
    ids=["sequence probability", "token probability near 1", "length", "only ranks"],
)
def test_signals_on_any_scale_are_as_good_as_on_the_right_one(transform):
    rng = np.random.default_rng(0)
    signal = rng.normal(size=6000)
    correct = rng.random(6000) < sigmoid(2 * signal)
    fitted = SignalCalibration().fit({"signal": transform(signal[:1000])}, correct[:1000])
    best = LogisticRegression().fit(signal[:1000, None], correct[:1000])
    aim = nll(best.predict_proba(signal[1000:, None])[:, 1], correct[1000:])
    new = fitted.predict_confidence({"signal": transform(signal[1000:])})
    assert nll(new, correct[1000:]) < aim + 0.01


def test_the_likelihood_chooses_each_transformation():
    rng = np.random.default_rng(0)
    skill = rng.normal(size=3000)
    correct = (rng.random(3000) < sigmoid(2 * skill)).astype(float)
    values = np.column_stack(
        [skill, np.exp(8 * skill), sigmoid(6 * skill), np.sign(skill) * skill**6, skill > 0]
    )
    values[7, 2] = 683.0  # a slip of whatever extracted a probability
    levels = np.array([0, 0, 0, 0, 2])
    kinds = choose_kinds(values, correct, np.ones(3000), levels)
    assert kinds.tolist() == [IDENTITY, LOGARITHM, LOG_ODDS, RANKS, CATEGORY]
    values[:60, 2] = 683.0  # too many slips for a probability
    assert choose_kinds(values, correct, np.ones(3000), levels)[2] != LOG_ODDS


def test_infinite_values_lie_at_the_edge_and_missing_ones_have_their_own_weight():
    values = np.array([[0.1, -3.0], [0.9, -1.0], [np.nan, np.inf], [1.0, -np.inf], [0.0, np.nan]])
    encoding = encoding_of(values, np.array([LOG_ODDS, IDENTITY]), np.zeros(2, int))
    scaled, missing = encoding.encode(values)
    assert missing.tolist() == [[0, 0], [0, 0], [1, 0], [0, 0], [0, 1]]
    assert scaled[2, 1] == scaled[1, 1]
    assert scaled[3, 1] == scaled[0, 1]
    # 1.0 counts as half as far from 1 as the closest other value.
    odds = scaled[:, 0] * encoding.spread[0] + encoding.centre[0]
    np.testing.assert_allclose(odds[[1, 3]], np.log([9.0, 20.0]))


def test_numbers_of_any_size_are_signals():
    signal = np.random.default_rng(0).normal(size=300)
    correct = np.random.default_rng(1).random(300) < sigmoid(2 * signal)
    for factor in (1e-300, 1e99):
        fitted = SignalCalibration().fit({"signal": factor * signal}, correct)
        low, high = fitted.predict_confidence({"signal": [-factor, factor]})
        assert low < 0.35 < 0.65 < high


def test_a_number_that_is_always_the_same_or_missing_tells_only_that():
    rng = np.random.default_rng(0)
    correct = rng.random(300) < 0.6
    missing = rng.random(300) < np.where(correct, 0.1, 0.6)
    for value in (0.1, 1 / 3, 0.785850795617756, -2.7, 1e6 / 7):
        column = np.where(missing, np.nan, value)
        fitted = SignalCalibration().fit({"same": column, "other": rng.random(300)}, correct)
        present, absent = fitted.predict_confidence({"same": [value, None], "other": [0.5, 0.5]})
        assert present > absent + 0.2


def test_frames_and_arrays_of_the_same_values_give_the_same_fit():
    signals, correct, groups, _ = graded_answers(220, seed=1)
    forms = signals, pandas.DataFrame(signals), polars.DataFrame(signals)
    fits = [SignalCalibration().fit(form, correct, groups=groups).map_ for form in forms]
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


def test_new_data_are_matched_by_column_name(fitted, problem):
    signals, _, groups, _ = problem
    frame = pandas.DataFrame(signals)
    turned = fitted.predict_confidence(frame[frame.columns[::-1]], groups)
    np.testing.assert_array_equal(turned, fitted.predict_confidence(signals, groups))
    with pytest.raises(InputError, match="stated, tokens, judge, kind"):
        fitted.predict_confidence({"stated": [0.5]}, "law")


@pytest.mark.parametrize(
    ("of_fit", "later"),
    [
        (lambda g: g.astype(float), lambda g: g),
        (lambda g: g, lambda g: g.astype(float)),
        (lambda g: g, lambda g: g.astype(str)),
        (lambda g: g.astype(str), lambda g: [np.str_(name) for name in g]),
        (lambda g: g.astype(str).astype(object), lambda g: g.tolist()),
    ],
)
def test_groups_keep_their_names_whatever_their_type(of_fit, later):
    rng = np.random.default_rng(0)
    groups = rng.integers(1, 4, 400)
    signal = rng.normal(size=400)
    correct = rng.random(400) < sigmoid(signal + 2.0 * (groups - 2))
    fitted = SignalCalibration().fit(signal, correct, of_fit(groups))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fitted.predict_confidence(signal, later(groups))
    np.testing.assert_array_equal(found, fitted.predict_confidence(signal, of_fit(groups)))
    assert found[groups == 3].mean() > found[groups == 1].mean() + 0.4


def test_texts_are_levels_exactly_as_written():
    levels = SignalTable.of({"id": ["007", "7", "1e3", "1000", "1.0", "1"]}).levels
    assert levels == (("007", "1", "1.0", "1000", "1e3", "7"),)
    table = SignalTable.of({"category": np.array([1, 2, "x"], dtype=object)})
    assert table.values({"category": [1.0, 2, "1"]})[:, 0].tolist() == [0.0, 1.0, 0.0]


def test_groups_are_needed_if_and_only_if_the_fit_had_them(fitted, problem):
    signals, correct, groups, _ = problem
    with pytest.raises(InputError, match="Pass groups="):
        fitted.predict_confidence(signals)
    without = SignalCalibration().fit(signals, correct)
    with pytest.raises(InputError, match="Leave out groups="):
        without.predict_confidence(signals, groups)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"stated": 100.0}, "'stated' is 100"),
        ({"judge": 1e6}, "'judge' is 1e\\+06"),
        ({"kind": "poem"}, "'kind' is 'poem'"),
        ({"tool": "calculator"}, "'tool' is 'calculator'"),
    ],
)
def test_values_unlike_those_of_the_fit_are_flagged(problem, change, named):
    signals, correct, groups, _ = problem
    signals = signals | {"tool": np.full(len(correct), "search")}
    fitted = SignalCalibration().fit(signals, correct, groups)
    one = {name: column[0] for name, column in signals.items()} | change
    with pytest.warns(UnseenValuesWarning, match=named):
        fitted.predict_confidence(one, "law")


def test_unseen_groups_are_flagged_and_missing_values_are_not(fitted, problem):
    signals, _, groups, _ = problem
    with pytest.warns(UnseenValuesWarning, match="'groups' is 'chess'"):
        fitted.predict_confidence({name: column[0] for name, column in signals.items()}, "chess")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.predict_confidence(signals, groups)  # the judge's score is often missing


def test_one_answer_or_many_are_accepted_by_the_rule(fitted, tmp_path):
    new, right, groups, _ = graded_answers(900, seed=5)
    with pytest.raises(NotFittedError, match="decision_"):
        fitted.accept(new, groups)
    again = load(save(fitted, tmp_path / "signals.recal"))
    confidence = again.predict_confidence(new, groups)
    again.decision_ = decide(confidence, right, risk=0.3, groups=groups).rule
    accepted = again.decision_.accept(confidence, groups=groups)
    np.testing.assert_array_equal(again.accept(new, groups), accepted)
    one = {name: column[0] for name, column in new.items()}
    assert again.accept(one, groups[0]).tolist() == [accepted[0]]


def test_deciding_on_the_rows_of_the_fit_is_noticed(fitted, problem):
    signals, correct, groups, _ = problem
    with pytest.warns(SameRowsWarning):
        decide(fitted.predict_confidence(signals, groups), correct, risk=0.2, calibrator=fitted)
    new, right, others, _ = graded_answers(800, seed=9)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SameRowsWarning)
        decide(fitted.predict_confidence(new, others), right, risk=0.2, calibrator=fitted)


def test_ridge_regression_minimises_its_penalised_loss():
    rng = np.random.default_rng(0)
    features, counts = rng.normal(size=(300, 3)), rng.random(300) + 0.5
    correct = (rng.random(300) < 0.7).astype(float)
    penalty = np.array([2.0, 5.0, np.inf])
    weights = ridge(features, correct, counts, penalty)
    slope = features.T @ (counts * (sigmoid(features @ weights) - correct))
    np.testing.assert_allclose(slope[:2] + penalty[:2] * weights[:2], 0, atol=1e-3)
    assert weights[2] == 0.0


def test_the_map_computes_what_the_regressions_fitted():
    rng = np.random.default_rng(0)
    values = np.column_stack([rng.normal(size=(400, 3)), rng.integers(0, 3, 400)])
    values[rng.random((400, 4)) < 0.1] = np.nan
    right = (rng.random(400) < 0.6).astype(float)
    counts, levels = np.ones(400), np.array([0, 0, 0, 3])
    encoding = encoding_of(values, np.array([IDENTITY, RANKS, IDENTITY, CATEGORY]), levels)
    folds = stratified_folds(right.astype(int), 5, rng)
    design, members = fit_regressions(encoding, values, right, counts, folds)
    assert list(members) == ["Platt scaling", "ridge", "slopes", "splines"]
    made = design.map_of(encoding, members, dict.fromkeys(members, 0.25), 1.0)
    for column, each in zip(made.log_odds(values).T, members.values()):
        np.testing.assert_allclose(column, design.columns @ each.solution, atol=1e-9)
    # Rows left out get the log-odds of a fit to the others.
    inner = folds != 0
    design, without = fit_regressions(encoding, values[inner], right[inner], counts[inner], None)
    alone = design.map_of(encoding, without, {"Platt scaling": 1.0}, 1.0)
    found = members["Platt scaling"].left_out[~inner]
    np.testing.assert_allclose(found, alone.log_odds(values[~inner])[:, 0], atol=0.1)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.filterwarnings("ignore::recal.errors.UnseenValuesWarning")
def test_a_signal_that_separates_a_few_mistakes_by_chance_is_not_believed():
    table = np.random.default_rng(0).normal(size=(2050, 4))
    right = np.ones(2050, dtype=bool)
    right[:50] = table[:50, 0] > np.sort(table[:50, 0])[3]
    right[50:] = np.random.default_rng(1).random(2000) < 0.9
    fitted = SignalCalibration().fit(table[:50], right[:50])
    new = fitted.predict_confidence(table[50:])
    plain = nll(np.full(2000, 0.9), right[50:])
    assert nll(new, right[50:]) < 1.3 * plain  # 5.5 times with a weak ridge


def test_useless_signals_do_little_harm():
    ratios = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        table = rng.normal(size=(3300, 51))
        correct = rng.random(3300) < sigmoid(0.5 + table[:, 0])
        fitted = SignalCalibration().fit(table[:300], correct[:300])
        alone = LogisticRegression(C=1e3).fit(table[:300, :1], correct[:300])
        aim = nll(alone.predict_proba(table[300:, :1])[:, 1], correct[300:])
        ratios.append(nll(fitted.predict_confidence(table[300:]), correct[300:]) / aim)
    assert np.mean(ratios) < 1.009


@pytest.mark.parametrize(
    ("n", "wrong", "few", "combined"),
    [
        (49, 20, True, False),
        (50, 4, True, False),
        (50, 5, True, True),
        (199, 40, True, True),
        (200, 19, True, True),
        (200, 20, False, True),
    ],
)
def test_few_answers_are_warned_of(n, wrong, few, combined):
    """Below 200 answers or 20 mistakes a fit warns; below 50 or 5 it combines no signals."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = np.random.default_rng(0).normal(size=(n, 2))
        fitted = SignalCalibration().fit(rows, np.arange(n) >= wrong)
    assert any(one.category is FewSamplesWarning for one in caught) is few
    assert ("too few to combine" not in fitted.reason_) is combined


def test_importance_is_the_rise_of_the_loss_on_new_answers_without_a_signal():
    rng = np.random.default_rng(0)
    skill, useless = rng.normal(size=(2, 8000))
    kind, source, other = (rng.choice(list("xyz"), 8000) for _ in range(3))
    effect = np.array([-1.5, 0.0, 1.5])[np.searchsorted(list("xyz"), source)]
    correct = rng.random(8000) < sigmoid(skill + effect)
    table = {"skill": skill, "kind": kind, "source": source, "other": other, "useless": useless}
    train, test = (rows_of(table, rows) for rows in (slice(1000), slice(1000, None)))
    fitted = SignalCalibration().fit(train, correct[:1000])
    own = nll(fitted.predict_confidence(test), correct[1000:])
    for name, rise in fitted.signal_importance_.items():
        less = {other: column for other, column in train.items() if other != name}
        refitted = SignalCalibration().fit(less, correct[:1000])
        true = nll(refitted.predict_confidence(test), correct[1000:]) - own
        assert abs(rise - true) < 0.01 + 0.35 * true, name
    assert set(list(fitted.signal_importance_)[:2]) == {"source", "skill"}


def test_weights_count_answers():
    signals, correct, _, _ = graded_answers(200, seed=3)
    flipped = np.concatenate([correct, ~correct])
    twice = {name: np.concatenate([values, values]) for name, values in signals.items()}
    weighted = SignalCalibration().fit(twice, flipped, sample_weight=np.repeat([1.0, 1e-9], 200))
    plain = SignalCalibration().fit(signals, correct)
    gap = weighted.predict_confidence(signals) - plain.predict_confidence(signals)
    assert np.abs(gap).mean() < 0.05


@pytest.mark.parametrize(
    "leak",
    [
        lambda right, rng: right,
        lambda right, rng: 1 - right,
        lambda right, rng: 100 * right,
        lambda right, rng: right + 0.5 * rng.random(len(right)),
        lambda right, rng: np.where(right, rng.choice([0.0, 2.0], len(right)), 1.0),
        lambda right, rng: np.where(right, rng.random(len(right)), np.nan),
        lambda right, rng: np.where(right, "good", "bad"),
    ],
)
def test_signals_that_leak_the_grades_are_refused_by_name(problem, leak):
    signals, correct, _, _ = problem
    column = leak(correct.astype(int), np.random.default_rng(0))
    with pytest.raises(InputError, match="'graded'"):
        SignalCalibration().fit({**signals, "graded": column}, correct)


def test_wrong_inputs_are_refused(problem):
    signals, correct, groups, _ = problem
    with pytest.raises(NotFittedError):
        SignalCalibration().predict_confidence(signals)
    with pytest.raises(InputError, match="must be True or False"):
        SignalCalibration().fit(signals, np.arange(800))
    with pytest.raises(InputError, match="some right and some wrong"):
        SignalCalibration().fit(signals, np.ones(800))
    with pytest.raises(InputError, match="800"):
        SignalCalibration().fit(signals, correct[:5])
    for odd in (np.arange(800) * 1j, [[1, 2]] * 800, pandas.date_range("2026-01-01", periods=800)):
        with pytest.raises(InputError, match="'odd' must hold numbers or texts"):
            SignalCalibration().fit({"odd": odd}, correct)
    with pytest.raises(InputError, match="signals"):  # none, or the same in every answer
        SignalCalibration().fit({"stated": np.full(800, np.nan), "length": np.ones(800)}, correct)
    with pytest.raises(InputError, match="each of the 0 answers"):
        SignalCalibration().fit({"stated": []}, [])
    with pytest.raises(InputError, match=r"\[3, 800\]"):
        SignalCalibration().fit(signals, correct, groups[:3])


def test_every_runtime_gives_the_same_confidence(fitted, problem, tmp_path):
    signals, _, groups, _ = problem
    signals = {name: column.copy() for name, column in signals.items()}
    signals["tokens"][:2], signals["judge"][:2] = [np.inf, -np.inf], [np.inf, -np.inf]
    expected = fitted.predict_confidence(signals, groups)
    again = load(save(fitted, tmp_path / "signals.recal"))
    np.testing.assert_array_equal(again.predict_confidence(signals, groups), expected)
    assert again.signal_importance_ == fitted.signal_importance_
    values, of = fitted.table_.values(signals, groups), fitted.map_.confidence
    np.testing.assert_array_equal(of(values[5:6]), expected[5:6])
    session = onnxruntime.InferenceSession(export_onnx(fitted, path=tmp_path / "signals.onnx"))
    found = [session.run(None, {"signals": values})[0], fitted.map_.probs(values)[:, 1]]
    found += [of(convert(values)) for convert in (torch.from_numpy, array_api_strict.asarray)]
    for one in found:
        np.testing.assert_allclose(np.asarray(one), expected, rtol=0, atol=1e-12)
    kept = session.get_modelmeta().custom_metadata_map["recal_signals"]
    assert '"levels": ["essay", "list"]' in kept


def test_copies_of_answers_count_once():
    values, correct, groups, _ = graded_answers(300, seed=4)
    new, right, others, _ = graded_answers(3000, seed=5)
    rows = np.random.default_rng(0).permutation(np.repeat(np.arange(300), 5))
    single = SignalCalibration().fit(values, correct, groups)
    with pytest.warns(DependentRowsWarning, match="copies"):
        repeated = SignalCalibration().fit(
            {name: values[name][rows] for name in values}, correct[rows], groups[rows]
        )
    losses = [nll(one.predict_confidence(new, others), right) for one in (single, repeated)]
    assert losses[1] < 1.01 * losses[0]
    assert abs(repeated.losses_["mixture"] - single.losses_["mixture"]) < 0.02
