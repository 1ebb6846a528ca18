"""Sounds whose result is known: masked or in noise; and ragged series."""

from __future__ import annotations

import numpy as np
import pytest

from recal.transforms import TRANSFORMS, Noise, Quieter, TimeMask

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("snr", [0, 10, 30])
def test_noise_has_the_ratio_asked_for_and_a_normal_shape(snr):
    sound = RNG.normal(size=(3, 8000)) * np.array([[0.1], [1.0], [5.0]])
    added = Noise(snr)(sound) - sound
    measured = 10 * np.log10((sound**2).mean(1) / (added**2).mean(1))
    np.testing.assert_allclose(measured, snr, atol=1e-6)
    scaled = added / added.std(1, keepdims=True)
    np.testing.assert_allclose((scaled**4).mean(1), 3, atol=0.3)
    assert abs(np.corrcoef(sound[0], added[0])[0, 1]) < 0.05


def test_silence_stays_silent_and_unsigned_sounds_rest_in_the_middle():
    assert (Noise(0)(np.zeros((1, 50))) == 0).all()
    rest = np.full((1, 50), 128, dtype=np.uint8)
    for transform in (Noise(0), Quieter(0.2), TimeMask(0.5)):
        assert (transform(rest) == 128).all()


def test_a_mask_is_one_stretch():
    lost = TimeMask(0.3)(np.ones((20, 2, 100))) == 0
    assert (lost.sum(axis=2) == 30).all()
    assert (np.abs(np.diff(lost.astype(int), axis=2)).sum(axis=2) <= 2).all()


@pytest.mark.parametrize(
    "cls", [c for c in TRANSFORMS if c.modality in ("series", "audio")], ids=lambda c: c.kind
)
def test_series_of_different_lengths(cls):
    transform = cls(cls.strengths.strong)
    series = [RNG.uniform(-1, 1, 40), RNG.uniform(-1, 1, (2, 60))]
    changed = transform(series)
    assert isinstance(changed, list)
    for old, new in zip(series, changed):
        np.testing.assert_array_equal(new, transform(old[None])[0])
    ragged = np.empty(2, dtype=object)
    ragged[:] = series
    assert transform(ragged).dtype == object
