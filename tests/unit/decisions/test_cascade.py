"""Cascades: when to accept, which system to ask next, when to ask a person."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from recal import PanelCalibration, load, plan_cascade, save
from recal.decisions import CascadeRule
from recal.decisions.cascade import (
    NEVER,
    Labelled,
    Policies,
    cheapest,
    follow,
    likely_start,
    list_policies,
)
from recal.errors import InputError, NotFittedError, SameRowsWarning, UnseenGroupsWarning
from tests.problems import asked, rows_of

COSTS = {"small": 1.0, "medium": 3.0, "large": 20.0}


@pytest.fixture(scope="module", name="problem")
def three_systems():
    return asked(4000, {"small": 0.6, "medium": 0.7, "large": 0.85}, seed=2)


@pytest.fixture(scope="module", name="panel")
def fitted(problem):
    truth, answers, signals = problem
    rows = slice(0, 600)
    return PanelCalibration().fit(rows_of(answers, rows), truth[rows], rows_of(signals, rows))


@pytest.fixture(scope="module", name="rule")
def planned(problem, panel):
    return plan(problem, panel)


def plan(problem, panel, rows=slice(600, 1800), **options):
    truth, answers, signals = problem
    given = {"costs": COSTS, "review_cost": 100.0, "risk": 0.08, **options}
    some = rows_of(answers, rows), truth[rows], rows_of(signals, rows)
    return plan_cascade(panel, *some, **given)


def test_it_keeps_its_promise_for_less_money_than_all_systems(problem, rule):
    truth, answers, signals = problem
    rows = slice(1800, None)
    outcome = rule.apply(rows_of(answers, rows), rows_of(signals, rows))
    accepted = outcome.next == "accept"
    wrong = outcome.answer != truth[rows]
    chance = np.sqrt(0.08 * 0.92 / accepted.sum())  # of this sample
    assert wrong[accepted].mean() < 0.08 + 2 * chance
    assert abs(accepted.mean() - rule.share) < 0.03
    spent = np.cumsum(list(COSTS.values()))[outcome.asked - 1].mean()
    assert abs(spent - rule.cost) < 1.0
    assert rule.total_cost == pytest.approx(rule.cost + 100.0 * (1.0 - rule.share))
    assert rule.others[0] == "all systems"
    assert rule.share > rule.other_shares[0] - 0.03
    assert rule.cost < 0.8 * rule.other_costs[0]
    assert set(outcome.next) == {"accept", "review"}


def test_asking_one_after_the_other_ends_where_the_full_row_does(problem, rule):
    _, answers, signals = problem
    rows = slice(1800, 2300)
    every, values = rows_of(answers, rows), rows_of(signals, rows)
    so_far = {name: np.full(500, None, dtype=object) for name in COSTS}
    known = {name: {"stated": np.full(500, np.nan)} for name in COSTS}
    step = rule.next(so_far, known)
    assert set(step) == {"small"}
    for _ in COSTS:
        for name in COSTS:
            chosen = step == name
            so_far[name] = np.where(chosen, every[name], so_far[name])
            old, new = known[name]["stated"], values[name]["stated"]
            known[name] = {"stated": np.where(chosen, new, old)}
        step = rule.next(so_far, known)
    assert (step == rule.next(every, values)).all()
    assert (rule.predict(so_far, known) == rule.predict(every, values)).all()


def test_a_refusal_counts_as_asked_if_it_says_so(rule):
    assert rule.next({"small": [None]}).tolist() == ["small"]
    assert rule.next({"small": [None]}, asked=1).tolist() in (["medium"], ["review"])
    assert rule.next({name: [None] for name in COSTS}, asked=3).tolist() == ["review"]


@pytest.mark.parametrize("rows", [slice(0, 600), slice(300, 1500)], ids=["all", "some"])
def test_questions_of_the_fit_give_no_guarantee(problem, panel, rows, tmp_path):
    again = load(save(panel, tmp_path / "panel.recal"))
    with pytest.warns(SameRowsWarning, match="the guarantee does not hold"):
        plan(problem, again, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SameRowsWarning)
        plan(problem, again, slice(600, 1500))


def test_a_cheaper_review_asks_fewer_systems(problem, panel, rule):
    cheap = plan(problem, panel, review_cost=2.0)
    assert cheap.cost < rule.cost
    assert cheap.share < rule.share
    cost, share = rule.curve[:, 0], rule.curve[:, 1]
    assert (np.diff(cost) > 0).all()
    assert share[-1] > share[0] + 0.05
    assert "large" in str(rule)


def test_the_promise_on_average_accepts_more(problem, panel):
    rows = slice(600, 1000)
    strict = plan(problem, panel, rows)
    average = plan(problem, panel, rows, guarantee="average")
    assert average.share > strict.share
    assert "on average" in average.promise


def test_nothing_is_accepted_if_labels_are_too_few(problem, panel):
    rule = plan(problem, panel, slice(600, 620), risk=0.01)
    assert not rule.possible
    assert rule.share == 0.0
    assert set(rule.next({"small": ["A", "B"], "medium": ["A", "C"]})) == {"review"}
    assert "20" in str(rule)
    assert "on average" in str(rule)  # what may accept some


def test_groups_have_thresholds_of_their_own(problem, panel):
    truth, answers, signals = problem
    rows = slice(600, 2600)
    groups = np.where(np.arange(2000) % 4 == 0, "rare", "usual")
    rule = plan(problem, panel, rows, groups=groups)
    assert rule.groups == ("rare", "usual")
    new = rows_of(answers, slice(2600, None)), rows_of(signals, slice(2600, None))
    names = np.where(np.arange(1400) % 4 == 0, "rare", "usual")
    wrong = rule.predict(*new, groups=names) != truth[2600:]
    for name in rule.groups:
        accepted = (rule.next(*new, groups=names) == "accept") & (names == name)
        assert wrong[accepted].mean() < 0.09
    with pytest.warns(UnseenGroupsWarning, match="unknown"):
        assert set(rule.next(*new, groups=np.full(1400, "unknown"))) == {"review"}
    with pytest.raises(InputError, match="groups"):
        rule.next(*new)


def test_clusters_count_once(problem, panel):
    clusters = np.arange(1200) // 6
    assert plan(problem, panel, clusters=clusters).share < plan(problem, panel).share


def test_a_file_decides_the_same(problem, rule, tmp_path):
    _, answers, _ = problem
    again = load(save(rule, tmp_path / "cascade.recal"))
    assert isinstance(again, CascadeRule)
    assert (again.next(answers) == rule.next(answers)).all()
    assert again.share == rule.share


def test_the_cheapest_thresholds_are_those_of_a_full_search():
    rng = np.random.default_rng(0)
    last = rng.uniform(0.2, 1.0, 60)
    first = np.clip(last + rng.normal(0, 0.2, 60), 0.01, 0.99)
    confidence = np.column_stack([first, last])
    costs, review, end = np.array([1.0, 2.0]), 10.0, 0.7
    price = review / (1 - end)

    def mean_cost(upper, lower):
        stop, accepted = follow(confidence, np.array([upper, end]), np.array([lower, end]))
        doubt = 1 - confidence[np.arange(60), stop]
        return np.mean(np.where(accepted, price * doubt, review) + 2.0 * stop)

    accept, lower = cheapest(confidence, costs, review, end)
    grid = np.r_[0.0, np.sort(first), NEVER]
    best = min(mean_cost(a, r) for a in grid for r in grid if r <= a)
    assert mean_cost(accept[0], lower[0]) == pytest.approx(best)


def test_questions_of_equal_confidence_stay_together():
    """No threshold accepts the last 24 alone, although they gain nothing from the next system."""
    confidence = np.column_stack([np.full(100, 0.82), np.repeat([0.99, 0.81], [76, 24])])
    accept, review = cheapest(confidence, np.array([1.0, 5.0]), 50.0, 0.81)
    assert (accept.tolist(), review.tolist()) == ([NEVER, 0.81], [0.0, 0.81])


@pytest.mark.parametrize(
    ("n_fitted", "counts", "start"),
    [
        (100_000, [1000, 1800], 1),
        (200, [1000, 1800], 0),  # an error of 3 % in 180 questions may well be 5 %
        (200, [0, 1800], 0),  # what the stricter policy accepts must not move the start
        (200, [5, 10], 1),  # too few for any policy
    ],
)
def test_the_test_starts_where_it_is_likely_to_pass(n_fitted, counts, start):
    thresholds = np.ones((2, 1))
    policies = Policies(
        thresholds, thresholds, np.array([0.5, 0.9]), np.array([0.01, 0.03]), n_fitted
    )
    assert likely_start(policies, np.array(counts), 2000, 0.05, 0.05) == start


@pytest.mark.parametrize("guarantee", ["confidence", "average"])
def test_the_promise_holds_over_many_draws(guarantee):
    """300 draws of labels; confidences are too high by 2 points, so the list is a little wrong."""
    rng = np.random.default_rng(0)
    n, draws, risk = 600, 300, 0.1

    def questions(count):
        ability = rng.normal(1.5, 1.5, count)
        final = 1 / (1 + np.exp(-ability))
        first = 1 / (1 + np.exp(-ability + rng.normal(0.5, 1.0, count)))
        sure = np.column_stack([first, final])
        return np.minimum(sure + 0.02, 1 - 1e-6), rng.random((count, 2)) > sure

    fitted, _ = questions(1000)
    costs = np.array([1.0, 5.0])
    policies = list_policies(fitted, costs, 50.0)
    new, wrong = questions(10_000)
    error, share = [], []
    for _ in range(draws):
        labelled = Labelled(*questions(n), costs, 50.0)
        pair = labelled.choose(policies, risk, 0.05, guarantee, None)
        stop, accepted = follow(new, *pair)
        error.append((wrong[np.arange(len(new)), stop] & accepted).mean())
        share.append(accepted.mean())
    error, share = np.array(error), np.array(share)
    assert share.mean() > 0.3
    if guarantee == "average":
        assert error.sum() / share.sum() < 1.02 * risk
    else:
        assert (error > risk * share).mean() < 0.05 + 2 * np.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"risk": 5}, "0.05"),
        ({"review_cost": -1.0}, "-1"),
        ({"costs": {"small": 1.0}}, "medium"),
        ({"costs": [1.0, 2.0]}, "large"),
        ({"costs": 3.0}, "large"),
        ({"costs": [1.0, 2.0, "much"]}, "much"),
        ({"costs": [1.0, 2.0, np.inf]}, "inf"),
        ({"costs": {"small": 1.0, "medium": 2.0, "large": 3.0, "huge": 4.0}}, "huge"),
        ({"guarantee": "always"}, "always"),
    ],
)
def test_wrong_inputs(problem, panel, options, named):
    with pytest.raises(InputError, match=named):
        plan(problem, panel, **options)


def test_only_a_fitted_panel(problem):
    with pytest.raises(InputError, match="str"):
        plan(problem, "panel")
    with pytest.raises(NotFittedError):
        plan(problem, PanelCalibration())
