"""What a microphone, a room or a player does to a sound, on sounds whose result is known."""

from __future__ import annotations

import numpy as np
import pytest

from recal.transforms import Clip, Echo, Faster, HighPass, pool

TIME = np.arange(800)
LOW, HIGH = np.sin(0.02 * np.pi * TIME)[None], np.sin(0.5 * np.pi * TIME + 0.3)[None]


def test_high_pass_takes_the_low_tone_and_leaves_the_high_one():
    heard = HighPass(0.2)(LOW + HIGH)
    np.testing.assert_allclose(heard[:, 50:-50], HIGH[:, 50:-50], atol=0.01)


def test_high_pass_rests_at_the_middle_of_unsigned_samples():
    assert (HighPass(0.2)(np.full((1, 50), 128, np.uint8)) == 128).all()


def test_clip_is_measured_by_each_sound_and_by_all_of_its_channels():
    sounds = np.array([[[1.0, -4.0], [0.5, 2.0]], [[0.1, -0.2], [0.4, 0.3]]])
    expected = np.array([[[1.0, -2.0], [0.5, 2.0]], [[0.1, -0.2], [0.2, 0.2]]])
    np.testing.assert_array_equal(Clip(0.5)(sounds), expected)


def test_faster_reads_between_samples_and_ends_in_silence():
    np.testing.assert_allclose(Faster(1.5)(np.array([[0.0, 1.0, 2.0, 3.0]])), [[0.0, 1.5, 3.0, 0.0]])
    assert Faster(2)(np.full((1, 4), 200, np.uint8)).tolist() == [[200, 200, 128, 128]]


def test_an_echo_of_a_sound_shorter_than_its_delays_repeats_the_next_sample():
    np.testing.assert_allclose(Echo(0.5)(np.array([[1.0, 0.0]])), [[1.0, sum(0.5**k for k in range(1, 6))]])


@pytest.mark.parametrize(("modality", "kinds"), [("audio", 10), ("tabular", 4), ("series", 6), ("image", 7)])
def test_pools_of_damage_have_three_strengths_of_each_kind(modality, kinds):
    found = [one.kind for one in pool(f"damage:{modality}", data=np.ones((3, 2)) if modality == "tabular" else None)]
    assert len(set(found)) == kinds
    assert {found.count(kind) for kind in found} == {3}
