"""What every metric must do, and the edges of each."""

import numpy as np
import pytest

from recal.errors import InputError
from recal.metrics import (
    METRICS,
    adaptive_ece,
    aurc,
    auroc,
    brier,
    classwise_ece,
    debiased_ece,
    ece,
    error_rate,
    mce,
    nll,
)
from recal.metrics.calibration_error import classwise_gaps, equal_width_edges
from recal.metrics.row_scores import score
from tests.problems import probs_and_labels, probs_with_ties

PROBS, Y = probs_and_labels(seed=3)
every_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)


@every_metric
def test_the_order_of_rows_changes_nothing(metric):
    probs, y = PROBS, Y
    probs = np.round(probs, 1)  # many ties
    probs /= probs.sum(1, keepdims=True)
    order = np.random.default_rng(0).permutation(len(y))
    assert metric(probs[order], y[order]) == pytest.approx(metric(probs, y), rel=1e-12)


@every_metric
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_narrow_floats_give_what_the_same_values_give_as_float64(metric, dtype):
    probs = PROBS.astype(dtype)
    assert metric(probs, Y) == pytest.approx(metric(probs.astype(np.float64), Y), rel=1e-12)


@every_metric
def test_memory_layout_and_byte_order_change_nothing(metric):
    probs, y = PROBS, Y
    expected = metric(probs, y)
    assert metric(np.asfortranarray(probs), y) == expected
    assert metric(np.repeat(probs, 2, axis=0)[::2], y) == expected
    assert metric(probs.astype(">f8"), y.astype(">i4")) == expected
    assert metric(probs.tolist(), y.tolist()) == expected


@every_metric
def test_names_are_columns_in_the_order_of_classes(metric):
    probs, y = PROBS, Y
    names = np.array(["d", "a", "c", "b"])
    assert metric(probs, names[y], classes=names) == metric(probs, y)


@every_metric
def test_a_class_missing_from_the_labels_shifts_no_column(metric):
    probs, y = PROBS, Y
    kept = y != 1
    spread = np.insert(probs[kept], 0, 0.0, axis=1)  # a column that no label names
    scale = 4 / 5 if metric in (brier, classwise_ece) else 1.0
    assert metric(spread, y[kept] + 1) == pytest.approx(
        metric(probs[kept], y[kept]) * scale, rel=1e-9
    )


@every_metric
def test_bad_rows_are_refused_with_their_number(metric):
    probs, y = PROBS, Y
    for value, words in ((np.nan, "row 7"), (-0.2, "row 7 holds -0.2"), (1.5, "row 7 holds 1.5")):
        bad = probs.copy()
        bad[7, 2] = value
        with pytest.raises(InputError, match=words):
            metric(bad, y)
    with pytest.raises(InputError, match=r"row 0 sums to 0\.5"):
        metric(np.full((3, 2), 0.25), [0, 1, 0])


@every_metric
def test_one_row_gives_a_number(metric):
    value = metric([[0.7, 0.3]], [0])
    assert isinstance(value, float)
    assert np.isnan(value) == (metric is auroc)


@pytest.mark.parametrize("metric", [ece, mce, adaptive_ece, classwise_ece, debiased_ece])
@pytest.mark.parametrize("n_bins", [0, -1, 2.5, True])
def test_a_senseless_number_of_bins_is_refused(metric, n_bins):
    with pytest.raises(InputError, match="n_bins"):
        metric([[0.7, 0.3]], [0], n_bins=n_bins)


def top(confidences):
    """Rows of eleven classes whose top class has the confidences given."""
    confidences = np.asarray(confidences)
    return np.column_stack([confidences, *[(1 - confidences) / 10] * 10])


