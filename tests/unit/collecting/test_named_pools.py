"""Pools with a name: the default is chosen by what the inputs are, or asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recal.collecting.models.base import CallableModel
from recal.collecting.preflight import as_pool, kind_of_inputs
from recal.collecting.sources import as_source
from recal.errors import InputError
from recal.transforms import pool
from recal.transforms.pools import DAMAGE, USUAL

RNG = np.random.default_rng(0)
MODEL = CallableModel(lambda batch: batch)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (np.zeros((2, 32, 32, 3), np.uint8), "image"),
        (np.zeros((2, 3, 32, 32), np.float32), "image"),
        (torch.zeros((2, 1, 28, 28)), "image"),
        (np.zeros((2, 28, 28), np.uint8), "image"),
        (np.zeros((2, 8, 32, 32, 3), np.uint8), "video"),
        (["a text", "another"], "text"),
        (np.array(["a text", "another"]), "text"),
    ],
)
def test_inputs_that_tell_what_they_are(batch, expected):
    assert kind_of_inputs(as_source(batch), MODEL) == expected


@pytest.mark.parametrize(
    "batch",
    [
        RNG.integers(0, 9, (4, 20)),
        RNG.normal(size=(4, 3, 50)),
        RNG.random((4, 16, 16)),
        RNG.normal(size=(4, 3, 32, 32)),
        [np.zeros(5), np.zeros(7)],
    ],
)
def test_inputs_that_do_not_tell_are_asked_about(batch):
    with pytest.raises(InputError, match="auto:series"):
        as_pool("auto", 0, as_source(batch), MODEL)
    assert as_pool("auto:series", 0, as_source(batch), MODEL)[0].modality == "series"


def test_every_usual_pool_can_be_drawn_and_fits_its_modality():
    for made_for, spec in USUAL.items():
        found = pool(spec, data=np.ones((3, 4)))
        allowed = {made_for, {"video": "image", "audio": "series"}.get(made_for, made_for)}
        assert {transform.modality for transform in found} <= allowed
        assert 8 <= len(found) <= 10


@pytest.mark.parametrize("made_for", DAMAGE)
def test_a_pool_of_damage_has_three_strengths_of_three_or_more_kinds(made_for):
    data = RNG.normal(size=(20, 5)) if made_for == "tabular" else None
    kinds = [str(transform).split(":")[0] for transform in pool(f"damage:{made_for}", data=data)]
    assert all(kinds.count(kind) == 3 for kind in kinds)
    assert len(set(kinds)) >= 3


def test_damage_alone_is_that_of_images_and_joins_others():
    assert pool("flip+damage")[1:] == pool("damage:image") == pool("damage")
    assert len({str(transform).split(":")[0] for transform in pool("damage")}) >= 6
    with pytest.raises(InputError, match="got 'damage:smell'"):
        pool("damage:smell")
