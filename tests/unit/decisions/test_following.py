"""Following damage without labels: temperatures and accuracies near the truth, and "unknown" where
nothing is known.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from recal import Views, load, profile, save, watch
from recal.decisions import following as follow
from recal.decisions import to_the_power
from recal.errors import FileError, InputError
from recal.solvers.temperature import fit_beta

CLASSES = 6
KINDS = ("fading", "hiss", "shouting", "collapse")


def damaged(y: np.ndarray, kind: str, strength: float, seed: int) -> np.ndarray:
    """Logits of a model that is overconfident, and the more so the more a kind of damage is done to
    its inputs.
    """
    rng = np.random.default_rng(seed)
    signal, noise = 4.5 * np.eye(CLASSES)[y], rng.normal(size=(len(y), CLASSES))
    if kind == "fading":
        return 2.0 * ((1 - strength) * signal + noise)
    if kind == "hiss":
        return 2.0 * (signal + (1 + 4 * strength) * noise)
    if kind == "shouting":
        return 2.0 * (1 + strength) * ((1 - strength) * signal + noise)
    if kind == "collapse":
        return 2.0 * (signal + noise + 5 * strength * np.eye(CLASSES)[0])
    return 2.0 * (signal + noise)


def labels(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, 9]).integers(0, CLASSES, n)


def views(n: int, seed: int, kinds: tuple[str, ...] = KINDS) -> Views:
    y = labels(n, seed)
    specs = [(kind, strength) for kind in kinds for strength in (0.3, 0.5, 0.7)]
    through = {
        f"{kind}:{s}": damaged(y, kind, s, 100 * seed + i) for i, (kind, s) in enumerate(specs)
    }
    return Views(damaged(y, "none", 0.0, 100 * seed + 99), through, y)


@pytest.fixture(scope="module")
def kept():
    return profile(views(1500, 0))


def loss(logits: np.ndarray, y: np.ndarray, beta: float) -> float:
    scaled = beta * (logits - logits.max(1, keepdims=True))
    return float((np.log(np.exp(scaled).sum(1)) - scaled[np.arange(len(y)), y]).mean())


@pytest.mark.parametrize(
    ("kind", "strength", "gain"),
    [
        ("fading", 0.6, 0.6),
        ("hiss", 0.4, 0.6),
        ("shouting", 0.6, 0.6),
        ("collapse", 0.6, 0.4),
    ],  # the last is like no other
)
def test_damage_of_a_strength_never_seen_is_followed_from_logits_alone(kept, kind, strength, gain):
    y = labels(1000, 5)
    new = damaged(y, kind, strength, 77)
    found = watch(kept, new, permutations=99)
    stayed, followed, best = (loss(new, y, b) for b in (kept.beta, found.beta, fit_beta(new, y)))
    accuracy = float((new.argmax(1) == y).mean())
    assert found.known
    assert found.ratio == pytest.approx(found.beta / kept.beta)
    assert stayed - followed > gain * (stayed - best) > 0
    assert abs(found.accuracy - accuracy) < 0.12
    assert found.interval[0] <= accuracy <= found.interval[1]


def test_inputs_as_they_were_keep_their_temperature(kept):
    for seed in range(8):
        y = labels(200, seed)
        found = watch(kept, damaged(y, "none", 0.0, 500 + seed), permutations=99)
        assert found.ratio == pytest.approx(1.0, abs=0.12)
        assert found.interval[0] <= kept.accuracy <= found.interval[1]


def test_intervals_hold_the_accuracy_of_batches(kept):
    held = []
    for seed in range(60):
        y = labels(150, seed)
        new = damaged(y, KINDS[seed % 4], 0.1 + 0.012 * (seed % 50), 900 + seed)
        low, high = kept.condition(new).interval
        held.append(low <= (new.argmax(1) == y).mean() <= high)
    assert np.mean(held) >= 0.93


def test_what_is_unlike_every_view_is_called_unknown(kept):
    found = watch(
        kept, 80 * np.random.default_rng(0).normal(size=(500, CLASSES)) ** 3, permutations=99
    )
    assert not found.known
    assert found.beta == pytest.approx(kept.beta, rel=0.01)
    assert found.ratio == pytest.approx(1.0, abs=0.01)
    assert math.isnan(found.accuracy)
    assert found.interval == (0.0, 1.0)
    assert "unlike every view of the fit" in str(found)


def test_two_kinds_of_damage_do_not_teach_following():
    found = profile(views(500, 0, KINDS[:2])).condition(damaged(labels(300, 1), "fading", 0.5, 1))
    assert not found.known
    assert "2 damaging kinds and 3 are needed" in found.reason
    assert found.ratio == 1.0


def test_following_needs_a_hundred_labelled_samples():
    assert profile(views(99, 0)).following is None
    assert profile(views(100, 0)).following is not None


def test_views_that_do_no_damage_are_no_kinds():
    seen = views(500, 0, KINDS[:2])
    harmless = {"flip": seen.logits, "shift": seen.logits}
    harmless |= {t: seen.transformed(t) for t in seen.transforms}
    assert len(profile(Views(seen.logits, harmless, seen.labels)).following.damaging) == 2


def test_a_batch_of_49_is_too_small(kept):
    new = damaged(labels(50, 1), "fading", 0.6, 1)
    assert "49 inputs are too few" in kept.condition(new[:49]).reason
    assert kept.condition(new).known


def test_a_profile_that_follows_is_saved(kept, tmp_path):
    again, new = load(save(kept, tmp_path / "kept.recal")), damaged(labels(300, 1), "hiss", 0.5, 1)
    assert repr(again.condition(new)) == repr(kept.condition(new))  # NaN differs from itself


def test_a_file_cannot_bring_a_following_that_makes_no_sense(tmp_path):
    bad = profile(views(200, 0))
    object.__setattr__(bad.following, "spread", np.zeros(9))
    with pytest.raises(FileError, match="`spread` must be"):
        load(save(bad, tmp_path / "bad.recal"))


def test_the_nine_statistics_by_hand():
    logits = np.random.default_rng(0).normal(size=(40, 3)) * 3
    probs = np.exp(0.7 * logits) / np.exp(0.7 * logits).sum(1, keepdims=True)
    top, entropy = probs.max(1), -(probs * np.log(probs)).sum(1)
    centred = logits - logits.mean(1, keepdims=True)
    mix = np.bincount(logits.argmax(1)) / 40
    shares = [
        top.mean(),
        (entropy < 0.4).mean(),
        (top > 0.99).mean(),
        (top > 0.9).mean(),
        (top > 0.6).mean(),
    ]
    shares = np.clip(shares, 0.005, 0.995)
    expected = [
        *np.log(shares / (1 - shares)),
        np.log(centred.max(1).mean()),
        np.log(centred.std(1).mean()),
    ]
    expected += [-(mix * np.log(mix)).sum() + 2 / 80, np.log((centred**2).sum(1)).std()]
    assert follow.statistics(follow.row_numbers(logits, 0.7, 0.4)) == pytest.approx(
        expected, abs=1e-9
    )


def test_the_process_is_textbook_regression():
    rng = np.random.default_rng(0)
    places, changes, new = (rng.normal(size=size) for size in ((12, 3), (12, 2), (4, 3)))

    def kernel(a, b):
        return np.array([[math.exp(-((x - y) ** 2).sum() / 8) for y in b] for x in a])

    inverse = np.linalg.inv(kernel(places, places) + follow.NOISE * np.eye(12))
    mean, variance = follow.Process(places, changes)(new)
    assert mean == pytest.approx(kernel(new, places) @ inverse @ changes)
    assert variance == pytest.approx(
        1 - np.diag(kernel(new, places) @ inverse @ kernel(places, new))
    )


def test_the_best_temperature_from_the_table_is_that_of_a_fit():
    y = labels(800, 3)
    for strength in (0.2, 0.5, 0.8):
        logits = damaged(y, "fading", strength, 4)
        rows = follow.labelled_rows(logits, y, 0.8, 0.5)
        assert math.exp(follow.best_change(rows)[0]) * 0.8 == pytest.approx(
            fit_beta(logits, y), rel=0.01
        )


def test_a_power_is_a_change_of_temperature_and_keeps_answers():
    logits = np.random.default_rng(0).normal(size=(200, 5)) * 4
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    cooled = np.exp(0.3 * logits) / np.exp(0.3 * logits).sum(1, keepdims=True)
    assert to_the_power(probs, 0.3) == pytest.approx(cooled, abs=1e-12)
    tied = np.array([[0.5 - 1e-16, 0.5 + 1e-16], [1e-300, 1 - 1e-16]])
    assert (to_the_power(tied, 0.01).argmax(1) == tied.argmax(1)).all()
    with pytest.raises(InputError, match="got 0"):
        to_the_power(probs, 0)


@pytest.mark.parametrize(
    ("change", "error", "chance", "followed"),
    [
        (-1.0, 0.01, 0.0, -1 / 1.01),
        (0.1, 0.01, 0.0, 0.05),
        (-0.3, 0.0, 0.0, -0.3),
        (0.0, 0.0, 0.0, 0.0),
        (0.5, 0.0, 0.25, 0.0),  # as large as chance
        (0.4, 0.0, 0.25, 0.0),
        (-0.5, 0.0, 0.0625, -0.375),
        (-0.5, 0.375**2, 0.0625, -0.375 / 2),
    ],
)
def test_a_change_is_followed_as_far_as_it_exceeds_chance_and_its_own_error(
    change, error, chance, followed
):
    assert follow.held_back(change, error, chance) == pytest.approx(followed)


def test_what_rests_on_one_kind_of_view_is_held_back(monkeypatch):
    """One of three kinds lies at the batch and no other near it: without it the process would say
    "no change".
    """
    far = np.full(9, 30.0)
    monkeypatch.setattr("recal.decisions.following.statistics", lambda rows: far)
    statistics_ = np.zeros((4, 9))
    statistics_[1], statistics_[2:, 0] = far, (60.0, -60.0)
    following = follow.Following(
        beta=1.0,
        cut=0.5,
        accuracy=0.9,
        n_samples=10**9,
        kinds=("", "rain", "dark", "fog"),
        damaging=("rain", "dark", "fog"),
        statistics=statistics_,
        spread=np.ones(9),
        changes=np.array([[0.0, 0.0], [-1.0, -2.0], [0.0, 0.0], [0.0, 0.0]]),
        sizes=np.zeros(4, np.int64),
    )
    changes, _, _, disputes = following._read(np.zeros((80, 10)))
    assert changes == pytest.approx(np.array([-1.0, -2.0]) / (1 + follow.NOISE))
    assert disputes == pytest.approx((2 / 3 * np.array(changes)) ** 2)
    assert follow.held_back(changes[0], disputes[0], 0.0) == pytest.approx(changes[0] / (1 + 4 / 9))


def test_other_class_mixes_do_not_make_damage_known(kept):
    following = kept.following
    mixes = following._of(":")
    assert mixes.sum() == 10
    assert not mixes[0]
    assert {following.kinds[at] for at in np.flatnonzero(mixes)} == {""}
    y = labels(2000, 4)
    found = kept.condition(damaged(y[y < 3], "none", 0.0, 44))
    assert not found.known
    assert not found.unlike
    assert "another class mix, or of damage" in found.reason
    assert found.ratio == pytest.approx(1.0, abs=0.1)


def test_small_batches_of_unchanged_inputs_keep_their_temperature(kept):
    worst = []
    for seed in range(40):
        y = labels(50, 300 + seed)
        new = damaged(y, "none", 0.0, 700 + seed)
        worst.append(abs(math.log(kept.condition(new).ratio)))
    assert np.median(worst) < 0.01
    assert max(worst) < 0.2


def test_logits_that_are_no_numbers_are_refused(kept):
    new = damaged(labels(60, 1), "fading", 0.6, 1)
    new[7, 2] = np.nan
    with pytest.raises(InputError, match="row 7, column 2 is nan"):
        kept.condition(new)


@pytest.mark.parametrize(("variance", "known"), [(0.29, True), (0.31, False)])
def test_unknown_begins_at_a_variance_of_030(variance, known):
    fresh = profile(views(300, 0))

    def process(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full((len(places), 2), -1.0), np.full(len(places), variance)

    object.__setattr__(fresh.following, "_process", lambda size, without="": process)
    found = fresh.condition(damaged(labels(100, 1), "fading", 0.5, 1))
    assert found.known is known
    assert found.unlike is not known
