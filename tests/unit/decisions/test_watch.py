"""The watch without labels: false alarms as rare as promised, changes that are seen, estimates that
begin exact.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from recal import TemperatureScaling, Views, load, save
from recal.decisions import Profile, profile, watch
from recal.decisions.profiles import _distance, _max_t
from recal.errors import FileError, InputError, SameRowsWarning
from tests.problems import looks


def without_labels(found: Views) -> Views:
    return Views(found.logits, {t: found.transformed(t) for t in found.transforms})


def test_false_alarms_are_as_rare_as_promised_in_a_batch():
    kept = profile(looks(400, seed=0))
    alarms = []
    for seed in range(150):
        one = profile(without_labels(looks(100, seed=1000 + seed)))
        alarms.append(watch(one, looks(40, seed=5000 + seed), alpha=0.1, permutations=29).alarm)
    assert np.mean(alarms) <= 0.1 + 2 * math.sqrt(0.1 * 0.9 / 150)
    assert np.mean(alarms) > 0.02, "a test that never speaks would pass as well"
    assert not watch(kept, looks(400, seed=7)).alarm


@pytest.mark.parametrize(
    ("changed", "finding"),
    [({"strength": 1.5}, "confidence of the model"), ({"mix": [0.7, 0.1, 0.1, 0.1]}, "class mix")],
)
def test_what_changed_is_named(changed, finding):
    found = watch(profile(looks(1500, seed=0)), looks(500, seed=1, **changed))
    assert found.alarm
    p_values = {one.name: one.p_value for one in found.findings}
    assert p_values[finding] == min(p_values.values()) == found.p_value
    assert len(p_values) == 2


def test_without_labels_at_the_fit_accuracy_is_not_estimated():
    kept = profile(without_labels(looks(300, seed=0)))
    assert not kept.labelled
    found = watch(kept, looks(100, seed=1))
    assert math.isnan(found.accuracy)
    assert "made without labels" in str(found)


@pytest.mark.parametrize("levels", [3, 30, 10_000])
def test_the_smaller_groups_rows_tell_the_distance_of_both(levels):
    rng = np.random.default_rng(levels)
    for size in (1, 5, 29):
        values, rows = rng.integers(0, levels, 60).astype(float), rng.permutation(60)
        mine, others = np.sort(values[rows[:size]]), np.sort(values[rows[size:]])
        shares = [np.searchsorted(one, values, side="right") / len(one) for one in (mine, others)]
        expected = np.abs(shares[0] - shares[1]).max()
        assert _distance(values)(rows[:size]) == pytest.approx(expected, abs=1e-12)
        assert _distance(values)(rows[size:]) == pytest.approx(expected, abs=1e-12)


def test_shuffles_that_are_equally_far_away_count_as_such():
    def alike(answers):
        return np.column_stack([np.zeros(len(answers)), answers])

    everyone = np.repeat(np.arange(7), 30)
    for place in range(
        0, len(everyone), 30
    ):  # whichever class one input is of, all are equally frequent
        fit, today = alike(np.delete(everyone, place)), alike(everyone[[place]])
        units = np.arange(len(everyone) - 1), np.zeros(1, np.intp)
        assert _max_t(fit, today, units, ("confidence",), 99, np.random.default_rng(0))[0] == 1.0


def test_either_group_is_the_smaller_one():
    small, large = looks(60, seed=0).logits, looks(900, seed=1, strength=1.5).logits
    one, other = watch(profile(small), large), watch(profile(large), small)
    assert one.alarm
    assert other.alarm
    assert not watch(profile(looks(60, seed=2).logits), looks(900, seed=3).logits).alarm


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_a_profile_is_saved_alone_and_with_its_calibrator(tmp_path):
    fit = looks(200, seed=0)
    kept, calibrator = profile(fit), TemperatureScaling().fit(fit)
    calibrator.profile_ = kept
    for again in (
        load(save(kept, tmp_path / "a")),
        load(save(calibrator, tmp_path / "b")).profile_,
    ):
        assert isinstance(again, Profile)
        found = watch(again, looks(50, seed=1))
        assert repr(found) == repr(watch(kept, looks(50, seed=1)))  # NaN differs from itself


def test_a_file_cannot_bring_a_profile_that_makes_no_sense(tmp_path):
    kept = profile(looks(100, seed=0))
    object.__setattr__(kept, "numbers", kept.numbers + 0.5)
    with pytest.raises(FileError, match=r"predictions must lie in 0\.\.3"):
        load(save(kept, tmp_path / "bad"))


def test_too_few_shuffles_are_refused():
    with pytest.raises(InputError, match="take 99 or more"):
        watch(profile(looks(50, seed=0)), looks(50, seed=1), permutations=50)


def test_rows_of_the_fit_are_distinguished_from_new_ones():
    rng = np.random.default_rng(0)
    logits, others = rng.normal(size=(2, 400, 3)) * 3
    kept = profile(logits, logits.argmax(1))
    with pytest.warns(SameRowsWarning, match="all of these 400 samples"):
        watch(kept, logits, permutations=99)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SameRowsWarning)
        watch(kept, others, permutations=99)


@pytest.mark.filterwarnings("ignore::recal.errors.DoubtfulLabelsWarning")
def test_what_is_no_profile_is_refused_with_what_to_pass():
    logits = np.random.default_rng(0).normal(size=(60, 3))
    with pytest.raises(InputError, match=r"str.*recal\.profile"):
        watch("profile.recal", logits)
    calibrator = TemperatureScaling().fit(logits, np.arange(60) % 3)
    calibrator.profile_ = profile(logits, np.arange(60) % 3)
    with pytest.raises(InputError, match=r"TemperatureScaling.*profile_"):
        watch(calibrator, logits)


def recordings(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return logits of recordings whose frames resemble each other, and their names."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(5, 40, n)
    centres = 2.0 * rng.normal(size=(n, 3))
    names = np.repeat([f"{seed}-{number}" for number in range(n)], sizes)
    return np.repeat(centres, sizes, axis=0) + rng.normal(size=(sizes.sum(), 3)), names


def test_whole_clusters_are_shuffled():
    """Frames of 12 recordings against 12 others: without clusters nearly every test alarms."""
    alarms = {True: 0, False: 0}
    for seed in range(40):
        (fit, together), (new, clusters) = recordings(12, 2 * seed), recordings(12, 2 * seed + 1)
        kept = profile(fit, clusters=together)
        alarms[True] += watch(kept, new, clusters=clusters, alpha=0.05, permutations=99).alarm
        alarms[False] += watch(profile(fit), new, alpha=0.05, permutations=99).alarm
    assert alarms[True] <= 6
    assert alarms[False] > 20


def test_clusters_find_a_change():
    fit, together = recordings(40, 0)
    new, clusters = recordings(40, 1)
    assert watch(profile(fit, clusters=together), 0.2 * new, clusters=clusters).alarm


@pytest.mark.filterwarnings("ignore::recal.errors.SameRowsWarning")
def test_a_profile_with_clusters_needs_those_of_new_inputs(tmp_path):
    fit, together = recordings(5, 0)
    kept = profile(Views(fit, clusters=together))
    save(kept, tmp_path / "profile.recal")
    loaded = load(tmp_path / "profile.recal")
    np.testing.assert_array_equal(loaded.clusters, kept.clusters)
    with pytest.raises(InputError, match="clusters"):
        watch(kept, fit)
    with pytest.raises(InputError, match="clusters"):
        watch(profile(fit), fit, clusters=together)
