"""Statistical constants of decisions and of the default, each against a closed form or a count of
its own.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from recal import AutoCalibration, TemperatureScaling, decide
from recal.calibrators import auto, ensemble
from recal.decisions.following import NOISE, UNKNOWN_FROM, Following, TwoReadings, row_numbers
from tests.problems import logits_and_labels


def two_columns(confidence):
    return np.column_stack([confidence, 1 - np.asarray(confidence)])


def condition(
    change=(0.0, 0.0), variance=0.0, disputed=(0.0, 0.0), doubts=(0.0, 0.0), n=400, n_samples=600
):
    """Return what following says of a batch whose reading is known."""
    following = SimpleNamespace(
        damaging=("zoom", "blur", "noise"),
        beta=2.0,
        n_samples=n_samples,
        accuracy=0.9 + 0.4 / n_samples,  # nine to one, half a hit and half a miss added
        _doubts=doubts,
        _chance=lambda rows: np.zeros(2),
        _read=lambda rows: (change, variance, 0.0, disputed),
    )
    logits = 3 * np.random.default_rng(0).normal(size=(n, 4))
    return Following.condition_of(following, row_numbers(logits, 1.0, 0.5))


def test_the_interval_of_a_followed_accuracy_is_normal_in_its_log_odds():
    """Nine of ten answers are right: the log-odds vary by 1 / (n p q) in batch and fit."""
    deviation = math.sqrt((1 / 400 + 1 / 600) / 0.09)
    centre, reach = math.log(9.0), norm.ppf(0.975) * deviation
    expected = [1 / (1 + math.exp(-(centre + side * reach))) for side in (-1, 1)]
    assert condition().interval == pytest.approx(expected, rel=1e-6)


def test_the_interval_grows_by_what_the_process_does_not_know():
    outcomes = (1 / 400 + 1 / 600) / 0.09
    for variance, doubt, disputed in ((0.1, 2.0, 0.0), (0.0, 0.0, 0.04)):
        low, _ = condition(
            variance=variance, doubts=(0.0, doubt), disputed=(0.0, disputed)
        ).interval
        squared = doubt**2 * (variance + NOISE) + norm.ppf(0.975) ** 2 * (outcomes + disputed)
        assert math.log(low / (1 - low)) == pytest.approx(
            math.log(9.0) - math.sqrt(squared), rel=1e-6
        )


def test_kinds_of_view_that_disagree_leave_the_temperature_as_it_was():
    follows, stays = (
        condition(change=(-0.5, 0.0), disputed=(share**2, 0.0)) for share in (0.44, 0.46)
    )
    assert not follows.kinds_disagree
    assert follows.ratio == pytest.approx(math.exp(-0.5 * 0.25 / (0.25 + 0.44**2)))
    assert stays.kinds_disagree
    assert (stays.ratio, stays.beta) == (1.0, 2.0)
    assert "because the views of the fit disagree" in str(stays)
    assert not condition(change=(0.0, 0.0), disputed=(0.01, 0.0)).kinds_disagree, (
        "no change, nothing to dispute"
    )


def test_the_doubt_about_an_accuracy_is_the_nine_tenths_quantile_over_kinds_left_out():
    """Sets on a line: every kind is predicted by the others and judged by its own sets."""
    rng = np.random.default_rng(1)
    kinds = ("", *np.repeat(["a", "b", "c", "d"], 10))
    statistics = np.zeros((41, 9))
    statistics[1:, 0] = rng.uniform(-2, 2, 40)
    changes = np.column_stack([0.3 * statistics[:, 0], 0.5 * statistics[:, 0]])
    changes[1:] += rng.normal(0, 0.3, (40, 2))
    measured = statistics, np.ones(9), changes, np.zeros(41, int)
    following = Following(1.0, 0.5, 0.9, 1000, kinds, ("a", "b", "c"), *measured)
    errors = []
    for kind in "abcd":
        own = np.array(kinds) == kind
        predicted, variance = TwoReadings(statistics[~own], changes[~own])(statistics[own])
        known = variance < UNKNOWN_FROM
        error = np.abs(changes[own] - predicted) / np.sqrt(variance + NOISE)[:, None]
        errors.append(error[known])
    joined = np.concatenate(errors)
    n = len(joined)
    assert n > 30
    assert following._doubts[0] == pytest.approx(np.median(joined[:, 0]))
    assert following._doubts[1] == pytest.approx(
        np.sort(joined[:, 1])[math.ceil(0.9 * (n + 1)) - 1]
    )


def test_confidences_that_differ_by_a_millionth_are_read_by_the_rule():
    sure = np.linspace(0.6, 0.9, 400)
    for factor, reads in ((1 - 5e-7, "maximum"), (1 - 5e-6, "confidence")):
        decision = decide(two_columns(sure), np.zeros(400, int), confidences=sure * factor)
        assert decision.rule.reads == reads


def test_the_lowest_risk_that_samples_support_is_rounded_up_to_two_digits():
    sure, right = np.linspace(0.99, 0.6, 100), np.ones(100, bool)
    supported = decide(sure, right).supported_risk
    lowest = 1 - 0.05 ** (1 / 100)  # 100 right answers show this risk
    assert lowest <= supported <= math.ceil(1010 * lowest) / 1000
    assert decide(sure, right, supported).possible


@pytest.mark.parametrize(("weight", "alone"), [(0.94, False), (0.95, True)])
def test_a_member_with_95_per_cent_of_the_weight_is_taken_alone(weight, alone):
    member = TemperatureScaling()
    whole = SimpleNamespace(reason_="Mixes methods.", answers="kept")
    fitted = SimpleNamespace(
        weights={"ts": weight}, members={"ts": member}, plan=None, losses={"ts": np.ones(2)}
    )
    chosen, _ = auto._simplest(whole, fitted)
    assert (chosen is member) is alone


def test_the_prior_of_temperature_scaling_is_thirty_over_the_mistakes(monkeypatch):
    priors, weigh = [], ensemble.mixture_weights

    def spy(likelihoods, counts, prior, *rest):
        priors.append((float(prior[0]), len(likelihoods)))
        return weigh(likelihoods, counts, prior, *rest)

    monkeypatch.setattr(ensemble, "mixture_weights", spy)
    logits, y = logits_and_labels(300)
    AutoCalibration().fit(logits, y)
    mistakes = int((logits.argmax(axis=1) != y).sum())
    whole = [prior for prior, n in priors if n == 300]
    assert whole[-1] == pytest.approx(0.5 + 30 / mistakes)
