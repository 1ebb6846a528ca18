"""One confidence from the answers of several systems."""

from __future__ import annotations

import numpy as np
import pandas
import polars
import pytest

from recal import PanelCalibration, SignalCalibration, save
from recal.calibrators.panel_answers import normalised
from recal.errors import FewSamplesWarning, InputError, NotFittedError
from tests.problems import OPTIONS, asked, rows_of
from tests.problems import nll_of_graded as nll


@pytest.fixture(scope="module", name="problem")
def three_systems():
    return asked(1500, {"large": 0.75, "small": 0.65, "tiny": 0.6})


def split(truth, answers, signals, n=500):
    """Return answers, truth and signals of the first n rows, and of the others."""
    both = slice(n), slice(n, None)
    return [(rows_of(answers, rows), truth[rows], rows_of(signals, rows)) for rows in both]


@pytest.fixture(scope="module", name="panel")
def fitted(problem):
    return PanelCalibration().fit(*split(*problem)[0])


def test_more_systems_answer_better_and_are_calibrated(problem, panel):
    first, (answers, truth, signals) = split(*problem)
    picked, confidence = panel.predict_both(answers, signals)
    right, main = picked == truth, answers["large"] == truth
    assert right.mean() > main.mean() + 0.03
    assert abs(right.mean() - confidence.mean()) < 0.04
    picked, confidence = PanelCalibration(answers="kept").fit(*first).predict_both(answers, signals)
    assert (picked == answers["large"]).all()
    alone = SignalCalibration().fit(first[2]["large"], first[0]["large"] == first[1])
    own = alone.predict_confidence(signals["large"])
    assert nll(confidence, main) < 0.9 * nll(own, main)


def test_it_says_what_each_system_adds(panel):
    assert [gain["system"] for gain in panel.gains_] == ["large", "small", "tiny"]
    first, second, third = (gain["automated"] for gain in panel.gains_)
    assert first < second < third
    assert "tiny" in panel._repr_html_()
    assert repr(panel) == "PanelCalibration()"


def test_it_says_what_each_system_adds_for_its_price(problem):
    answers, truth, signals = split(*problem)[0]
    panel = PanelCalibration().fit(
        answers, truth, signals, costs={"large": 5, "small": 2, "tiny": 0}
    )
    first, second = (100 * gain["automated"] for gain in panel.gains_[:2])
    assert f"{second - first:+.1f} points for 2, {(second - first) / 2:+.3g} per 1" in panel.reason_


def test_one_system_is_its_signal_calibration(problem):
    truth, answers, signals = problem
    right = answers["large"] == truth
    panel = PanelCalibration().fit({"large": answers["large"]}, truth, {"large": signals["large"]})
    alone = SignalCalibration().fit(signals["large"], right)
    ours = panel.predict_confidence({"large": answers["large"]}, {"large": signals["large"]})
    np.testing.assert_allclose(ours, alone.predict_confidence(signals["large"]), atol=1e-9)


@pytest.mark.parametrize("form", [pandas.DataFrame, polars.DataFrame, "array"])
def test_answers_come_in_any_form(problem, panel, form):
    truth, answers, signals = problem
    answers, signals = rows_of(answers, slice(0, 500)), rows_of(signals, slice(0, 500))
    table = {name: column.tolist() for name, column in answers.items()}
    given = (np.column_stack(list(answers.values())) if form == "array" else form(table), signals)
    if form == "array":
        arrays = {name: one["stated"][:, None] for name, one in signals.items()}
        given = given[0], dict(zip(["system 0", "system 1", "system 2"], arrays.values()))
    again = PanelCalibration().fit(given[0], truth[:500], given[1])
    expected = panel.predict_confidence(answers, signals)
    np.testing.assert_allclose(again.predict_confidence(*given), expected)


@pytest.mark.parametrize("form", [dict, pandas.DataFrame, "array", "words"])
def test_grades_say_the_same_as_the_truth(problem, panel, form):
    answers, truth, signals = split(*problem)[0]
    by_name = {name: answers[name] == truth for name in ("tiny", "large", "small")}
    grades = np.column_stack([by_name[name] for name in answers])
    if form == "words":
        grades = np.where(grades, "right", "wrong")
    elif form != "array":
        grades = form(by_name)
    expected = panel.predict_confidence(answers, signals)
    again = PanelCalibration().fit(answers, grades, signals)
    np.testing.assert_allclose(again.predict_confidence(answers, signals), expected)


