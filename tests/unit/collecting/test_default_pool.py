"""The pool that nobody named is chosen by what the inputs are, or asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recal import collect
from recal.collecting.models.base import CallableModel
from recal.collecting.pools import USUAL, modality, usual_pool
from recal.collecting.sources import as_source
from recal.errors import InputError
from recal.transforms import pool

RNG = np.random.default_rng(0)
MODEL = CallableModel(lambda batch: batch)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (np.zeros((2, 32, 32, 3), np.uint8), "image"),
        (np.zeros((2, 3, 32, 32), np.float32), "image"),
        (torch.zeros((2, 1, 28, 28)), "image"),
        (np.zeros((2, 28, 28), np.uint8), "image"),
        (RNG.random((2, 16, 16)), "image"),
        (np.zeros((2, 8, 32, 32, 3), np.uint8), "video"),
        (RNG.normal(size=(2, 3, 50)), "series"),
        (RNG.normal(size=(2, 1, 24)), "series"),
        (["a text", "another"], "text"),
        (np.array(["a text", "another"]), "text"),
        ([b"\x00\x01", b"\x7fELF"], "text"),
    ],
)
def test_inputs_that_tell_what_they_are(batch, expected):
    assert modality(batch) == expected


@pytest.mark.parametrize(
    ("batch", "question"),
    [
        (RNG.normal(size=(4, 20)), "features of a table, series, sounds"),
        (RNG.integers(0, 9, (4, 20)), "token ids, features"),
        (RNG.normal(size=(4, 50, 3)), "is time the last axis"),
        (RNG.normal(size=(4, 20, 50)), "grey pictures, or series"),
        (RNG.normal(size=(4, 3, 32, 32)), "look normalised already"),
        (np.zeros((4, 20), dtype=bool), "no default pool for this dtype"),
        (np.zeros((2, 2, 2, 2, 2, 2)), "this number of axes"),
        (np.array([{"a": 1}, 3], dtype=object), "may hold anything"),
    ],
)
def test_inputs_that_do_not_tell_are_asked_about(batch, question):
    with pytest.raises(InputError, match=question):
        modality(batch)


def test_series_of_unequal_length_are_series_and_ids_are_tokens():
    series = np.empty(2, dtype=object)
    series[:] = [np.zeros(5), np.zeros(7)]
    ids = np.empty(2, dtype=object)
    ids[:] = [np.arange(5), np.arange(7)]
    assert (modality(series), modality(ids)) == ("series", "text")


def test_every_usual_pool_can_be_drawn_and_fits_its_modality():
    for made_for, spec in USUAL.items():
        found = pool(spec, data=np.ones((3, 4)))
        allowed = {made_for, {"video": "image", "audio": "series"}.get(made_for, made_for)}
        assert {transform.modality for transform in found} <= allowed
        assert 8 <= len(found) <= 10


def test_a_generator_is_not_used_up_by_a_look():
    with pytest.raises(InputError, match="can be read only once"):
        usual_pool(as_source(batch for batch in [np.zeros((2, 8, 8), np.uint8)]), MODEL)


def test_collect_takes_the_word_auto():
    images = RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    views = collect(lambda batch: batch[:, 0, :2].astype(float), images, "auto")
    assert len(views.transforms) == 10
