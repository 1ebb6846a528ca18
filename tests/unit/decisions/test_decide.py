"""The threshold with a guarantee: exact bounds, a search that does not spend them twice, ties,
costs, classes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from recal import decide
from recal.decisions.certify import _sequence, certified, chance_of_so_few, ranked
from recal.errors import InputError
from recal.metrics.intervals import rate_interval


def model(n: int, seed: int, sharpness: float = 1.5, k: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Answers whose true probabilities are known, and claimed too high."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * 3
    honest = np.exp(logits)
    honest /= honest.sum(1, keepdims=True)
    y = (honest.cumsum(1) > rng.random((n, 1))).argmax(1)
    claimed = np.exp(sharpness * logits)
    return claimed / claimed.sum(1, keepdims=True), y


def binary(confidence, wrong) -> tuple[np.ndarray, np.ndarray]:
    confidence = np.asarray(confidence, dtype=float)
    return np.column_stack([confidence, 1 - confidence]), np.asarray(wrong, dtype=int)


def test_the_chance_of_so_few_is_the_binomial_sum():
    for errors, count, risk in [(0, 10, 0.1), (3, 20, 0.25), (20, 20, 0.3), (0, 0, 0.1)]:
        summed = sum(
            math.comb(count, i) * risk**i * (1 - risk) ** (count - i) for i in range(errors + 1)
        )
        assert chance_of_so_few(errors, count, risk) == pytest.approx(summed, rel=1e-12)


def test_the_interval_of_a_share_is_clopper_and_pearsons():
    low, high = rate_interval(
        7, 50, 0.9
    )  # the two shares at which 7 of 50 is in either tail with 5 %
    assert 1 - chance_of_so_few(6, 50, low) == pytest.approx(0.05, rel=1e-9)
    assert chance_of_so_few(7, 50, high) == pytest.approx(0.05, rel=1e-9)


def test_299_right_answers_show_one_per_cent_and_298_do_not():
    enough, few = np.linspace(0.8, 0.9, 299), np.linspace(0.8, 0.9, 298)
    assert decide(*binary(enough, np.zeros(299))).coverage == 1.0
    refused = decide(*binary(few, np.zeros(298)))
    assert not refused.possible
    assert refused.threshold == math.inf
    assert refused.coverage == 0.0
    assert 0 < refused.needed < 600, "a second sample of this kind should do"
    assert not refused.accept(binary(few, np.zeros(298))[0]).any()


def test_the_accepted_set_is_the_one_that_was_counted():
    probs, y = model(4000, 0)
    found = decide(probs, y, risk=0.02)
    accepted = found.accept(probs)
    assert accepted.sum() == found.n_accepted > 100
    assert (probs.argmax(1) != y)[accepted].sum() == found.n_errors
    assert chance_of_so_few(found.n_errors, found.n_accepted, 0.02) <= 0.05
    assert found.interval == rate_interval(found.n_accepted, 4000, 0.95)


def test_equal_confidences_stay_together():
    confidence = np.repeat([0.95, 0.9, 0.7], [400, 400, 200])
    wrong = np.zeros(1000)
    wrong[[450, 460, 470, 480, 490, *range(810, 850)]] = 1  # 5 in the second tie, 40 in the third
    found = decide(*binary(confidence, wrong), risk=0.02)
    assert (found.n_accepted, found.threshold) == (800, 0.8)
    assert certified(ranked(confidence, wrong.astype(bool)), 0.02, 0.05).tolist() == [400, 800]


def test_row_order_does_not_matter():
    probs, y = model(3000, 1)
    order = np.random.default_rng(0).permutation(3000)
    assert (
        decide(probs, y, risk=0.05).to_dict() == decide(probs[order], y[order], risk=0.05).to_dict()
    )


def test_one_confident_mistake_does_not_end_the_search():
    confidence = np.linspace(0.99, 0.6, 3000)
    wrong = np.zeros(3000)
    wrong[0] = 1
    found = decide(*binary(confidence, wrong))
    assert found.coverage == 1.0


def test_a_sequence_that_failed_is_not_taken_up_again_at_its_old_level():
    """Between two beginnings nothing may be certified once a set failed, however good later sets
    look.
    """
    wrong = np.zeros(290, bool)
    wrong[0] = True
    assert chance_of_so_few(1, 290, 0.05) < 1e-4
    sizes = certified(ranked(np.linspace(0.99, 0.6, 290), wrong), 0.05, 0.05)
    assert not len(sizes) or sizes.min() > 200, (
        "its first set fails; only a later beginning may certify"
    )
    assert not len(certified(ranked(np.linspace(0.99, 0.6, 100), wrong[:100]), 0.05, 0.05))


def test_no_more_error_probability_is_spent_than_was_allowed():
    for n in (60, 300, 2000, 100_000):
        planned, weights = _sequence(n, 0.05, 0.05)
        assert weights.sum() == pytest.approx(0.05)
        assert planned[-1] == n
        assert (np.diff(planned) > 0).all()


def test_the_search_is_the_fallback_procedure_read_step_by_step():
    seen = set()
    for seed in range(300):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(100, 4000))
        answers = ranked(rng.random(n), rng.random(n) < rng.uniform(0.01, 0.05))
        planned, weights = _sequence(n, 0.05, 0.05)
        passed, carried = set(), 0.0
        for size, weight in zip(planned.tolist(), weights.tolist()):
            allowed = weight + carried
            good = allowed > 0 and chance_of_so_few(answers.errors[size], size, 0.05) <= allowed
            carried = allowed if good else 0.0
            passed |= {size} if good else set()
        assert certified(answers, 0.05, 0.05).tolist() == sorted(passed)
        seen.add(len(passed) in (0, len(planned)))
    assert seen == {True, False}, "all, none and some"


def test_costs_choose_the_cheapest_certified_set():
    probs, y = model(5000, 2)
    found = decide(probs, y, cost_error=20, cost_review=1)
    assert found.risk == 0.05
    confidence, wrong = probs.max(1), probs.argmax(1) != y

    def cost(threshold):
        accepted = confidence >= threshold
        return (20 * (wrong & accepted).sum() + (~accepted).sum()) / 5000

    assert found.cost == pytest.approx(cost(found.threshold))
    largest = decide(probs, y, risk=0.05)
    assert found.n_accepted < largest.n_accepted, (
        "the last answers accepted at 5 % cost more than a review"
    )
    order = ranked(confidence, wrong)
    best = min(cost(order.threshold(int(size))) for size in certified(order, 0.05, 0.05))
    assert found.cost == pytest.approx(best)
    assert found.cost < 1, "less than reviewing everything"


def test_each_class_is_certified_with_its_share_of_the_error_probability():
    probs, y = model(6000, 3)
    found = decide(probs, y, risk=0.05, per_class=True)
    answers = probs.argmax(1)
    for column, part in enumerate(found.parts):
        mine = answers == column
        alone = decide(
            *binary(probs[mine].max(1), y[mine] != column), risk=0.05, confidence=1 - 0.05 / 3
        )
        assert (part.n_samples, part.n_accepted, part.n_errors) == (
            mine.sum(),
            alone.n_accepted,
            alone.n_errors,
        )
    assert found.n_accepted == found.accept(probs).sum()
    with pytest.raises(InputError, match="Each class has its own threshold"):
        _ = found.threshold


def test_a_class_that_is_never_answered_is_never_accepted():
    probs, y = model(2000, 4)
    wide = np.column_stack([probs, np.zeros(2000)])
    found = decide(wide, y, risk=0.1, per_class=True)
    assert found.thresholds[3] == math.inf
    assert found.parts[3].needed is None


def test_hopeless_samples_are_told_so():
    found = decide(*binary(np.linspace(0.9, 0.6, 2000), np.arange(2000) % 10 == 0))
    assert found.needed is None
    assert "More labels would not change that" in str(found)


def test_the_number_of_further_samples_is_about_right():
    """With as many more as it says, more than half of fresh samples certify something."""
    probs, y = model(400, 5)
    refused = decide(probs, y, risk=0.02)
    assert refused.needed is not None
    assert refused.needed > 0
    n = 400 + refused.needed
    hits = [decide(*model(n, 100 + seed), risk=0.02).possible for seed in range(40)]
    assert np.mean(hits) > 0.5


def test_labels_by_name_and_missing_classes():
    probs, y = model(3000, 6)
    names = ["dog", "ant", "cat"]
    assert (
        decide(probs, np.array(names)[y], risk=0.05, classes=names).to_dict()
        == decide(probs, y, risk=0.05).to_dict()
    )
    with pytest.raises(InputError, match=r"`risk` must be strictly between 0 and 1.*got 5"):
        decide(probs, y, risk=5)
    with pytest.raises(InputError, match="`cost_review` must be a positive number, got None"):
        decide(probs, y, cost_error=5)
    with pytest.raises(InputError, match="nothing to decide"):
        decide(probs, y, cost_error=1, cost_review=2)


@pytest.mark.parametrize("ties", [False, True])
def test_the_guarantee_is_kept(ties):
    """Over many samples, the true risk of what is accepted exceeds the asked one in at most 5 %
    (seeded, 600 draws).
    """
    broken = 0
    for seed in range(600):
        probs, y = model(600, 1000 + seed)
        if ties:  # honest answers in ten steps of confidence
            probs = np.round(probs, 1)
            probs /= probs.sum(1, keepdims=True)
        found = decide(probs, y, risk=0.1)
        broken += found.possible and _true_risk(found.threshold, ties) > 0.1
    assert broken <= 600 * 0.05 + 2 * math.sqrt(600 * 0.05 * 0.95)


_TRUTH: dict[bool, tuple[np.ndarray, np.ndarray]] = {}


def _true_risk(threshold: float, ties: bool) -> float:
    if ties not in _TRUTH:
        probs, y = model(400_000, 99)
        if ties:
            probs = np.round(probs, 1)
            probs /= probs.sum(1, keepdims=True)
        order = ranked(probs.max(1), probs.argmax(1) != y)
        _TRUTH[ties] = (order.confidence, order.errors)
    confidence, errors = _TRUTH[ties]
    count = np.searchsorted(-confidence, -threshold, side="right")
    return float(errors[count] / count)


def test_costs_that_allow_no_mistake_at_all_are_answered_and_not_an_error():
    probs = np.tile([0.9, 0.1], (50, 1))
    found = decide(probs, np.zeros(50, int), cost_error=1e300, cost_review=1e-300)
    assert not found.possible


@pytest.mark.parametrize("risk", [0.01, 0.0104, 0.0109, 0.01099, 0.00996])
def test_the_suggested_risk_is_printed_as_another_number_than_the_risk(risk):
    """Just above a risk of 1 %, the lowest risk must not be printed as 1 %, too."""
    right = np.full(294, True)  # all right: enough for about 1.01 %
    decision = replace(decide(np.full(294, 0.9), right, risk=0.005), supported_risk=risk * 1.001)
    decision = replace(decision, rule=replace(decision.rule, risk=risk))
    assert decision.suggested_risk >= decision.supported_risk
    for digits in (2, 3):
        assert f"{decision.suggested_risk:.{digits}g}" != f"{risk:.{digits}g}"