def test_grades_of_the_main_system_keep_its_answers(problem):
    (some, known, values), (answers, truth, signals) = split(*problem, 700)
    panel = PanelCalibration().fit(some, some["large"] == known, values)
    picked, confidence = panel.predict_both(answers, signals)
    assert (picked == answers["large"]).all()
    full = PanelCalibration(answers="kept").fit(some, known, values)
    best, right = full.predict_confidence(answers, signals), answers["large"] == truth
    assert nll(confidence, right) < 1.1 * nll(best, right)


def test_samples_of_one_system_share_a_weight():
    rng = np.random.default_rng(0)
    truth = rng.choice(OPTIONS, 800)
    chance = rng.uniform(0.3, 0.9, 800)
    votes = rng.random((800, 5)) < chance[:, None]
    samples = np.where(votes, truth[:, None], rng.choice(OPTIONS, (800, 5))).astype(object)
    panel = PanelCalibration().fit({"model": samples[:500]}, truth[:500])
    one = PanelCalibration().fit({"model": samples[:500, 0]}, truth[:500])
    right = panel.predict({"model": samples[500:]}) == truth[500:]
    assert right.mean() > (samples[500:, 0] == truth[500:]).mean() + 0.1
    assert panel.map_.stages[0].weights.shape == one.map_.stages[0].weights.shape == (1,)
    # A list per question, of any length, says the same.
    lists = [row[row != None].tolist() for row in samples[500:]]  # noqa: E711
    assert (panel.predict({"model": lists}) == panel.predict({"model": samples[500:]})).all()
    # Signals do not replace what the agreement of the samples tells.
    noise = {"model": {"length": rng.random(800)}}
    both = PanelCalibration().fit({"model": samples[:500]}, truth[:500], rows_of(noise, slice(500)))
    ours = both.predict_confidence({"model": samples[500:]}, rows_of(noise, slice(500, None)))
    assert nll(ours, right) < 1.02 * nll(panel.predict_confidence({"model": samples[500:]}), right)


def test_rows_of_the_first_systems_are_calibrated(problem, panel):
    answers, truth, signals = split(*problem)[1]
    some, values = ({name: of[name] for name in ("large", "small")} for of in (answers, signals))
    picked, confidence = panel.predict_both(some, values)
    assert abs((picked == truth).mean() - confidence.mean()) < 0.04
    none, signals_of = {**answers, "tiny": [None] * len(truth)}, {**signals, "tiny": None}
    np.testing.assert_allclose(panel.predict_confidence(none, signals_of), confidence)
    # A system that was asked and refused to answer is not the same.
    refused = panel.predict_confidence(none, signals_of, asked=3)
    assert not np.allclose(refused, confidence)


def test_missing_answers_and_signals_are_normal(problem):
    truth, answers, signals = problem
    rng = np.random.default_rng(1)
    holes, values = {}, {}
    for name, column in answers.items():
        missing, silent = rng.random((2, len(truth))) < 0.3
        holes[name] = np.where(missing, None, column)
        values[name] = {"stated": np.where(silent, np.nan, signals[name]["stated"])}
    first, (new, known, numbers) = split(truth, holes, values, 700)
    panel = PanelCalibration().fit(*first)
    picked, confidence = panel.predict_both(new, numbers)
    assert abs((picked == known).mean() - confidence.mean()) < 0.04
    nobody = panel.predict_both({name: [None, "A"] for name in answers})
    assert nobody[0].tolist()[0] is None
    assert nobody[1][0] == 0.0


def test_free_text_is_compared_by_meaning():
    words = np.array([f"Answer No. {number}" for number in range(500)], dtype=object)
    truth, answers, signals = asked(600, {"a": 0.7, "b": 0.6}, options=words)
    answers["b"] = np.array([f" {text.upper()}! " for text in answers["b"]], dtype=object)
    panel = PanelCalibration().fit(answers, truth, signals)
    agree = panel.predict_confidence({"a": ["Paris."], "b": ["paris"]})
    differ = panel.predict_confidence({"a": ["Paris"], "b": ["London"]})
    assert agree[0] > 0.9 > differ[0]
    exact = PanelCalibration(match="exact").fit(answers, truth, signals)
    assert exact.predict_confidence({"a": ["Paris."], "b": ["paris"]})[0] < 0.9


