"""The pilot of `recal calibrate`: which views it chooses, and on which rows."""

from __future__ import annotations

import numpy as np
import pytest

from recal.collecting import as_source
from recal.collecting.models.base import CallableModel
from recal.collecting.pilot import run_pilot
from recal.transforms import Flip, Named, pool


def left(batch):
    """A model that looks at the left half of an image."""
    score = np.asarray(batch, dtype=np.float64)[:, :, :3].sum((1, 2))
    return np.stack([-score, score], axis=1)


@pytest.fixture(scope="module")
def source():
    rng = np.random.default_rng(0)
    y = np.sort(rng.integers(0, 2, 1200))  # a folder comes sorted by class
    images = rng.normal(0, 1, (1200, 6, 6)) + 0.4 * np.where(y == 1, 1, -1)[:, None, None]
    source = as_source(images.astype(np.float32))
    source.labels = y
    return source


def test_a_view_that_helps_is_chosen_on_random_rows(source, tmp_path):
    candidates = pool("flip+shift+brightness:0.5")
    how = {"out": tmp_path / "views.zarr", "progress": False}
    pilot = run_pilot(CallableModel(left), source, candidates, 600, **how)
    assert (pilot.views.n_samples, pilot.chosen) == (600, (Flip(),))
    assert set(pilot.views.transforms) == set(candidates)
    assert 200 < pilot.views.labels.sum() < 400
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"views.pilot.zarr", "views.pilot2.zarr"}


def test_it_stops_when_no_view_comes_near_paying_and_keeps_ones_own_code(source, tmp_path):
    same = Named("same", lambda images: images)
    how = {"out": tmp_path / "views.zarr", "progress": False}
    pilot = run_pilot(CallableModel(left), source, [same], 1000, **how)
    assert (pilot.views.n_samples, pilot.chosen) == (400, ())
    mirrored = Named("mirrored", lambda images: images[..., ::-1])
    how["out"] = tmp_path / "others.zarr"
    assert run_pilot(CallableModel(left), source, [mirrored], 400, **how).chosen == (mirrored,)
