"""The threshold with a guarantee: exact bounds, a search that does not spend them twice, ties,
costs, classes.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from recal import decide
from recal.decisions import certify
from recal.decisions.certify import certified, chance_of_so_few, passed_in_order, ranked
from recal.errors import InputError
from recal.metrics.intervals import rate_interval
from tests.problems import probs_and_labels


def model(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Answers whose true probabilities are known, and claimed too high."""
    return probs_and_labels(n, 3, seed, spread=3, sharpness=1.5)


def binary(confidence, wrong) -> tuple[np.ndarray, np.ndarray]:
    confidence = np.asarray(confidence, dtype=float)
    return np.column_stack([confidence, 1 - confidence]), np.asarray(wrong, dtype=int)


def test_the_chance_of_so_few_is_the_binomial_sum():
    for errors, count, risk in [(0, 10, 0.1), (3, 20, 0.25), (20, 20, 0.3), (0, 0, 0.1)]:
        summed = sum(
            math.comb(count, i) * risk**i * (1 - risk) ** (count - i) for i in range(errors + 1)
        )
        assert chance_of_so_few(errors, count, risk) == pytest.approx(summed, rel=1e-12)


def test_299_right_answers_show_one_per_cent_and_298_do_not():
    enough, few = np.linspace(0.8, 0.9, 299), np.linspace(0.8, 0.9, 298)
    assert decide(*binary(enough, np.zeros(299))).coverage == 1.0
    refused = decide(*binary(few, np.zeros(298)))
    assert not refused.possible
    assert refused.threshold == math.inf
    assert refused.coverage == 0.0
    assert refused.parts[0].interval == (0.0, 1.0)
    assert 0 < refused.needed < 600, "a second sample of this kind should do"
    assert refused.more_labels() == refused.parts[0].more_labels() in str(refused)
    assert "about 100% of the answers" in str(refused), "one answer more certifies all of them"
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
    turned = decide(probs[order], y[order], risk=0.05)
    assert decide(probs, y, risk=0.05).to_dict() == turned.to_dict()


@pytest.mark.parametrize("place", [0, 3, 40])
def test_a_confident_mistake_does_not_end_the_search(place):
    wrong = np.arange(3000) == place
    assert decide(*binary(np.linspace(0.99, 0.6, 3000), wrong)).coverage == 1.0


def test_nothing_beyond_a_set_that_failed_is_certified():
    """Sets are tested in a fixed order: a later set may not pass because it looks better."""
    assert passed_in_order([0, 1, 9, 0], [60, 100, 120, 200], 0.05, 0.05) == 2
    assert passed_in_order([9, 0], [60, 100], 0.05, 0.05) == 0
    assert passed_in_order([0, 0], [60, 100], 0.05, 0.05) == 2
    rng = np.random.default_rng(0)
    for _ in range(50):
        answers = ranked(rng.random(2000), rng.random(2000) < 0.04)
        sizes = certified(answers, 0.05, 0.05)
        assert (chance_of_so_few(answers.errors[sizes], sizes, 0.05) <= 0.05).all()


def test_labels_of_a_set_do_not_decide_that_the_search_begins_there():
    """Whatever the labels above the start are, the search begins at the same size."""
    rng = np.random.default_rng(1)
    confidence = np.sort(rng.uniform(0.6, 1.0, 1500))[::-1]
    sizes, starts = certify.growing_sizes(1500, 0.1, 0.05), set()
    wrong = rng.random(1500) < 1 - confidence
    begin = certify._start(ranked(confidence, wrong), sizes, 0.1, 0.05)
    assert sizes[0] < begin < 1500
    for _ in range(20):
        other = np.r_[rng.random(begin) < rng.random(), wrong[begin:]]
        starts.add(certify._start(ranked(confidence, other), sizes, 0.1, 0.05))
    assert starts == {begin}


def test_more_labels_do_not_accept_less():
    """With a flat error rate near the top, a search from the strictest set dies at some sizes."""
    shares = []
    for n in range(1000, 2200, 200):
        found = []
        for seed in range(30):
            rng = np.random.default_rng(seed)
            doubt = 0.05 + 0.5 * rng.random(n)
            right = rng.random(n) >= doubt
            found.append(decide(1 - doubt, right, risk=0.15).coverage)
        shares.append(np.mean(found))
    assert min(np.diff(shares)) > -0.03, shares
    assert 0.12 < shares[0] < shares[-1], shares


