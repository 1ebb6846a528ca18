import json
from functools import partial

import numpy as np
import pytest

from recal import evaluate
from recal.errors import InputError
from recal.maps.arrays import softmax
from recal.metrics import LABELS, METRICS, calibration_test
from recal.metrics.intervals import PAIRED, paired_draws
from recal.metrics.row_scores import score
from tests.problems import logits_and_labels, probs_and_labels

problem = partial(probs_and_labels, seed=3)


@pytest.mark.parametrize("n", [1, 3, 400, 20_000])
def test_evaluate_gives_what_each_metric_gives(n):
    probs, y = problem(n)
    found = evaluate(probs, y)
    assert list(found) == [metric.__name__ for metric in METRICS] == list(LABELS)
    for metric in METRICS:
        assert found[metric.__name__] == pytest.approx(metric(probs, y), abs=1e-12, nan_ok=True)
    assert found.intervals == {}


def test_graded_answers_have_every_metric_but_the_class_wise_one():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0, 1, 400)
    correct = rng.random(400) < confidence
    result = evaluate(confidence, correct, bootstrap=50)
    names = [name for name in LABELS if name != "classwise_ece"]
    assert list(result) == list(result.intervals) == names
    for metric in METRICS:
        if metric.__name__ in result:
            assert result[metric.__name__] == pytest.approx(metric(confidence, correct), abs=1e-12)
    assert result.n_classes is None
    assert "400 graded answers" in str(result)
    assert json.loads(json.dumps(result.to_dict()))["n_classes"] is None


def test_graded_answers_take_neither_classes_nor_confidences():
    with pytest.raises(InputError, match="`classes` cannot be used with a 1-D"):
        evaluate([0.5, 0.7], [1, 0], classes=["a", "b"])
    with pytest.raises(InputError, match="`confidences` cannot be used with a 1-D"):
        evaluate([0.5, 0.7], [1, 0], confidences=[0.5, 0.5])


@pytest.mark.parametrize("n", [300, 20_000])
def test_intervals_hold_the_value_and_repeat_with_the_seed(n):
    probs, y = problem(n)
    found = evaluate(probs, y, bootstrap=100, random_state=1)
    for name, (low, high) in found.intervals.items():
        assert low <= found[name] <= high, name
        assert low < high, name
    assert evaluate(probs, y, bootstrap=100, random_state=1).intervals == found.intervals
    assert evaluate(probs, y, bootstrap=100, random_state=2).intervals != found.intervals


def test_intervals_do_not_depend_on_the_order_of_rows():
    probs, y = problem(300)
    order = np.random.default_rng(0).permutation(300)
    one = evaluate(probs, y, bootstrap=50).intervals
    other = evaluate(probs[order], y[order], bootstrap=50).intervals
    for name in LABELS:
        assert one[name] == pytest.approx(other[name], rel=1e-9), name


def test_a_plain_bootstrap_of_rows_agrees_for_means_and_ranks():
    probs, y = problem(400)
    found = evaluate(probs, y, bootstrap=3000)
    rng = np.random.default_rng(5)
    rows = rng.integers(400, size=(600, 400))
    for metric in METRICS:
        if metric.__name__ in ("brier", "nll", "error_rate", "aurc", "auroc"):
            slow = np.quantile([metric(probs[r], y[r]) for r in rows], [0.025, 0.975])
            width = slow[1] - slow[0]
            assert found.intervals[metric.__name__] == pytest.approx(slow, abs=0.2 * width), (
                metric.__name__
            )


def test_the_interval_of_a_calibrated_model_reaches_zero_and_of_a_miscalibrated_one_does_not():
    calibrated = evaluate(*problem(4000, sharpness=1.0), bootstrap=300).intervals
    miscalibrated = evaluate(*problem(4000, sharpness=2.0), bootstrap=300).intervals
    for name in ("ece", "adaptive_ece", "classwise_ece", "debiased_ece", "smooth_ece", "ks_error"):
        assert calibrated[name][0] == 0.0, name
        assert miscalibrated[name][0] > 0.01, name


