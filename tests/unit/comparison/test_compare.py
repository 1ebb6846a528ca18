import csv
import io
import json
from functools import partial

import numpy as np
import pytest

from recal import ReCal, TemperatureScaling, Views, compare
from recal.comparison import compare_probs, judge
from recal.comparison.results import corrected_interval, markdown_table
from recal.errors import InputError
from recal.maps.arrays import softmax
from recal.metrics import METRICS, evaluate
from tests.problems import logits_and_labels, views

problem = partial(
    views, n_classes=4, transforms=("zoom:0.5", "zoom:0.7"), scale=5, noise=0.7, keep=0.7, blur=1.5
)


@pytest.fixture(scope="module")
def single():
    return compare(["ts", "vs", "recal"], problem(800), problem(700, seed=1), bootstrap=200)


def four_splits():
    methods = {"plain": TemperatureScaling(), "mine": ReCal(max_iter=5)}
    return compare(methods, problem(600), splits=4, baseline="plain")


@pytest.fixture(scope="module")
def halves():
    return four_splits()


def test_given_sets_are_used_as_they_are(single):
    test = problem(700, seed=1)
    fitted = TemperatureScaling().fit(problem(800))
    for metric in METRICS:
        expected = metric(fitted.predict_proba(test), test.labels)
        assert single.row(metric.__name__, "ts").value == pytest.approx(expected)
    assert (single.setup.n_fit, single.setup.n_test, single.setup.splits) == (800, 700, 1)


def test_a_single_split_has_the_intervals_of_evaluate(single):
    test = problem(700, seed=1)
    probs = TemperatureScaling().fit(problem(800)).predict_proba(test)
    expected = evaluate(probs, test.labels, bootstrap=200).intervals
    assert single.row("ece", "ts").interval == expected["ece"]


def test_differences_are_paired(single):
    row = single.row("nll", "vs")
    truth = single.values["nll"][0]
    assert row.difference == pytest.approx(truth[2] - truth[1])
    low, high = row.difference_interval
    assert low < row.difference < high
    # The two share their rows, so the difference is known far better than either value.
    assert high - low < 0.6 * (row.interval[1] - row.interval[0])
    assert single.row("nll", "ts").difference_interval == (0.0, 0.0)
    assert not single.row("nll", "ts").differs


def test_noise_in_a_calibrated_models_error_does_not_hide_in_a_difference():
    """The error of a calibrated model is only noise; the interval holds the true difference."""
    held = 0
    for seed in range(10):
        logits, y = logits_and_labels(2000, 5, seed, scale=1.0)
        probs = {"calibrated": softmax(logits), "sharp": softmax(1.3 * logits)}
        found = compare_probs(probs, y, bootstrap=100, random_state=seed)
        low, high = found.row("ece", "sharp").difference_interval
        assert low <= found.row("ece", "sharp").difference <= high
        held += low <= 0.0708 <= high  # measured on a million rows
    assert held >= 7


def test_names_do_not_break_a_table():
    found = compare_probs({r"a|b\c^d~e_f": [[0.9, 0.1]], "g": [[0.8, 0.2]]}, [0], bootstrap=0)
    assert r"| a\|b\c^d~e_f |" in found.to_markdown()
    assert r"a|b\textbackslash{}c\^{}d\~{}e\_f & " in found.to_latex()
    assert markdown_table(["<b>"], [])[0] == "| &lt;b> |"


def test_scores_that_look_equal_are_marked_equal():
    probs = np.array([[0.9, 0.1], [0.2, 0.8]] * 10)
    near = probs + np.array([1e-7, -1e-7])
    found = compare_probs({"a": probs, "b": near, "c": probs[:, ::-1]}, [0, 1] * 10, bootstrap=0)
    assert [row.mark for row in found.rows("nll")] == ["best", "best", "second"]


def test_halves_are_random_disjoint_and_repeat_with_the_seed(halves):
    again = four_splits()
    assert halves.setup.n_fit == halves.setup.n_test == 300
    for metric in halves.values:
        assert np.array_equal(halves.values[metric], again.values[metric], equal_nan=True)
    assert len(np.unique(halves.values["nll"][:, 0])) == 4


def test_the_corrected_interval_counts_the_overlap_of_splits():
    values = np.array([1.0, 2.0, 3.0])
    low, high = corrected_interval(values, 1.0)
    assert (low + high) / 2 == pytest.approx(2.0)
    assert (high - low) / 2 == pytest.approx(4.302652729911275 * 1.0 * np.sqrt(1 / 3 + 1))


