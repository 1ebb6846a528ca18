"""Verdicts that an earlier page got wrong, each built from known truth, and the rules behind the
new ones.
"""

import dataclasses
from functools import partial

import numpy as np
import pytest

from recal.comparison import compare_probs, judge, recommend
from recal.decisions import decide, risk_curve
from recal.maps.arrays import softmax
from recal.metrics import ece
from recal.reporting.figure_data import calibrated_range
from recal.reporting.verdict import advice, automation, headline, verdict
from tests.problems import logits_and_labels

# Logits whose softmax is the true chance of each class.
calibrated_logits = partial(logits_and_labels, n_classes=5, spread=2.5, scale=1.0)


def found(named, y, passes=None, fitted=True):
    """A comparison of known probabilities, as if methods had made them."""
    result = compare_probs(named, y, bootstrap=100)
    setup = dataclasses.replace(result.setup, n_fit=len(y) if fitted else 0)
    return dataclasses.replace(result, setup=setup, passes=passes or (1.0,) * len(named))


def test_a_spoiled_model_is_called_worse_though_more_of_its_sure_answers_are_right():
    logits, y = calibrated_logits(4000)
    result = found({"before": softmax(logits), "after": softmax(logits / 2)}, y, fitted=False)
    assert ece(result.probs["before"], y) < 0.02 < 0.1 < ece(result.probs["after"], y)
    told = verdict(result, "after")
    assert told.after.accuracy > told.before.accuracy  # which is all that the earlier page said
    assert told.outcome == "worse"
    assert told.sentences[0].startswith("Worse: after, the probabilities are worse than before")
    assert [test.rejected for test in told.tests] == [False, True]
    assert told.tests[1].mean_gap < 0
    assert recommend(result).method == "before"
    assert advice(result, recommend(result)) == "Use the probabilities as they were."


def test_a_method_that_gave_the_truth_no_chance_is_worse():
    logits, y = calibrated_logits(500)
    hopeless = softmax(logits)
    hopeless[0] = np.eye(5)[(y[0] + 1) % 5]
    result = found({"uncalibrated": softmax(logits), "bins": hopeless}, y)
    assert judge(result, "bins", "uncalibrated").difference("nll").value == np.inf
    assert judge(result, "bins", "uncalibrated").outcome == "worse"
    assert judge(result, "uncalibrated", "bins").outcome == "better"


def test_equally_good_methods_are_told_apart_in_at_most_five_per_cent():
    # Both are off by the same factor, one way and the other, in a coin's order: their expected
    # scores are equal.
    told = 0
    for seed in range(200):
        logits, y = calibrated_logits(300, seed=seed)
        rng = np.random.default_rng(seed + 1000)
        one, two = (softmax(logits + rng.normal(0, 0.3, logits.shape)) for _ in range(2))
        found = judge(compare_probs({"a": one, "b": two}, y, bootstrap=0), "a", "b")
        told += found.outcome != "no difference"
    assert told <= 18  # binomial(200, 0.05) exceeds 18 once in 100 trials or so


def exact_range(doubts, level=0.95):
    chances = np.ones(1)
    for doubt in doubts:
        chances = np.convolve(chances, [1 - doubt, doubt])
    return np.searchsorted(chances.cumsum(), [(1 - level) / 2, (1 + level) / 2])


@pytest.mark.parametrize("n", [1, 7, 60, 400])
@pytest.mark.parametrize("shape", [(0.1, 5), (0.5, 3), (1, 9), (2, 2)])
def test_the_range_of_calibrated_errors_is_that_of_a_sum_of_unequal_chances(n, shape):
    doubts = np.random.default_rng(n).beta(*shape, n)
    low, high = calibrated_range(doubts.sum(), (doubts * (1 - doubts)).sum())
    assert np.abs(np.array([low[0], high[0]]) - exact_range(doubts)).max() <= 1


def test_the_first_lines_say_what_to_use_and_what_it_brings():
    rng = np.random.default_rng(0)
    y = (rng.random(3000) < 0.03).astype(int)
    before = np.tile([0.7, 0.3], (3000, 1))
    after = np.tile([0.97, 0.03], (3000, 1))
    result = compare_probs({"before": before, "after": after}, y)
    automated = {name: automation(result, name, 0.05) for name in result.methods}
    lines = headline(result, recommend(result), automated)
    assert lines == (
        "Use the calibrated probabilities.",
        "100.0 % of the answers can be automated with at most 5 % errors (100.0 % before).",
    )


def test_a_risk_that_cannot_be_shown_is_reported_with_the_one_that_can():
    y = np.r_[np.ones(20, int), np.zeros(380, int)]
    result = compare_probs({"given": np.tile([0.95, 0.05], (400, 1))}, y)
    (line,) = headline(result, recommend(result), {"given": automation(result, "given", 0.01)})
    assert "400 labelled samples cannot guarantee at most 1 % errors; 7" in line


def falling(n=4000):
    """A comparison in which calibration improves the probabilities and lowers the share that can be
    automated.

    A third of the answers is always right, and the model knows which: it gives them 0.999. The
    calibration gives two thirds of the answers one confidence, which is right on average and hides
    the difference.
    """
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, n)
    right = rng.random(n) < np.array([1.0, 0.7, 0.5])[kind]
    before = np.array([0.999, 0.99, 0.95])[kind]
    after = np.array([0.85, 0.85, 0.51])[kind]
    named = {
        name: np.column_stack([c, 1 - c]) for name, c in (("before", before), ("after", after))
    }
    return compare_probs(named, (~right).astype(int), bootstrap=50)


def test_calibrated_probabilities_that_automate_less_are_not_simply_recommended():
    result = falling()
    automated = {name: automation(result, name, 0.1) for name in result.methods}
    assert automated["after"].coverage < automated["before"].coverage
    choice = recommend(result)
    assert choice.method == "after"
    lines = headline(result, choice, automated)
    assert lines[0].startswith(
        "The calibrated probabilities have the better confidence, but fewer answers"
    )
    assert "Use the calibrated probabilities" not in " ".join(lines)
    assert f"{100 * automated['before'].coverage:.1f} % can be automated" in lines[-1]


def test_a_rule_chosen_elsewhere_is_applied_to_the_rows_of_the_page():
    logits, y = calibrated_logits(4000)
    probs = softmax(logits)
    rule = decide(probs[:2000], y[:2000], risk=0.1)
    result = compare_probs({"given": probs[2000:]}, y[2000:], bootstrap=20)
    one = automation(result, "given", 0.1, decision=rule)
    accepted = probs[2000:].max(1) >= rule.threshold
    assert one.n_accepted == accepted.sum()
    assert one.n_errors == (probs[2000:].argmax(1) != y[2000:])[accepted].sum()
    assert one.decision is rule
    assert one.curve is None, "these rows alone would tell something else"
    curve = risk_curve(probs[:2000], y[:2000], (0.05, 0.1))
    applied = automation(result, "given", 0.1, decision=rule, curve=curve).curve
    assert applied.coverage == tuple(
        (probs[2000:].max(1) >= threshold).mean() for threshold in curve.thresholds
    )
    assert applied.coverage[1] == one.coverage, "headline and curve say the same"
