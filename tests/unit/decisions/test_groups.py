"""Decisions by group, by cluster, and from the confidence of each answer alone."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from recal import DecisionRule, decide, load, save
from recal.decisions import risk_curve
from recal.decisions.certify import chance_of_so_few, one_row_per_cluster
from recal.errors import InputError, UnseenGroupsWarning
from recal.metrics.intervals import rate_interval
from recal.reporting.verdict import risk_by_group
from tests.problems import graded_confidences as graded


def as_probs(confidence: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.column_stack([confidence, 1 - confidence]), np.where(right, 0, 1)


def test_confidences_alone_decide_as_probabilities_do():
    confidence, right = graded(3000, 1)
    alone = decide(confidence, right, risk=0.05)
    both = decide(*as_probs(confidence, right), risk=0.05)
    assert alone.thresholds == both.thresholds
    assert alone.n_errors == both.n_errors > 0
    assert alone.rule.reads == "confidence"
    np.testing.assert_array_equal(alone.accept(confidence), confidence >= alone.threshold)
    np.testing.assert_array_equal(both.accept(confidence), alone.accept(confidence))
    assert decide(confidence, right.astype(int), risk=0.05) == alone


def test_confidences_alone_have_no_classes():
    confidence, right = graded(300, 0)
    with pytest.raises(InputError, match="probabilities of all classes"):
        decide(confidence, right, per_class=True)
    with pytest.raises(InputError, match="probabilities of all classes"):
        DecisionRule((0.5, 0.6), 0.05, 0.95).accept(confidence)


def test_each_group_is_decided_with_its_share_of_the_error_probability():
    confidence, right = graded(6000, 1)
    groups = np.random.default_rng(0).choice(["a", "b", "c"], 6000)
    decision = decide(confidence, right, risk=0.05, groups=groups)
    for part in decision.parts:
        rows = groups == part.name
        alone = decide(confidence[rows], right[rows], risk=0.05, confidence=1 - 0.05 / 3)
        for name in ("threshold", "n_accepted", "n_errors"):
            assert getattr(part, name) == getattr(alone, name)
        assert part.interval == rate_interval(part.n_errors, part.n_accepted, 0.95)
    assert decision.accept(confidence, groups=groups).sum() == decision.n_accepted
    assert decision.rule.groups == ("a", "b", "c")


def test_a_threshold_per_class_is_a_threshold_per_group_of_predictions():
    rng = np.random.default_rng(2)
    probs = rng.dirichlet([0.2] * 3, 5000)
    y = (probs.cumsum(axis=1) > rng.random((5000, 1))).argmax(axis=1)
    by_class = decide(probs, y, risk=0.05, per_class=True)
    by_group = decide(probs, y, risk=0.05, groups=probs.argmax(axis=1))
    assert by_class.thresholds == by_group.thresholds
    np.testing.assert_array_equal(
        by_class.accept(probs), by_group.accept(probs, groups=probs.argmax(axis=1))
    )


def test_groups_without_evidence_accept_nothing_and_say_what_they_need():
    confidence, right = graded(3000, 3)
    groups = np.where(np.arange(3000) < 30, "small", "large")
    decision = decide(confidence, right, risk=0.05, groups=groups)
    small = next(part for part in decision.parts if part.name == "small")
    assert (small.threshold, small.n_accepted) == (math.inf, 0)
    assert small.needed > 0
    assert not decision.accept(confidence, groups=groups)[:30].any()
    assert decision.table[0] is small, "worst first"
    assert f"1 of 2 thresholds accept nothing yet: small ({small.more_labels()})" in str(decision)
    plain = decision.to_dict()
    assert plain["by_group"][0]["group"] == "small"
    assert plain["by_group"][0]["threshold"] is None
    json.dumps(plain, allow_nan=False)


def test_unseen_groups_accept_nothing_and_say_so():
    rule = DecisionRule((0.5, 0.9), 0.05, 0.95, groups=("a", "b"))
    with pytest.warns(UnseenGroupsWarning, match="1 groups .*such as 'c'"):
        accepted = rule.accept([0.7, 0.7, 0.99], groups=["a", "b", "c"])
    assert accepted.tolist() == [True, False, False]
    with pytest.raises(InputError, match="pass groups="):
        rule.accept([0.7])


def test_a_rule_by_group_is_saved(tmp_path):
    rule = DecisionRule((0.5, math.inf), 0.05, 0.95, "confidence", ("a", "b"))
    assert load(save(rule, tmp_path / "rule.recal")) == rule
    for groups in (("a",), ("a", "a"), ("a", 1)):
        with pytest.raises(InputError, match="groups"):
            DecisionRule((0.5, 0.6), 0.05, 0.95, groups=groups)


def test_groups_that_keep_the_rule_are_rarely_called_broken():
    """The true risk in every group is the risk of the rule: at most 5 % of draws may name any
    group.
    """
    accepted, groups = np.ones(2000, bool), np.repeat(np.arange(20), 100)
    rng, named = np.random.default_rng(5), 0
    for _ in range(300):
        rows = risk_by_group(accepted, rng.random(2000) >= 0.1, groups, 0.1)
        named += any(row.broken for row in rows)
    assert 0 < named / 300 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 300)


def test_a_broken_group_needs_the_binomial_tail_at_holms_level():
    tail = [1 - float(chance_of_so_few(k - 1, 100, 0.1)) for k in range(1, 40)]
    fewest = 1 + next(i for i, chance in enumerate(tail) if chance <= 0.05 / 2)
    for errors, broken in ((fewest - 1, False), (fewest, True)):
        right = np.ones(200, bool)
        right[:errors] = False
        rows = risk_by_group(np.ones(200, bool), right, np.repeat([0, 1], 100), 0.1)
        assert rows[0].broken is broken
        assert rows[0].interval == rate_interval(errors, 100, 0.95)


def clustered(n_clusters: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return copies: the rows of a cluster are right or wrong together."""
    confidence, right = graded(n_clusters, seed)
    return tuple(np.repeat(values, size) for values in (confidence, right, np.arange(n_clusters)))


