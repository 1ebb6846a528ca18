"""The rule of a decision: what it accepts, what it refuses to be, and that it travels with its
calibrator.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from recal import CalibratedClassifier, DecisionRule, TemperatureScaling, decide, load, save
from recal.errors import FileError, InputError, NotFittedError

# These tests are about other things than the warnings of small fits.
pytestmark = pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")

PROBS = [[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]]


def rule(*thresholds: float) -> DecisionRule:
    return DecisionRule(thresholds, risk=0.01, confidence=0.95)


def fitted() -> TemperatureScaling:
    return TemperatureScaling().fit([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 0.5]], [0, 1, 1, 0])


def test_a_confidence_equal_to_the_threshold_is_accepted():
    assert rule(0.8).accept(PROBS).tolist() == [True, True, False]
    assert rule(np.nextafter(0.8, 1)).accept(PROBS).tolist() == [True, False, False]


def test_each_answered_class_has_its_own_threshold_and_the_first_of_equals_is_the_answer():
    assert rule(0.5, 0.9).accept(PROBS).tolist() == [True, False, True]


def test_a_rule_for_other_classes_is_refused():
    with pytest.raises(InputError, match="each of 3 classes, got 2"):
        rule(0.1, 0.2, 0.3).accept(PROBS)


@pytest.mark.parametrize("threshold", [-0.1, 1.5, math.nan, True, "0.9"])
def test_what_is_no_threshold_is_refused(threshold):
    with pytest.raises(InputError, match=r"in \[0, 1\], or inf"):
        rule(threshold)


@pytest.mark.parametrize("share", [0, 1, 5, math.nan])
def test_shares_lie_strictly_between_zero_and_one(share):
    with pytest.raises(InputError, match="`risk` must be strictly"):
        DecisionRule((0.5,), risk=share, confidence=0.95)


def test_a_rule_is_saved_alone_and_with_its_calibrator(tmp_path):
    assert load(save(rule(0.5, math.inf), tmp_path / "rule.recal")) == rule(0.5, math.inf)
    calibrator = fitted()
    calibrator.decision_ = rule(0.6)
    again = load(save(calibrator, tmp_path / "calibrator.recal"))
    assert again.decision_ == rule(0.6)
    logits = [[3.0, 0.0], [0.1, 0.0]]
    assert again.accept(logits).tolist() == rule(0.6).accept(again.predict_proba(logits)).tolist()


def test_a_classifier_accepts_by_its_calibrators_rule():
    classifier = CalibratedClassifier(lambda batch: np.asarray(batch, float), TemperatureScaling())
    inputs = np.random.default_rng(0).normal(size=(60, 2)) * 2
    classifier.fit(inputs, (inputs[:, 1] > inputs[:, 0]).astype(int))
    with pytest.raises(NotFittedError, match="no decision rule"):
        classifier.accept(inputs)
    classifier.calibrator_.decision_ = rule(0.9)
    expected = rule(0.9).accept(classifier.predict_proba(inputs))
    assert classifier.accept(inputs).tolist() == expected.tolist()


def test_a_new_fit_forgets_the_rule_and_without_one_nothing_is_accepted():
    calibrator = fitted()
    calibrator.decision_ = rule(0.6)
    calibrator.fit([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], [0, 1, 1])
    with pytest.raises(NotFittedError, match="no decision rule"):
        calibrator.accept([[1.0, 0.0]])


def test_a_file_cannot_bring_a_rule_of_other_classes_or_something_else(tmp_path):
    for bad in (rule(0.1, 0.2, 0.3), 0.5):
        calibrator = fitted()
        calibrator.decision_ = bad
        with pytest.raises(FileError, match=r"classes|must be a DecisionRule"):
            load(save(calibrator, tmp_path / "bad.recal"))


def test_a_rule_made_on_confidences_reads_them_and_says_so_where_they_are_missing() -> None:
    probs = np.tile([0.6, 0.4], (400, 1))
    sure = np.where(np.arange(400) < 350, 0.9, 0.2)
    y = np.where(np.arange(400) < 350, 0, 1)
    rule = decide(probs, y, risk=0.05, confidences=sure).rule
    assert rule.reads == "confidence"
    assert 0.2 < rule.thresholds[0] <= 0.9
    np.testing.assert_array_equal(rule.accept(probs, sure), sure > 0.5)
    with pytest.raises(InputError, match="predict_confidence"):
        rule.accept(probs)
    with pytest.raises(InputError, match=r"row 0 is 1\.5"):
        rule.accept(probs[:1], [1.5])


def test_a_rule_of_an_older_file_reads_the_largest_probability_and_promises_confidence(tmp_path):
    rule = DecisionRule((0.5,), 0.05, 0.95, guarantee="average")
    path = save(rule, tmp_path / "new.recal")
    assert load(path) == rule
    new = path.read_bytes()
    added = rb', \\"(reads|guarantee)\\": \\"\w+\\"|, \\"digest\\": \\"\w+\\"'
    old = re.sub(added, b"", new)
    size = int.from_bytes(old[:8], "little") - (len(new) - len(old))
    (tmp_path / "old.recal").write_bytes(size.to_bytes(8, "little") + old[8:])
    assert load(tmp_path / "old.recal") == DecisionRule((0.5,), 0.05, 0.95)
