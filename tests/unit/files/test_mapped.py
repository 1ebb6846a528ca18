"""Views larger than memory: the originals are mapped from a scratch file, and fits are those of
views in memory.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import zarr

from recal import ReCal, TemperatureScaling, Views, ViewStacking, read_views
from recal.engine import series
from recal.errors import InputError
from recal.files import zarr_views


@pytest.fixture
def small_memory(monkeypatch):
    """As if a kilobyte were much."""
    monkeypatch.setitem(zarr_views.StoredRows.__init__.__kwdefaults__, "max_bytes", 1000)
    monkeypatch.setattr(series, "_PIECE", 700)


def made_up(n=900, k=60):
    rng = np.random.default_rng(0)
    y = rng.integers(0, k, n)
    looks = [
        (4.0 * np.eye(k)[y] + rng.normal(size=(n, k)) * 1.5).astype(np.float32) for _ in range(3)
    ]
    return Views(2 * looks[0], {"zoom:0.5": looks[1], "flip": looks[2]}, y)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize(
    "method", [TemperatureScaling(), ReCal(random_state=0, max_iter=12), ViewStacking()]
)
def test_fits_are_those_of_views_in_memory(tmp_path, small_memory, method):
    views = made_up()
    stored = read_views(views.write(tmp_path / "v.zarr"))
    expected = method.fit(views).plan_
    assert method.fit(stored).plan_ == expected
    assert isinstance(stored.logits.base, np.memmap)


def test_the_scratch_file_has_no_name_and_is_made_once(tmp_path, small_memory):
    views = made_up()
    stored = read_views(views.write(tmp_path / "v.zarr"))
    np.testing.assert_array_equal(stored.logits, views.logits)
    assert stored.logits is stored.logits
    assert os.listdir(tmp_path) == ["v.zarr"]
    assert type(stored.logits[[3, 4]]) is np.ndarray
    assert isinstance(stored[:10].logits, np.ndarray)
    assert not stored.logits.flags.writeable


def test_bad_values_are_refused_as_in_memory(tmp_path, small_memory):
    values = np.random.default_rng(0).normal(size=(900, 3)).astype(np.float32)
    path = Views(values).write(tmp_path / "v.zarr")
    zarr.open_group(str(path), mode="r+")["logits"][5, 1] = np.nan
    stored = read_views(path, verify=False)
    with pytest.raises(InputError, match="must be finite"):
        TemperatureScaling().fit(stored, np.arange(900) % 3)