@pytest.mark.filterwarnings("ignore::recal.errors.DependentRowsWarning")
def test_copies_of_a_row_count_once():
    confidence, right, clusters = clustered(1500, 10, 6)
    once = decide(confidence[::10], right[::10], risk=0.05)
    decision = decide(confidence, right, risk=0.05, clusters=clusters)
    assert decision.threshold == once.threshold
    assert decision.n_accepted == 10 * once.n_accepted > 0
    assert decision.n_clusters == 1500
    assert decision.parts[0].interval == pytest.approx(once.parts[0].interval)
    assert decision.interval == pytest.approx(once.interval, abs=0.002)
    assert decide(confidence, right, risk=0.05).n_accepted > decision.n_accepted


def test_clusters_of_one_row_change_nothing():
    confidence, right = graded(2000, 7)
    alone = decide(confidence, right, risk=0.05)
    assert decide(confidence, right, risk=0.05, clusters=range(2000)).rule == alone.rule


@pytest.mark.filterwarnings("ignore::recal.errors.DependentRowsWarning")
def test_the_guarantee_holds_for_copies_only_with_clusters():
    """Ten copies of 150 rows whose error rate is just above the risk: whatever is accepted breaks
    the guarantee.
    """
    rng, broken = np.random.default_rng(8), {True: 0, False: 0}
    for _ in range(200):
        confidence, right = np.repeat(rng.random(150), 10), np.repeat(rng.random(150) >= 0.1, 10)
        for with_clusters in broken:
            clusters = np.repeat(np.arange(150), 10) if with_clusters else None
            broken[with_clusters] += decide(confidence, right, risk=0.1, clusters=clusters).possible
    assert broken[True] / 200 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 200)
    assert broken[False] / 200 > 0.2


def test_one_row_of_each_cluster_is_drawn_whatever_its_size():
    sizes = np.tile([1, 2, 40], 100)
    clusters = np.repeat(np.arange(300), sizes)
    rng = np.random.default_rng(9)
    confidence, wrong = rng.random(len(clusters)), rng.random(len(clusters)) < 0.5
    rows = one_row_per_cluster(confidence, wrong, clusters)
    assert clusters[rows].tolist() == list(range(300))
    places = rows - (np.cumsum(sizes) - sizes)
    assert 10 < places[sizes == 40].mean() < 30, "any row of a cluster"
    order = rng.permutation(len(clusters))
    again = one_row_per_cluster(confidence[order], wrong[order], clusters[order])
    assert sorted(confidence[order][again]) == sorted(confidence[rows])


def test_a_curve_holds_what_decide_finds_at_each_risk():
    for confidence, right, clusters in (clustered(800, 5, 12), (*graded(800, 12), None)):
        curve = risk_curve(confidence, right, risks=(0.05, 0.1, 0.2), clusters=clusters)
        for index, risk in enumerate(curve.risks):
            found = decide(confidence, right, risk=risk, clusters=clusters)
            assert curve.thresholds[index] == found.threshold
            assert curve.coverage[index] == found.coverage
            assert curve.intervals[index] == pytest.approx(found.interval)
            assert curve.seen[index] >= curve.coverage[index]


def test_groups_and_clusters_are_one_per_sample():
    confidence, right = graded(50, 13)
    for name in ("groups", "clusters"):
        with pytest.raises(InputError, match=f"`{name}` must have one value per sample, 50"):
            decide(confidence, right, **{name: [1, 2]})
    with pytest.raises(InputError, match="`groups` and `per_class` cannot be combined"):
        decide(*as_probs(confidence, right), groups=right, per_class=True)
