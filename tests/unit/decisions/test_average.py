"""The promise on average, promises about clusters of any size, and decisions from cross-fits."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
from sklearn.base import BaseEstimator

from recal import SignalCalibration, Views, decide
from recal.decisions import decide_crossfitted, risk_curve
from recal.decisions.certify import kept_on_average, on_average, ranked
from recal.decisions.crossfit import crossfitted
from recal.errors import DependentRowsWarning, InputError
from tests.problems import graded_confidences

graded = partial(graded_confidences, error=0.27)


@pytest.mark.parametrize(("n", "risk"), [(100, 0.1), (300, 0.05), (300, 0.1)])
def test_over_all_accepted_answers_the_error_is_at_most_the_risk(n, risk):
    rng, shares = np.random.default_rng(0), []
    for _ in range(250):
        confidence, right = graded(n, rng)
        size = on_average(ranked(confidence, ~right), risk)
        shares.append(1.0 - np.sort(1 - confidence)[size - 1] / 0.27 if size else 1.0)
    share = 1.0 - np.array(shares)
    assert (0.27 * share**2 / 2).sum() / share.sum() <= 1.03 * risk
    assert share.mean() > 0.75 * risk * 2 / 0.27, "of what is possible"


@pytest.mark.parametrize("n", [1, 5, 100])
def test_all_right_answers_are_accepted_on_average_and_all_wrong_ones_are_not(n):
    confidence = np.linspace(0.9, 0.8, n)
    assert on_average(ranked(confidence, np.ones(n, bool)), 0.1) == 0
    assert on_average(ranked(confidence, np.zeros(n, bool)), 0.1) == (n if n >= 20 else 0)


@pytest.mark.parametrize("n", [12, 20, 40])
def test_on_average_a_cluster_of_copies_counts_as_one_answer(n):
    confidence, clusters = np.linspace(0.9, 0.8, n), np.repeat(np.arange(n), 4)
    once = on_average(ranked(confidence, np.zeros(n, bool)), 0.1)
    copies = ranked(np.repeat(confidence, 4), np.zeros(4 * n, bool), clusters)
    assert on_average(copies, 0.1) == 4 * once > 0


def test_independent_rows_in_clusters_lose_little_on_average():
    """A cluster of 20 independent answers is more than one answer, but not all of them together."""
    shares, rng = [], np.random.default_rng(8)
    for _ in range(20):
        confidence, right = graded(2000, rng)
        clusters = np.repeat(np.arange(100), 20)
        alone, together = (
            on_average(ranked(confidence, ~right, c), 0.05) for c in (None, clusters)
        )
        shares.append(together / alone)
    assert 0.8 < np.mean(shares) < 1.1
    one = ranked(confidence, ~right, np.zeros(2000, int))
    assert on_average(one, 0.2) == 0, "one cluster is one answer"


def test_the_promise_on_average_accepts_more_and_is_named():
    confidence, right = graded(300, np.random.default_rng(1))
    strict = decide(confidence, right, risk=0.1)
    average = decide(confidence, right, risk=0.1, guarantee="average")
    assert average.coverage == strict.other_coverage > strict.coverage == average.other_coverage
    assert strict.rule.guarantee == "confidence"
    assert average.rule.guarantee == average.to_dict()["guarantee"] == "average"
    assert "on average" in str(average)
    assert "on average" in average.promise
    assert f"{strict.coverage:.1%}" in average.other_promise
    assert f"{average.coverage:.1%}" in strict.other_promise
    with pytest.raises(InputError, match=r"guarantee.*'mean'"):
        decide(confidence, right, guarantee="mean")


def test_more_mistakes_than_the_risk_are_explained():
    rng = np.random.default_rng(5)
    confidence = rng.uniform(0.5, 1.0, 300)
    decision = decide(confidence, rng.random(300) < confidence, risk=0.1, guarantee="average")
    assert decision.error_rate > 0.1
    count = decision.n_errors, decision.n_accepted
    assert decision.rule.note_on(*count) == decision.note_on(*count) in str(decision)
    clusters = np.arange(300) // 2
    clustered = decide(confidence, rng.random(300) < confidence, risk=0.1, clusters=clusters)
    assert clustered.note_on(*count) == "", "rows of a cluster are not independent"


def test_groups_costs_and_curves_take_the_promise():
    rng = np.random.default_rng(2)
    confidence, right = graded(800, rng)
    groups = rng.choice(["a", "b"], 800)
    by_group = decide(confidence, right, risk=0.1, guarantee="average", groups=groups)
    for part in by_group.parts:
        rows = groups == part.name
        alone = decide(confidence[rows], right[rows], risk=0.1, guarantee="average")
        assert part.threshold == alone.threshold, "averages share no error probability"
    alone = decide(confidence, right, risk=0.1, guarantee="average")
    curve = risk_curve(confidence, right, risks=(0.1,), guarantee="average")
    assert curve.thresholds == alone.thresholds
    costs = {"cost_error": 10.0, "cost_review": 1.0, "guarantee": "average"}
    cheapest = decide(confidence, right, **costs)
    assert 0 < cheapest.n_accepted <= alone.n_accepted
    assert cheapest.cost < 1.0


def test_policies_in_a_fixed_order_are_kept_as_sets_of_most_confident_answers_are():
    confidence, right = graded(600, np.random.default_rng(3))
    answers = ranked(confidence, ~right)
    accepted = confidence[:, None] >= answers.confidence[answers.ends - 1]
    kept = kept_on_average(accepted, ~right, 0.1)
    assert answers.ends[kept - 1] == pytest.approx(on_average(answers, 0.1), rel=0.05)
    assert kept_on_average(accepted, np.ones(600, bool), 0.1) == 0
    assert kept_on_average(accepted, np.zeros(600, bool), 0.1) == len(answers.ends)
    for n, sets in ((7, 0), (14, 1)):  # one more mistake among 8 exceeds the risk
        assert kept_on_average(np.ones((n, 1), bool), np.zeros(n, bool), 0.1) == sets
    copies = (np.repeat(one, 3, axis=0) for one in (accepted, ~right, np.arange(600)))
    again = kept_on_average(next(copies), next(copies), 0.1, next(copies))
    assert again == pytest.approx(kept, rel=0.05), "copies count once"


def documents(n: int, rng: np.random.Generator):
    """Return answers in clusters of very different sizes; some clusters are right together."""
    sizes = np.ceil(np.exp(2.8 + rng.normal(size=n))).astype(int)
    clusters = np.repeat(np.arange(n), sizes)
    doubt = 0.25 * rng.random(len(clusters))
    luck = np.where(
        rng.random(len(clusters)) < 0.5, rng.random(n)[clusters], rng.random(len(clusters))
    )
    return 1 - doubt, luck >= doubt, clusters


def test_one_large_cluster_does_not_wipe_out_the_evidence():
    rng, shares, broken = np.random.default_rng(4), {"confidence": [], "average": []}, 0
    for _ in range(40):
        confidence, right, clusters = documents(200, rng)
        for guarantee, found in shares.items():
            decision = decide(confidence, right, risk=0.1, guarantee=guarantee, clusters=clusters)
            found.append(decision.coverage)
            # The mean doubt above a threshold is half of the doubt at it.
            exceeds = decision.possible and min(1 - decision.threshold, 0.25) / 2 > 0.1
            broken += guarantee == "confidence" and exceeds
    assert np.mean(shares["confidence"]) > 0.15
    assert np.mean(shares["average"]) > 0.5
    assert broken <= 5
    assert decision.n_clusters == 200
    assert "average cluster (200 clusters decide)" in decision.promise


def test_mistakes_of_large_clusters_are_reported_by_rows():
    """Each cluster counts once: many small good ones outweigh a large bad one."""
    clusters = np.r_[np.arange(400), np.full(300, 400)]
    right = np.r_[np.ones(400, bool), np.arange(300) % 2 == 0]
    decision = decide(np.full(700, 0.9), right, risk=0.05, clusters=clusters)
    assert decision.coverage == 1.0
    assert "by rows, 21.4%" in str(decision)


def test_copies_of_confidences_are_named_and_ties_are_not():
    rng = np.random.default_rng(5)
    confidence, right = graded(400, rng, error=0.5)
    with pytest.warns(DependentRowsWarning, match="1,200 of 1,200"):
        decide(np.repeat(confidence, 3), np.repeat(right, 3), risk=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DependentRowsWarning)
        decide(
            np.repeat(confidence, 3), np.repeat(right, 3), 0.2, clusters=np.repeat(range(400), 3)
        )
        decide(confidence, right, risk=0.2)
        for digits in (1, 2, 3):
            rounded, hits = graded(3000, rng, error=0.5)
            decide(np.round(rounded, digits), hits, risk=0.2)


def test_graded_tables_are_cross_fitted():
    rng = np.random.default_rng(6)
    signals = rng.normal(size=(600, 2))
    groups = rng.choice(["a", "b"], 600)
    chance = 1 / (1 + np.exp(-2 - signals.sum(axis=1) - (groups == "a")))
    right = rng.random(600) < chance
    table = {"one": signals[:, 0], "two": signals[:, 1]}
    fitted, decision = decide_crossfitted(
        SignalCalibration(), table, right, risk=0.1, folds=5, groups=groups, one_rule=True
    )
    assert fitted.decision_ == decision.rule
    assert 0.2 < decision.coverage < 1
    confidence = fitted.predict_confidence(table, groups)
    assert np.mean(decision.accept(confidence)) == pytest.approx(decision.coverage, abs=0.1)
    by_group = decide_crossfitted(SignalCalibration(), table, right, 0.2, folds=5, groups=groups)[1]
    assert by_group.rule.groups == ("a", "b")


def test_the_confidence_of_a_graded_answer_comes_from_a_fit_without_it():
    seen = []

    class Spy:
        def get_params(self, deep=False):
            return {}

        def fit(self, signals, correct, groups=None, clusters=None):
            self.rows = set(signals["x"].tolist())
            assert set(zip(signals["x"], groups)) <= pairs
            return self

        def predict_confidence(self, signals, groups=None):
            seen.append((self.rows, set(signals["x"].tolist())))
            return np.full(len(signals["x"]), 0.5)

    x = np.arange(60.0)
    groups = np.where(x % 2, "odd", "even")
    pairs = set(zip(x, groups))
    crossfitted(Spy(), {"x": x}, np.intp(x % 3 > 0), groups, x // 4, folds=5)
    assert all(not rest & left for rest, left in seen)
    assert set().union(*(left for _, left in seen)) == set(x.tolist())
    assert all(len({v // 4 for v in rest} & {v // 4 for v in left}) == 0 for rest, left in seen)


def test_copies_of_a_sample_are_never_in_the_fit_that_judges_it():
    class Spy(BaseEstimator):
        def fit(self, X, y, groups=None, clusters=None):
            self.rows = set(np.asarray(X.logits if isinstance(X, Views) else X["x"]).ravel())
            return self

        def predict_both(self, views, groups):
            assert not self.rows & set(views.logits.ravel())
            return views.logits, views.logits[:, 0]

        def predict_confidence(self, signals, groups=None):
            assert not self.rows & set(signals["x"])
            return np.full(len(signals["x"]), 0.5)

    logits = np.random.default_rng(8).normal(size=(60, 2))
    labels = np.arange(60) % 3 // 2
    crossfitted(Spy(), Views(np.tile(logits, (2, 1))), np.tile(labels, 2), folds=5)
    crossfitted(Spy(), {"x": np.tile(logits[:, 0], 2)}, np.tile(labels, 2), folds=5)


def test_rows_of_a_fit_leave_no_guarantee_in_print_or_in_a_notebook():
    class Fitted:
        def fitted_rows(self, confidence):
            return len(confidence)

    confidence, right = graded(500, np.random.default_rng(7))
    with pytest.warns(UserWarning, match="500"):
        decision = decide(confidence, right, risk=0.2, calibrator=Fitted())
    assert "o guarantee: 500" in str(decision)
    assert "no guarantee: 500" in decision._repr_html_()
    assert "confidence, at most" not in decision._repr_html_()
    with pytest.raises(InputError, match="`calibrator` must be a fitted calibrator, got dict"):
        decide(confidence, right, calibrator={})