def test_a_method_that_cannot_be_fitted_is_left_out_with_the_reason():
    found = compare(["ts", "recal"], problem(200, transforms=()), splits=2)
    assert found.methods == ("uncalibrated", "ts")
    assert "transformed inputs" in found.failures["recal"]
    assert "recal was left out" in str(found)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_the_baseline_is_added_where_it_is_missing():
    assert compare(["vs"], problem(200), splits=2).methods == ("uncalibrated", "ts", "vs")
    found = compare(["vs"], problem(200), splits=2, baseline="uncalibrated")
    assert found.methods == ("uncalibrated", "vs")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((["nosuch"], problem(50)), "nosuch"),
        (("ts", problem(50)), "list such as"),
        ((["ts", "ts"], problem(50)), "'ts' is given twice"),
        (([3], problem(50)), "must be calibrators"),
        ((["ts"], problem(50), problem(50, n_classes=5)), "same classes, got 4 and 5"),
        ((["ts"], Views([[1.0, 2.0], [3.0, 1.0]])), "Labels are needed"),
        ((["ts"], np.zeros((4, 2))), "must be Views, got ndarray"),
        ((["ts"], problem(1)), "At least two samples"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        compare(*arguments)


@pytest.mark.parametrize("splits", [0, -2, 1.5, True])
def test_a_senseless_number_of_splits_is_refused(splits):
    with pytest.raises(InputError, match="splits"):
        compare(["ts"], problem(50), splits=splits)
    with pytest.raises(InputError, match="splits"):
        compare(["ts"], problem(50), problem(50), splits=2)


def test_tables_hold_the_same_numbers(single):
    value = f"{single.row('nll', 'vs').value:.4f}"
    assert value in str(single)
    assert value in single.to_markdown()
    assert value in single.to_latex()
    lines = list(csv.DictReader(io.StringIO(single.to_csv())))
    assert len(lines) == len(METRICS) * 4
    line = next(line for line in lines if line["method"] == "vs" and line["metric"] == "nll")
    assert float(line["value"]) == single.row("nll", "vs").value
    back = json.loads(json.dumps(single.to_dict(), allow_nan=False))
    assert back["methods"]["vs"]["metrics"]["nll"]["value"] == single.row("nll", "vs").value
    assert back["setup"]["n_fit"] == 800


def test_marks_in_each_format(single):
    best = single.best("nll")
    value = f"{single.row('nll', best).value:.4f}"
    assert f"**{value}**" in single.to_markdown()
    assert rf"\textbf{{{value}}}" in single.to_latex()


def test_unknown_metrics_and_methods_are_refused(single):
    with pytest.raises(InputError, match="'ecce'"):
        single.rows("ecce")
    with pytest.raises(InputError, match="'ecce'"):
        single.to_markdown(["ecce"])
    with pytest.raises(InputError, match="'nosuch'"):
        single.row("ece", "nosuch")


def test_graded_answers_are_compared_by_their_confidences():
    rng = np.random.default_rng(0)
    calibrated = rng.uniform(0, 1, 500)
    correct = rng.random(500) < calibrated
    result = compare_probs(
        {"calibrated": calibrated, "sharp": np.clip(2 * calibrated - 0.5, 0.01, 0.99)}, correct
    )
    assert result.graded
    assert result.best("nll") == "calibrated"
    assert result.row("ece", "sharp").value == evaluate(result.probs["sharp"], correct)["ece"]
    assert result.row("nll", "sharp").differs
    assert result.keeps_accuracy == (True, True)
    np.testing.assert_array_equal(result.answers["sharp"] == result.test_labels, correct)
    assert "500 graded answers" in str(result)
    assert "classwise_ece" not in result.values


def test_splits_never_divide_a_cluster():
    views = problem(400)
    clusters = np.repeat(np.arange(40), 10)
    result = compare(["ts"], views, splits=3, clusters=clusters)
    assert set(clusters[result.test_rows]).isdisjoint(np.delete(clusters, result.test_rows))
    assert result.setup.n_fit == result.setup.n_test == 200
    with pytest.raises(InputError, match="one value per sample"):
        compare(["ts"], views, splits=3, clusters=clusters[:-1])


def test_intervals_of_copies_in_clusters_are_those_of_single_rows():
    """Ten copies of each row tell no more than one row, if they are named as clusters."""
    fit, test = problem(300), problem(150, seed=1)
    copies = Views(np.repeat(test.logits, 10, axis=0), labels=np.repeat(test.labels, 10))
    clusters = np.r_[np.arange(300), 300 + np.repeat(np.arange(150), 10)]
    plain = Views(fit.logits, labels=fit.labels)
    methods = {"ts": "ts", "vs": "vs"}
    single = compare(methods, plain, Views(test.logits, labels=test.labels), bootstrap=400)
    clustered = compare(methods, plain, copies, bootstrap=400, clusters=clusters)
    careless = compare(methods, plain, copies, bootstrap=400)
    for metric in ("nll", "brier", "aurc", "ece"):
        widths = [
            np.diff(one.row(metric, "vs").difference_interval)[0]
            for one in (single, clustered, careless)
        ]
        assert widths[1] == pytest.approx(widths[0], rel=0.3), metric
        assert widths[2] < 0.6 * widths[0], metric
    errors = [judge(one, "vs", "ts").difference("nll").error for one in (single, clustered)]
    assert errors[1] == pytest.approx(errors[0], rel=1e-6)
    assert judge(clustered, "vs", "ts").difference("nll").freedom == 149
