"""Transformations that give identical results are noticed and not paid twice."""

from __future__ import annotations

import numpy as np
import pytest

from recal import collect

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 16, 16), dtype=np.uint8)


def test_zooms_to_the_same_number_of_pixels_are_asked_once():
    calls = []

    def model(batch):
        calls.append(len(batch))
        return batch[:, 0, :2].astype(float) + batch.mean(axis=(1, 2))[:, None] * [1, 2]

    with pytest.warns(UserWarning, match=r"1 of the 3 transformations.*zoom:0\.82 and zoom:0\.81"):
        views = collect(model, IMAGES, ["zoom:0.81", "zoom:0.5", "zoom:0.82"])
    assert len(calls) == 3  # the original and two views
    assert len(views.transforms) == 3
    np.testing.assert_array_equal(views.transformed("zoom:0.82"), views.transformed("zoom:0.81"))
    np.testing.assert_array_equal(
        views.transformed("zoom:0.82"), collect(model, IMAGES, "zoom:0.82").transformed("zoom:0.82")
    )


@pytest.mark.parametrize(
    ("inputs", "pool", "n_calls"),
    [
        (["word", "two words and more of them"], "tokendrop:0.2+tokendrop:0.6", 3),
        (["word"], "tokendrop:0.2+tokendrop:0.6", 2),  # a single word is never lost
        (IMAGES, "zoom:0.3+zoom:0.7", 3),
    ],
)
@pytest.mark.filterwarnings("ignore:.*have the same effect")
def test_twins_must_agree_on_every_sample(inputs, pool, n_calls):
    calls = []

    def model(batch):
        calls.append(len(batch))
        return np.array([[1.0, 2.0]] * len(batch))

    collect(model, inputs, pool)
    assert len(calls) == n_calls