def test_a_function_says_which_answers_are_the_same(problem, panel, tmp_path):
    """Answers are objects, and those with the same name are equal."""
    answers, truth, signals = split(*problem)[0]
    named = {name: [{"name": one} for one in column] for name, column in answers.items()}
    own = PanelCalibration(same=lambda one, other: one["name"] == other["name"])
    own.fit(named, [{"name": one} for one in truth], signals)
    confidence = own.predict_confidence(named, signals)
    np.testing.assert_allclose(confidence, panel.predict_confidence(answers, signals))
    with pytest.raises(InputError, match="same is a function"):
        save(own, tmp_path / "own.recal")


@pytest.mark.parametrize(
    ("one", "other", "match", "equal"),
    [
        ("1,000", 1000.0, "text", True),
        ("$5.50", "5.5", "text", True),
        (" New   York. ", "new york", "text", True),
        ("It is 42.", "x = 42", "number", True),
        ("１２", "12", "text", True),
        ("C++", "C", "text", False),
        ("-5", "5", "text", False),
        ("A", "a", "exact", False),
        ("1.5", "15", "number", False),
    ],
)
def test_which_answers_are_equal(one, other, match, equal):
    assert (normalised(one, match) == normalised(other, match)) == equal


def test_groups_get_offsets(problem):
    truth, answers, signals = problem
    rng = np.random.default_rng(0)
    groups = np.where(rng.random(len(truth)) < 0.5, "law", "physics")
    noisy = {
        name: np.where((groups == "law") & (rng.random(len(truth)) < 0.4), "none", column)
        for name, column in answers.items()
    }
    panel = PanelCalibration().fit(noisy, truth, signals, groups=groups)
    confidence = panel.predict_confidence(noisy, signals, groups=groups)
    right = panel.predict(noisy, signals) == truth
    for name in ("law", "physics"):
        assert abs(right[groups == name].mean() - confidence[groups == name].mean()) < 0.03
    with pytest.raises(InputError, match="groups"):
        PanelCalibration().fit(answers, truth).predict_confidence(answers, groups=groups)


def test_weights_and_clusters_are_read(problem):
    truth, answers, signals = problem
    weights = np.r_[np.ones(700), np.zeros(800)]
    some = slice(0, 700)
    by_weight = PanelCalibration().fit(answers, truth, sample_weight=weights)
    by_rows = PanelCalibration().fit(rows_of(answers, some), truth[some])
    ours, theirs = by_weight.map_.stages[-1].weights, by_rows.map_.stages[-1].weights
    np.testing.assert_allclose(ours, theirs, rtol=0.25)
    clusters = np.repeat(np.arange(300), 5)
    assert PanelCalibration().fit(answers, truth, signals, clusters=clusters).n_fitted_ == 1500


def test_text_signals_are_categories(problem):
    truth, answers, _ = problem
    rng = np.random.default_rng(0)
    right = answers["small"] == truth
    told = np.where(rng.random(len(truth)) < 0.8, right, ~right)
    signals = {"small": {"ended": np.where(told, "stop", "length")}}
    panel = PanelCalibration().fit(answers, truth, signals)
    new = {"large": ["A", "A"], "small": ["B", "B"], "tiny": ["C", "C"]}
    given = {"small": {"ended": ["stop", "length"]}}
    assert panel.predict(new, given).tolist() == ["B", "A"]


# --- systems that help, and that do not


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_useless_systems_do_no_harm(problem):
    truth, answers, signals = problem
    right = answers["tiny"] == truth
    worse = []
    for draw in range(6):
        rng = np.random.default_rng(draw)
        order = rng.permutation(len(truth))
        rows, new = order[:150], order[150:]
        guesses = {name: rng.choice(OPTIONS, len(truth)) for name in ("x", "y", "z")}
        given = {"tiny": answers["tiny"], **guesses}
        own = {"tiny": signals["tiny"], **{name: {"stated": rng.random(1500)} for name in guesses}}
        panel = PanelCalibration(answers="kept").fit(
            rows_of(given, rows), truth[rows], rows_of(own, rows)
        )
        alone = SignalCalibration().fit(rows_of(signals["tiny"], rows), right[rows])
        ours = panel.predict_confidence(rows_of(given, new), rows_of(own, new))
        theirs = alone.predict_confidence(rows_of(signals["tiny"], new))
        worse.append(nll(ours, right[new]) / nll(theirs, right[new]))
    assert np.mean(worse) < 1.002
    assert max(worse) < 1.01


