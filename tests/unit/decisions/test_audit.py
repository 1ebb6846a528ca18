"""Audits: draws with known probabilities, grades in any order, verdicts and new rules."""

from __future__ import annotations

import numpy as np
import pytest

from recal import Audit, DecisionRule, decide
from recal.decisions import Check
from recal.decisions.audit import Bets
from recal.errors import InputError, UnseenGroupsWarning

FRACTIONS = (-0.75, -0.25, 0.25, 0.75)
RULE = DecisionRule((0.8,), risk=0.1, confidence=0.95)
GROUPED = DecisionRule((0.8, 0.7), risk=0.1, confidence=0.95, groups=("a", "b"))


def answers(n: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return calibrated confidences, and which answers are right."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.5, 1.0, n)
    return confidence, rng.random(n) < confidence


@pytest.mark.parametrize(
    ("confidence", "n", "n_certain"),
    [
        (np.linspace(0.805, 0.999, 40), 8, 0),
        (np.r_[np.full(5, 0.81), np.full(10, 0.95), np.linspace(0.99, 0.9999, 35)], 20, 5),
    ],
)
def test_every_answer_is_drawn_with_the_probability_that_its_weight_says(confidence, n, n_certain):
    counts, weights = np.zeros(len(confidence)), np.ones(len(confidence))
    for seed in range(2000):
        audit = Audit(RULE, below=0.0, random_state=seed)
        rows = audit.draw(confidence, n)
        assert len(set(rows)) == n
        counts[rows] += 1
        weights[rows] = [check.weight for check in audit.pending]
    np.testing.assert_allclose(counts / 2000, n / len(confidence) / weights, atol=0.04)
    assert weights.max() <= 2.0
    assert counts[0] > 2 * counts[-1]
    assert (counts == 2000).sum() == n_certain


def test_mistakes_of_a_large_weight_leave_any_high_error_rate_possible() -> None:
    """No bet may lose more than its stake, or two lost bets would look like a won one."""
    audit = Audit(RULE)
    check = Check("answer", 0.99, accepted=True, group="", weight=1.9, group_weight=1.9)
    audit.replay([(check, True)] * 10)
    assert audit.interval[1] == 1.0
    assert audit.interval[0] > 0.1


@pytest.mark.parametrize("guarantee", ["confidence", "average"])
def test_a_refuted_average_is_said_to_allow_a_single_rule_more(guarantee) -> None:
    audit = Audit(DecisionRule((0.8,), risk=0.1, confidence=0.95, guarantee=guarantee))
    audit.draw(answers()[0], 50)
    audit.add(np.zeros(50))
    assert audit.alarm
    assert ("--guarantee average" in str(audit)) is (guarantee == "average")


def test_uniform_draws_weigh_the_same() -> None:
    audit = Audit(RULE, weighted=False)
    audit.draw(answers()[0], 50)
    assert {check.weight for check in audit.pending} == {1.0}


def test_some_answers_just_below_the_threshold_are_drawn() -> None:
    confidence, _ = answers()
    audit = Audit(RULE, below=0.2)
    rows = audit.draw(confidence, 200)
    below = confidence[rows] < 0.8
    assert 35 <= below.sum() <= 45
    assert confidence[rows].min() >= audit.band_from > 0.68


@pytest.mark.parametrize("weighted", [True, False])
def test_error_and_interval_are_near_the_truth(weighted: bool) -> None:
    confidence, right = answers(50_000)
    audit = Audit(RULE, weighted=weighted)
    audit.add(right[audit.draw(confidence, 2000)])
    truth = 1 - right[confidence >= 0.8].mean()
    low, high = audit.interval
    assert low <= truth <= high
    assert high - low < 0.06
    assert abs(audit.error - truth) < 0.02


def test_more_mistakes_than_promised_raise_the_alarm() -> None:
    confidence, right = answers()
    audit = Audit(DecisionRule((0.6,), risk=0.05, confidence=0.95))
    audit.add(right[audit.draw(confidence, 400)])
    assert audit.alarm
    assert audit.verdict == "refuted"
    assert audit.alarm_at is not None
    assert audit.alarm_at < 400
    stricter = audit.updated_rule()
    assert stricter is not None
    assert stricter.thresholds[0] > 0.6


def test_a_rule_that_accepts_too_little_can_be_loosened() -> None:
    confidence, right = answers(20_000)
    audit = Audit(DecisionRule((0.95,), risk=0.1, confidence=0.95), below=0.3)
    audit.add(right[audit.draw(confidence, 600)])
    assert audit.verdict == "can be loosened"
    looser = audit.updated_rule()
    assert looser is not None
    assert looser.thresholds == (audit.band_from,)
    accepted = looser.accept(confidence)
    assert 1 - right[accepted].mean() <= 0.1


def test_draws_of_accepted_answers_alone_do_not_loosen_a_rule() -> None:
    audit = Audit(RULE)
    audit.draw(answers()[0], 10)
    assert audit.band_from is not None
    served = Check("served", 0.9, True, "", 1.0, 1.0, with_band=False)
    assert not audit.replay([(served, False)] * 500).can_loosen
    assert audit.replay([(served._replace(with_band=True), False)] * 500).can_loosen


def test_without_evidence_the_rule_stays() -> None:
    confidence, right = answers()
    audit = Audit(RULE)
    assert np.isnan(audit.error)
    assert audit.interval == (0.0, 1.0)
    audit.add(right[audit.draw(confidence, 20)])
    assert audit.verdict == "open"
    assert audit.updated_rule() is None


def test_grades_may_come_in_parts_and_be_replayed() -> None:
    confidence, right = answers()
    whole, parts = Audit(RULE), Audit(RULE)
    whole.add(right[whole.draw(confidence, 60)])
    rows = parts.draw(confidence, 60)
    assert parts.add(right[rows[:30]]) == 30
    assert len(parts.pending) == 30
    parts.add(right[rows[30:]])
    assert parts.interval == whole.interval
    assert Audit(RULE).replay(whole.graded).interval == whole.interval


def test_each_group_has_its_own_alarm() -> None:
    rng = np.random.default_rng(0)
    groups = np.tile(["good", "bad"], 3000)
    confidence = np.full(6000, 0.9)
    right = rng.random(6000) < np.where(groups == "good", 0.99, 0.8)
    rule = DecisionRule((0.8, 0.8), risk=0.1, confidence=0.95, groups=("good", "bad"))
    audit = Audit(rule)
    audit.add(right[audit.draw(confidence, 600, groups=groups)])
    assert audit.alarm
    stricter = audit.updated_rule()
    assert stricter is not None
    assert stricter.thresholds == (0.8, np.inf), "nothing below 0.8 was checked"


def test_thresholds_by_class_only_rise():
    rng = np.random.default_rng(0)
    confidence, second = rng.uniform(0.5, 1.0, 6000), rng.random(6000) < 0.5
    right = rng.random(6000) < np.where(confidence < 0.9, 0.8, 0.99)
    audit = Audit(DecisionRule((0.6, 0.95), risk=0.1, confidence=0.95))
    accepted = confidence >= np.where(second, 0.95, 0.6)
    audit.add(right[audit.draw(confidence, 900, accepted=accepted)])
    first, last = audit.updated_rule().thresholds
    assert 0.8 < first < 0.95 == last


def test_the_band_lies_below_the_threshold_and_rules_by_group_have_none():
    confidence, groups = answers()[0], np.tile(["a", "new"], 2000)
    audit = Audit(DecisionRule((0.8,), risk=0.1, confidence=0.95, groups=("a",)), below=0.2)
    with pytest.warns(UnseenGroupsWarning, match="new"):
        rows = audit.draw(confidence, 200, groups=groups)
    assert (confidence[rows] >= 0.8).all()
    withheld = Audit(RULE, below=0.2)
    rows = withheld.draw(confidence, 200, accepted=(confidence >= 0.8) & (groups == "a"))
    assert withheld.band_from < 0.8
    assert not ((confidence[rows] >= 0.8) & (groups[rows] == "new")).any()


def test_a_decision_can_be_audited() -> None:
    confidence, right = answers()
    assert Audit(decide(confidence, right, risk=0.1)).rule.risk == 0.1


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: Audit("rule"), "str"),
        (lambda: Audit(RULE, below=1.0), "1.0"),
        (lambda: Audit(RULE).draw([0.9, 0.95], 0), "0"),
        (lambda: Audit(RULE).draw([0.1, 0.2], 1), "none"),
        (lambda: Audit(RULE).draw([0.9, 1.2], 1), "1.2"),
        (lambda: Audit(RULE).draw([0.9, 0.9], 1, accepted=[True]), "2"),
        (lambda: Audit(RULE).draw(0.9, 1), "confidences"),
        (lambda: Audit(RULE).draw([0.9, 0.9], 1, accepted=["no", "no"]), "accepted"),
        (lambda: Audit(GROUPED).draw([0.9], 1, accepted=[True]), "groups"),
        (lambda: Audit(GROUPED).draw([0.9], 1, accepted=[True], groups=["c"]), "'c'"),
        (lambda: Audit(RULE).add([True]), "1 grades"),
    ],
)
def test_bad_input_is_refused(call, named: str) -> None:
    with pytest.raises(InputError, match=named):
        call()


