"""Another class mix than at the fit: found by expectation maximisation, given, or refused where it
is damage.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from recal import Views, load, profile, save, watch
from recal.collecting.predictions import Predictions
from recal.decisions import Profile, adapt_to_class_mix, class_mix
from recal.decisions.class_shares import class_shares, normal_of_chi_square
from recal.decisions.follow import unknown
from recal.errors import FileError, InputError

CLASSES = 5


def samples(
    shares: list[float], n: int, seed: int, strength: float = 3.0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.choice(CLASSES, n, p=np.array(shares) / np.sum(shares))
    return strength * np.eye(CLASSES)[y] + rng.normal(0, 1.5, (n, CLASSES)), y


@pytest.fixture(scope="module")
def kept():
    return profile(*samples([1, 1, 1, 1, 1], 3000, 0))


def loss(probs: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(probs[np.arange(len(y)), y]).mean())


def calibrated(kept, logits: np.ndarray) -> np.ndarray:
    weights = np.exp(kept.beta * (logits - logits.max(1, keepdims=True)))
    return weights / weights.sum(1, keepdims=True)


def slow_em(probs: np.ndarray, base: np.ndarray, prior: float) -> np.ndarray:
    shares = base.copy()
    for _ in range(800):
        counts = np.zeros(len(base))
        for row in probs:
            after = row * shares / base
            counts += after / after.sum()
        shares = (counts + prior * base) / (len(probs) + prior)
    return shares


@pytest.mark.parametrize("prior", [0.0, 10.0])
def test_shares_are_those_of_a_slow_expectation_maximisation(kept, prior):
    probs, base = (
        calibrated(kept, samples([4, 1, 1, 1, 0], 60, 1)[0]),
        np.array([0.3, 0.2, 0.2, 0.2, 0.1]),
    )
    assert class_shares(probs, base, prior=prior) == pytest.approx(
        slow_em(probs, base, prior), abs=1e-5
    )


def test_adapting_is_bayes_rule_for_two_gaussians():
    """Two unit Gaussians at -1 and 1: the log-odds of x are 2 x plus those of the shares."""
    x = np.linspace(-3, 3, 25)
    y = np.arange(1000) % 2
    kept = profile(
        np.column_stack([-y, y]) * 2.0 + np.random.default_rng(0).normal(size=(1000, 2)), y
    )
    mix = class_mix(kept, shares=[0.9, 0.1])
    even = 1 / (1 + np.exp(-2 * x))
    exact = 1 / (1 + np.exp(-(2 * x + np.log(0.1 / 0.9))))
    assert adapt_to_class_mix(np.column_stack([1 - even, even]), mix)[:, 1] == pytest.approx(
        exact, abs=1e-12
    )


@pytest.mark.parametrize(("shares", "gain"), [([5, 5, 1, 1, 1], 0.03), ([1, 1, 1, 0, 0], 0.3)])
def test_another_mix_is_found_and_pays(kept, shares, gain):
    logits, y = samples(shares, 800, 3)
    mix, probs = class_mix(kept, logits), calibrated(kept, logits)
    assert mix.changed
    assert mix.reason == "estimated from 800 inputs"
    assert np.abs(mix.shares - np.bincount(y, minlength=CLASSES) / 800).max() < 0.05
    assert loss(adapt_to_class_mix(probs, mix), y) < (1 - gain) * loss(probs, y)
    assert watch(kept, logits, permutations=99).class_mix.shares == pytest.approx(mix.shares)


def test_the_usual_mix_is_left_alone(kept):
    used = [
        class_mix(kept, samples([1] * CLASSES, 200, 50 + seed)[0]).changed for seed in range(60)
    ]
    assert sum(used) <= 3


def test_damage_is_not_taken_for_another_mix(kept):
    for seed in range(10):
        mix = class_mix(kept, samples([5, 5, 1, 1, 1], 600, seed, strength=1.0)[0])
        assert not mix.changed
        assert "more than the class mix has changed" in mix.reason
        assert mix.shares == mix.at_fit


def test_49_inputs_are_too_few(kept):
    logits, _ = samples([1, 0, 0, 0, 0], 50, 0)
    assert class_mix(kept, logits).changed
    assert "49 inputs are too few" in class_mix(kept, logits[:49]).reason


def test_impossible_classes_get_nothing_and_predictions_can_change(kept):
    mix = class_mix(kept, impossible=["e"], classes=list("abcde"))
    probs = np.array([[0.1, 0.2, 0.05, 0.05, 0.6], [0.0, 0.0, 0.0, 0.0, 1.0]])
    adapted = adapt_to_class_mix(probs, mix)
    assert (adapted[:, 4] == 0).all()
    assert adapted.sum(1) == pytest.approx(1)
    assert adapted[0].argmax() == 1
    given = Predictions(probs, None, None, confidences=np.array([0.5, 0.9]), logits=probs)
    answers = given.adapted(SimpleNamespace(profile_=kept), False, mix)
    assert answers.predictions_changed == 2
    assert answers.confidences == pytest.approx(adapted.max(1))


def test_a_mapping_leaves_the_rest_as_at_the_fit(kept):
    mix = class_mix(kept, shares={"a": 0.5}, impossible=["b"], classes=list("abcde"))
    assert mix.shares[:2] == pytest.approx([0.5, 0.0])
    assert mix.shares[2:] == pytest.approx(0.5 * np.divide(mix.at_fit[2:], sum(mix.at_fit[2:])))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shares": {"z": 0.5}}, "no class 'z'; the classes are a, b"),
        ({"shares": {"a": 1.5}}, "sum is 1.5"),
        ({"shares": [0.2, 0.2]}, r"got \[0.2, 0.2\]"),
        ({"shares": [0.1] * 5}, "sum is 0.5"),
        ({"impossible": list("abcde")}, "leave one class at least"),
    ],
)
def test_what_is_no_mix_is_refused(kept, given, message):
    with pytest.raises(InputError, match=message):
        class_mix(kept, classes=list("abcde"), **given)


def test_a_profile_without_labels_knows_no_mix():
    with pytest.raises(InputError, match="made with labels"):
        class_mix(profile(samples([1] * CLASSES, 200, 0)[0]), impossible=[0])


def test_by_class_is_saved_and_checked(kept, tmp_path):
    logits = samples([5, 1, 1, 1, 1], 500, 7)[0]
    again = load(save(kept, tmp_path / "kept.recal"))
    assert class_mix(again, logits) == class_mix(kept, logits)
    bad = profile(Views(*samples([1] * CLASSES, 200, 0)[:1]), samples([1] * CLASSES, 200, 0)[1])
    object.__setattr__(bad.by_class, "offsets", np.zeros(CLASSES))
    with pytest.raises(FileError, match=r"`offsets` must be .* with numbers from 2\.2"):
        load(save(bad, tmp_path / "bad.recal"))


def test_wilson_and_hilferty_know_the_upper_one_percent():
    for degrees, value in ((1, 6.635), (4, 13.277), (9, 21.666), (99, 134.642)):
        assert normal_of_chi_square(value, degrees) == pytest.approx(
            2.326, abs=0.1 if degrees == 1 else 0.02
        )


def test_five_samples_per_class_of_the_usual_mix_join_the_batch(kept):
    logits = 40 * np.eye(CLASSES)[np.zeros(100, int)]
    mix = class_mix(kept, logits)
    assert not mix.changed  # logits this large are not those of the fit
    probs, even = np.eye(CLASSES)[np.zeros(100, int)], np.full(CLASSES, 0.2)
    assert class_shares(probs, even, prior=25.0)[1:] == pytest.approx(25 * 0.2 / 125)
    found = class_mix(kept, samples([1, 0, 0, 0, 0], 100, 11)[0])
    assert found.changed
    assert 0.03 < found.shares[4] < 0.09  # near 0 without them


def test_a_class_that_the_model_masks_is_no_obstacle(kept):
    logits, y = samples([1, 1, 1, 1, 1], 3000, 0)
    masked = profile(np.column_stack([logits, np.full(len(y), -1e9)]), y)
    assert masked.by_class.offsets[:5] == pytest.approx(kept.by_class.offsets, rel=0.01)
    few = samples([6, 1, 1, 1, 1], 400, 1)[0]
    mix = class_mix(masked, np.column_stack([few, np.full(len(few), -1e9)]))
    assert mix.changed
    assert mix.shares[5] < 0.01


def test_rows_that_are_surely_of_an_impossible_class_speak_for_no_mix(kept):
    logits = samples([1, 1, 1, 1, 0], 400, 2)[0]
    logits[:3] = [0, 0, 0, 0, 1e5]
    mix = class_mix(kept, logits, impossible=[4])
    assert mix.reason == "classes that cannot occur"
    assert mix.shares[:4] == pytest.approx([0.25] * 4, abs=0.03)


@pytest.mark.parametrize(
    ("first", "second", "ratio", "used"),
    [
        (2.33, 1.28, 1.0, True),
        (2.32, 1.28, 1.0, False),
        (2.33, 1.29, 1.0, False),
        (2.33, 1.28, 1.09, True),
        (2.33, 1.28, 1.11, False),
        (2.33, 1.28, 1 / 1.09, True),
        (2.33, 1.28, 1 / 1.11, False),
    ],
)
def test_a_mix_is_used_at_1_percent_given_up_at_10_and_where_following_moves(
    kept, monkeypatch, first, second, ratio, used
):
    answers = iter([first, second])
    module = sys.modules["recal.decisions.class_shares"]
    monkeypatch.setattr(module, "normal_of_chi_square", lambda value, degrees: next(answers))
    monkeypatch.setattr(
        Profile, "condition", lambda self, logits: replace(unknown(1.0, ""), ratio=ratio)
    )
    rows = np.random.default_rng(0).normal(size=(80, kept.n_classes))
    assert class_mix(kept, rows).changed is used