def test_overconfident_numbers_accept_as_much_as_calibrated_ones():
    rng = np.random.default_rng(2)
    doubt = 0.05 + 0.5 * rng.random((40, 1000))
    right = rng.random((40, 1000)) >= doubt
    odds = ((1 - doubt) / doubt) ** 3
    shares = [
        np.mean([decide(c, r, risk=0.2).coverage for c, r in zip(confidence, right)])
        for confidence in (1 - doubt, odds / (1 + odds))
    ]
    assert shares[1] > 0.95 * shares[0] > 0.3


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


def test_a_class_that_is_never_answered_is_never_accepted():
    probs, y = model(2000, 4)
    wide = np.column_stack([probs, np.zeros(2000)])
    found = decide(wide, y, risk=0.1, per_class=True)
    assert found.thresholds[3] == math.inf
    assert found.parts[3].needed is None


def test_labels_by_name_and_missing_classes():
    probs, y = model(3000, 6)
    names = ["dog", "ant", "cat"]
    named = decide(probs, np.array(names)[y], risk=0.05, classes=names)
    assert named.to_dict() == decide(probs, y, risk=0.05).to_dict()
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
        if ties:  # calibrated answers in ten steps of confidence
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


def test_samples_that_no_number_of_labels_can_help_are_named():
    found = decide(*binary(np.linspace(0.9, 0.6, 2000), np.arange(2000) % 10 == 0))
    assert (found.needed, found.needed_most) == (None, None)
    assert found.supported_risk is not None
    assert found.supported_risk > 0.1


def test_a_small_share_that_more_labels_would_accept_is_not_zero():
    right = np.r_[np.arange(4985) % 2 == 0, np.ones(15, bool)]
    found = decide(np.linspace(0.5, 1.0, 5000), right, risk=0.05)
    assert 0 < found.parts[0].needed_share < 0.005
    assert "about 0%" not in str(found)


def test_the_range_of_further_labels_holds_the_number_that_certifies_half_of_the_time():
    def possible(n: int) -> float:
        return float(np.mean([decide(*model(n, 100 + s), risk=0.02).possible for s in range(15)]))

    inside = []
    for seed in range(8):
        found = decide(*model(300, seed), risk=0.02)
        assert found.needed is not None
        assert 30 <= found.needed <= 2700, "a tenth to ten times the samples"
        most = 2700 if found.needed_most is None else found.needed_most
        inside.append(possible(300 + found.needed) <= 0.7 and possible(300 + most) >= 0.5)
    assert sum(inside) >= 6


@pytest.mark.parametrize("seed", [8, 24, 46])
def test_a_risk_that_is_advised_accepts_something(seed):
    rng = np.random.default_rng(seed)
    confidence = rng.beta(3, 1.5, 240)
    found = decide(confidence, rng.random(240) < 0.97 * confidence, risk=0.1)
    assert found.options
    assert min(option.coverage for option in found.options) >= 0.01


def test_what_can_be_had_is_named_when_nothing_can_be_accepted():
    rng = np.random.default_rng(3)
    doubt = 0.3 * rng.random(120)
    right = rng.random(120) >= doubt
    found = decide(1 - doubt, right, risk=0.05)
    assert not found.possible
    own, other = found.options
    assert own.guarantee == "confidence"
    assert own.risk == found.supported_risk > 0.05
    again = decide(1 - doubt, right, risk=own.risk)
    assert again.coverage == own.coverage > 0
    average = decide(1 - doubt, right, risk=other.risk, guarantee="average")
    assert average.coverage == other.coverage > 0
    lines = found.refusal().splitlines()[1:]
    assert f"--risk {own.risk:g}," in lines[0]
    assert f"--risk {other.risk:g} --guarantee average" in lines[1]
    assert str(found).count("\n") == len(lines)


def test_how_likely_a_count_is_if_the_promise_holds():
    rule = decide(np.full(400, 0.9), np.ones(400, bool), risk=0.05).rule
    assert 1 - chance_of_so_few(18, 337, 0.05) == pytest.approx(0.33, abs=0.005)
    assert rule.note_on(16, 337) == ""
    assert "33%" in rule.note_on(19, 337)


def test_a_higher_risk_is_named_only_if_it_accepts_a_useful_share():
    right = np.r_[np.arange(9970) % 2 == 0, np.ones(30, bool)]
    found = decide(np.linspace(0.5, 1.0, 10_000), right, risk=0.05)
    assert decide(np.linspace(0.5, 1.0, 10_000), right, risk=0.11).possible  # 0.3 % of the answers
    assert [one.coverage >= 0.01 for one in found.options] == [True] * len(found.options)
    assert ", 0.3% of the answers" not in found.refusal()