def test_grades_must_be_right_or_wrong() -> None:
    audit = Audit(RULE)
    audit.draw(answers()[0], 2)
    for grades in (["yes", "no"], [2, 0], [np.nan, 1]):
        with pytest.raises(InputError, match="grades"):
            audit.add(grades)
    assert len(audit.pending) == 2


def test_capital_is_a_fair_game():
    """One bet multiplies the capital by 1 on average over a uniform rank."""
    after = []
    for rank in (np.arange(1000) + 0.5) / 1000:
        bets = Bets(FRACTIONS, 3, jump=0.01, reserve=0.5)
        bets.play(np.full(3, 2 * rank - 1))
        after.append(bets.capital)
    np.testing.assert_allclose(np.mean(after, axis=0), 1.0, atol=1e-12)


def test_half_is_bet_at_once_and_the_rest_is_kept_back():
    bets = Bets(FRACTIONS, reserve=0.5)
    assert bets.capital[0] == pytest.approx(1.0)
    bets.play([1.0])
    released = 0.5 - 0.5 * (1 + 1 / 20) ** -0.2
    players = (0.125 + released / 4) * (1 + np.array(FRACTIONS))
    assert bets.capital[0] == pytest.approx(players.sum() + 0.5 - released)


def test_many_bets_at_once_give_the_same_capital():
    outcomes = np.random.default_rng(0).uniform(-1, 1.2, (300, 5))
    whole, single = Bets((0.1, 0.5), 5), Bets((0.1, 0.5), 5)
    whole.play(outcomes)
    for row in outcomes:
        single.play(row)
    np.testing.assert_allclose(whole.capital, single.capital, rtol=1e-9)
    np.testing.assert_allclose(whole.highest, single.highest, rtol=1e-9)
    assert (whole.highest >= whole.capital).all()


def test_capital_never_overflows():
    bets = Bets((0.5,))
    bets.play(np.full((5000, 1), 100.0))
    assert np.isfinite(bets.capital).all()
