"""Views larger than memory: the originals are mapped from a scratch file, and fits are those of
views in memory.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import zarr

from recal import ReCal, TemperatureScaling, Views, ViewStacking, read_views
from recal.engine import compiled, series
from recal.engine import mapped as mapping
from recal.engine.mapped import MappedRows
from recal.errors import InputError
from recal.files import zarr_views


@pytest.fixture
def small_memory(monkeypatch):
    """As if a kilobyte were much."""
    monkeypatch.setitem(zarr_views.StoredRows.__init__.__kwdefaults__, "max_bytes", 1000)
    for module, name in (
        (compiled, "PIECE_VALUES"),
        (mapping, "PIECE_VALUES"),
        (series, "_PIECE"),
        (zarr_views, "PIECE_VALUES"),
    ):
        monkeypatch.setattr(module, name, 700)


def made_up(n=900, k=60):
    rng = np.random.default_rng(0)
    y = rng.integers(0, k, n)
    looks = [
        (4.0 * np.eye(k)[y] + rng.normal(size=(n, k)) * 1.5).astype(np.float32) for _ in range(3)
    ]
    return Views(2 * looks[0], {"zoom:0.5": looks[1], "flip": looks[2]}, y)


@pytest.mark.parametrize(
    "method", [TemperatureScaling(), ReCal(random_state=0, max_iter=12), ViewStacking()]
)
def test_fits_are_those_of_views_in_memory(tmp_path, small_memory, method):
    views = made_up()
    stored = read_views(views.write(tmp_path / "v.zarr"))
    expected = method.fit(views).plan_
    assert method.fit(stored).plan_ == expected
    assert isinstance(stored.logits, MappedRows)


def test_the_scratch_file_has_no_name_and_is_made_once(tmp_path, small_memory):
    views = made_up()
    stored = read_views(views.write(tmp_path / "v.zarr"))
    np.testing.assert_array_equal(stored.logits, views.logits)
    assert stored.logits is stored.logits
    assert os.listdir(tmp_path) == ["v.zarr"]
    assert type(stored.logits[[3, 4]]) is np.ndarray
    assert isinstance(stored[:10].logits, np.ndarray)
    assert not stored.logits.flags.writeable


def test_pages_are_given_back_after_each_piece(tmp_path, small_memory, monkeypatch):
    stored = read_views(made_up().write(tmp_path / "v.zarr"))
    given_back = []
    monkeypatch.setattr(MappedRows, "release", lambda rows: given_back.append(rows.shape))
    seen = []
    compiled.over_rows(
        lambda rows, start, stop: seen.append((type(rows), start, stop)), stored.logits
    )
    assert [kind for kind, _, _ in seen] == [np.ndarray] * len(seen)
    assert max(stop - start for _, start, stop in seen) * 60 <= 720
    assert (seen[0][1], seen[-1][2]) == (0, 900)
    assert len(given_back) == 78  # 54,000 values


def test_bad_values_are_refused_as_in_memory(tmp_path, small_memory):
    values = np.random.default_rng(0).normal(size=(900, 3)).astype(np.float32)
    path = Views(values).write(tmp_path / "v.zarr")
    zarr.open_group(str(path), mode="r+")["logits"][5, 1] = np.nan
    stored = read_views(path, verify=False)
    with pytest.raises(InputError, match="must be finite"):
        TemperatureScaling().fit(stored, np.arange(900) % 3)


def test_rows_are_picked_as_from_an_array(tmp_path, small_memory):
    plain = made_up()
    logits = read_views(plain.write(tmp_path / "v.zarr")).logits
    assert isinstance(logits, MappedRows)
    for rows in (
        np.array([5, -1, 5]),
        np.array([[1, 2], [3, 4]]),
        np.arange(900) % 2 == 0,
        [7, 3],
        slice(3, 9),
    ):
        assert np.array_equal(logits[rows], plain.logits[rows])


def test_predictions_of_mapped_rows_are_read_piece_by_piece(tmp_path, monkeypatch):
    values = np.random.default_rng(0).normal(size=(1000, 7)).astype(np.float32)
    mapped = mapping.map_rows([values[:600], values[600:]], values.shape, np.float32, tmp_path)
    releases = []
    for module in (compiled, mapping):
        monkeypatch.setattr(module, "PIECE_VALUES", 700)
    monkeypatch.setattr(mapping.MappedRows, "release", lambda self: releases.append(len(self)))
    np.testing.assert_array_equal(np.argmax(mapped, axis=1), values.argmax(axis=1))
    assert len(releases) == 10
    assert mapped.argmax() == values.argmax()
    np.testing.assert_array_equal(mapped.argmax(axis=0), values.argmax(axis=0))