def test_an_accomplice_is_not_believed(problem):
    """A copy of the main system, mistakes included, is no second opinion."""
    truth, answers, signals = problem
    pair = {"large": answers["large"], "copy": answers["large"].copy()}
    first, (new, known, own) = split(truth, pair, {"large": signals["large"]})
    panel = PanelCalibration().fit(*first)
    alone = SignalCalibration().fit(first[2]["large"], first[0]["large"] == first[1])
    ours, right = panel.predict_confidence(new, own), new["large"] == known
    assert nll(ours, right) < 1.01 * nll(alone.predict_confidence(own["large"]), right)
    assert panel.gains_[1]["automated"] < panel.gains_[0]["automated"] + 0.05


# --- wrong inputs


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda a, t, s: ({**a, "leak": t}, t, s), "leak"),
        (lambda a, t, s: (a, t[:-1], s), "1499"),
        (lambda a, t, s: ({**a, "tiny": a["tiny"][:-1]}, t, s), "1499"),
        (lambda a, t, s: (a, t, {**s, "huge": s["tiny"]}), "huge"),
        (lambda a, t, s: (a, t, {**s, "tiny": {"stated": [0.5]}}), "[1, 1500]"),
        (lambda a, t, s: (a, np.where(np.arange(len(t)) == 7, None, t), s), "row 7"),
        (lambda a, t, s: ({}, t, s), "answers"),
        (lambda a, t, s: ({"large": "A"}, t, None), "got 1"),
        (lambda a, t, s: (a, (a["large"] == t).astype(int), s), "booleans"),
        (lambda a, t, s: ({**a, "large": [None] * 1500}, t, s), "'large'"),
        (lambda a, t, s: (a, np.where(np.arange(1500) == 7, None, a["large"] == t), s), "row 7"),
        (lambda a, t, s: (a, np.ones((1500, 2), bool), s), "(1500, 2)"),
        (lambda a, t, s: (a, np.full((1500, 3), "maybe"), s), "'maybe'"),
        (lambda a, t, s: (a, dict.fromkeys(("large", "huge"), a["tiny"] == t), s), "huge"),
        (lambda a, t, s: ({n: c[:1] for n, c in a.items()}, t[:1], None), "10"),
        (lambda a, t, s: ({n: [{}] * 1500 for n in a}, t, None), "same="),
    ],
)
def test_wrong_inputs_of_a_fit(problem, change, named):
    truth, answers, signals = problem
    arguments = change(answers, truth, signals)
    with pytest.raises(InputError) as error:
        PanelCalibration().fit(*arguments)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("answers", "signals", "named"),
    [
        ({"large": ["A"], "other": ["B"]}, None, "other"),
        ({"small": ["A"]}, None, "large"),
        (np.full((2, 4), "A"), None, "system 0"),
        ({"large": [["A", "B"]]}, None, "2"),
        ({"large": ["A"]}, {"large": {"logprob": [0.1]}}, "stated"),
        ({"large": ["A"]}, {"large": {"stated": [0.1, 0.2]}}, "2"),
    ],
)
def test_wrong_inputs_of_a_prediction(panel, answers, signals, named):
    with pytest.raises(InputError, match=named):
        panel.predict(answers, signals)


def test_too_few_or_no_labels():
    truth, answers, signals = asked(30, {"a": 0.7, "b": 0.6})
    with pytest.warns(FewSamplesWarning, match="30"):
        PanelCalibration().fit(answers, truth, signals)
    with pytest.raises(NotFittedError):
        PanelCalibration().predict(answers)


def test_missing_values_of_pandas_are_missing_answers():
    truth, answers, _ = asked(400, {"a": 0.7, "b": 0.6})
    answers["b"][::3] = None
    frame = pandas.DataFrame(answers).astype("string")
    assert frame["b"].isna().sum() == 134
    one, other = PanelCalibration().fit(answers, truth), PanelCalibration().fit(frame, truth)
    assert (one.predict_confidence(frame) == other.predict_confidence(answers)).all()
    with pytest.raises(InputError, match="row 0"):
        PanelCalibration().fit(answers, frame["b"])