@pytest.mark.parametrize("n_bins", [1, 3, 10, 15, 49, 100])
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(n_bins):
    for b in range(max(1, n_bins // 5), n_bins):
        edge = b / n_bins
        # In one bin the two gaps add up; in two bins they would each count alone with the same sum,
        # so look at mce.
        inside = np.nextafter(edge, 0)
        together = mce(top([edge, inside]), [0, 1], n_bins=n_bins)
        assert together == pytest.approx(abs(edge + inside - 1) / 2, abs=1e-12), b
        above = np.nextafter(edge, 1)
        apart = mce(top([edge, above]), [0, 1], n_bins=n_bins)
        assert apart == pytest.approx(max(1 - edge, above), abs=1e-12), b


def test_scores_when_every_answer_is_right_or_wrong():
    probs = [[0.9, 0.1], [0.8, 0.2], [0.8, 0.2]]
    right, wrong = [0, 0, 0], [1, 1, 1]
    assert (error_rate(probs, right), error_rate(probs, wrong)) == (0.0, 1.0)
    assert (aurc(probs, right), aurc(probs, wrong)) == (0.0, 1.0)
    assert np.isnan(auroc(probs, right))
    assert np.isnan(auroc(probs, wrong))


def test_certain_and_right_is_perfect_and_certain_and_wrong_is_the_worst():
    probs = np.array([[1.0, 0.0], [0.0, 1.0]])
    for metric in METRICS:
        if metric is not auroc:  # it is undefined
            assert metric(probs, [0, 1]) == 0.0
            worst = np.inf if metric is nll else 1.0
            assert metric(probs, [1, 0]) == pytest.approx(worst, abs=1e-6)


@pytest.mark.parametrize("metric", [one for one in METRICS if one is not classwise_ece])
def test_confidence_and_correctness_give_what_two_classes_give(metric):
    """A confidence of at least one half and whether it was right are a problem with two classes."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 200)
    correct = rng.random(200) < confidence**2
    probs = np.column_stack([confidence, 1 - confidence])
    expected = metric(probs, (~correct).astype(int))
    assert metric(confidence, correct) == pytest.approx(expected, rel=1e-12)
    assert metric(confidence.tolist(), correct.astype(int).tolist()) == pytest.approx(
        expected, rel=1e-12
    )


def test_a_low_confidence_stays_low():
    """The confidence of an answer may lie below one half; it is not the probability of the other
    answer.
    """
    assert ece([0.2] * 5, [1, 0, 0, 0, 0]) == pytest.approx(0.0)
    assert error_rate([0.2] * 5, [1, 0, 0, 0, 0]) == pytest.approx(0.8)
    assert nll([0.2], [1]) == pytest.approx(-np.log(0.2))
    assert brier([0.2], [1]) == pytest.approx(0.64)


@pytest.mark.parametrize(
    ("confidence", "correct", "words"),
    [
        ([0.5, 2.3], [1, 0], r"row 1 is 2\.3.*numpy\.exp"),
        ([0.5, np.nan], [1, 0], "row 1 is nan"),
        ([0.5, 0.7], [1, 2], r"got 2 in row 1.*shape \(n_samples, n_classes\)"),
        ([0.5, 0.7], ["a", "b"], "which answers are right"),
        ([0.5, 0.7], [1], "2 samples but 1 labels"),
        ([], [], "no rows"),
    ],
)
def test_graded_answers_that_make_no_sense_are_refused(confidence, correct, words):
    with pytest.raises(InputError, match=words):
        ece(confidence, correct)


def test_a_metric_of_all_classes_refuses_graded_answers():
    with pytest.raises(InputError, match="probabilities of all classes"):
        classwise_ece([0.5, 0.7], [1, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_many_rows_get_what_each_gets_alone(dtype, order):
    probs, y = probs_with_ties(dtype=dtype)
    many = score(np.asarray(np.tile(probs, (40, 1)), order=order), np.tile(y, 40))
    for row in range(0, len(y), 7):
        alone = score(probs[row : row + 1], y[row : row + 1])
        for name in ("confidence", "correct", "brier", "nll"):
            found, expected = getattr(many, name)[row + 39 * len(y)], getattr(alone, name)[0]
            assert found == pytest.approx(expected, rel=1e-13)
    expected = ((probs - np.eye(probs.shape[1])[y]) ** 2).sum(axis=1)
    np.testing.assert_allclose(many.brier[: len(y)], expected, rtol=0, atol=1e-6)


def test_classwise_gaps_are_probability_minus_outcome_by_part_class_and_bin():
    probs, y = probs_with_ties(60)
    part, edges = np.random.default_rng(0).integers(0, 3, len(y)), equal_width_edges(10)
    expected = np.zeros((3, 7, 10))
    for row, of_part, label in zip(probs, part, y):
        for column, value in enumerate(row):
            place = max(int(np.ceil(round(10 * value, 9))) - 1, 0)
            expected[of_part, column, place] += value - (column == label)
    np.testing.assert_allclose(
        classwise_gaps(probs, y, edges, part, 3), expected, rtol=0, atol=1e-12
    )