def test_infinite_and_undefined_values_are_said_and_survive_json():
    found = evaluate([[1.0, 0.0]] * 4, [1, 1, 1, 1], bootstrap=20)
    assert found["nll"] == np.inf
    assert found.intervals["nll"] == (np.inf, np.inf)
    assert np.isnan(found["auroc"])
    back = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert float(back["metrics"]["nll"]["value"]) == np.inf
    assert back["metrics"]["ece"]["draws"] == 20
    assert back["n_samples"] == 4


def test_many_classes_use_fewer_draws_and_say_so():
    found = evaluate(*problem(300, n_classes=600), bootstrap=1000)
    assert found.draws["classwise_ece"] < 1000
    assert f"class-wise ECE: {found.draws['classwise_ece']}" in str(found)
    assert "1,000 bootstrap draws" in str(found)


@pytest.mark.parametrize("draws", [-1, 2.5, True, None])
def test_a_senseless_number_of_draws_is_refused(draws):
    with pytest.raises(InputError, match="bootstrap"):
        evaluate([[0.9, 0.1]], [0], bootstrap=draws)


def test_the_test_of_calibration_finds_miscalibration():
    assert calibration_test(*problem(3000, sharpness=1.0)).p_value > 0.05
    found = calibration_test(*problem(3000, sharpness=1.5))
    assert found.p_value == pytest.approx(1 / 1001)
    assert found.mean_gap > 0
    assert "above accuracy" in str(found)


def test_certain_and_right_is_calibrated_and_one_certain_error_is_not():
    probs = np.array([[1.0, 0.0]] * 50)
    assert calibration_test(probs, [0] * 50).p_value == 1.0
    assert calibration_test(probs, [0] * 49 + [1]).p_value < 0.01


def test_errors_that_calibrated_models_make_at_high_confidence_do_not_hide_miscalibration():
    """Most confidences near 1, as a network's are; then a temperature of 0.8 is a clear fault of
    2,000 answers.
    """
    p_values = []
    for seed in range(20):
        claimed = probs_and_labels(2000, 5, seed, spread=8, sharpness=0.8)
        found = calibration_test(*claimed, draws=199, random_state=seed)
        p_values.append(found.p_value)
    assert np.mean(np.array(p_values) <= 0.05) > 0.8


@pytest.mark.parametrize("n", [40, 20_000])
@pytest.mark.slow
def test_the_test_of_calibration_keeps_its_level(n):
    repeats = 1000 if n == 40 else 200
    p_values = []
    for seed in range(repeats):
        sample = problem(n, sharpness=1.0, seed=seed)
        p_values.append(calibration_test(*sample, draws=199, random_state=seed).p_value)
    for level in (0.05, 0.2):
        error = 4 * (level * (1 - level) / repeats) ** 0.5
        assert np.mean(np.array(p_values) <= level) == pytest.approx(level, abs=error)


def test_a_reliability_diagram_takes_graded_answers():
    pytest.importorskip("matplotlib")
    from recal import reliability_diagram

    ax = reliability_diagram([0.25, 0.25, 0.85, 0.85], [0, 1, 1, 1])
    heights = {round(points[0, 1], 3) for points in ax.collections[0].get_segments()}
    assert heights == {0.5, 1.0}, "accuracies of the two bins"


@pytest.mark.parametrize("n", [900, 6000])
def test_differences_spread_as_the_rows_themselves_say(n):
    rng = np.random.default_rng(0)
    logits, y = logits_and_labels(n, spread=2.0, scale=1.0)
    sharp = 1.5 * logits + rng.normal(0, 0.3, logits.shape)
    methods = [score(softmax(one), y) for one in (logits, sharp)]
    draws = paired_draws(methods, 800)
    assert set(draws) == set(PAIRED)
    for name, divisor in (("nll", 1), ("brier", 4)):
        gaps = (getattr(methods[1], name) - getattr(methods[0], name)) / divisor
        apart = draws[name][1] - draws[name][0]
        assert apart.std() == pytest.approx(gaps.std() / np.sqrt(n), rel=0.15), name
        assert apart.mean() == pytest.approx(gaps.mean(), abs=0.3 * apart.std()), name
    assert draws["ece"][1].mean() > draws["ece"][0].mean() + 3 * draws["ece"].std(axis=1).max()
