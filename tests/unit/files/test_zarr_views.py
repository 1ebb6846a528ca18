"""Rows read straight from a store's files are those that zarr reads."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from recal import ReCal, Views, read_views
from recal.errors import FileError, InputError
from recal.files.zarr_views import plain_chunks

SELECTIONS = [np.arange(25), np.arange(24, -1, -1), np.array([3, 3, 9, 10, 24, 0]), np.array([7]), np.arange(5, 25, 3)]


def stored(path, shape, dtype="float32", **options):
    root = zarr.open_group(str(path), mode="w", zarr_format=3)
    chunks = (*(1,) * (len(shape) - 2), 10, shape[-1])
    array = root.create_array(
        "a", shape=shape, dtype=dtype, **{"chunks": chunks, "fill_value": float("nan"), **options}
    )
    array[...] = np.random.default_rng(0).normal(size=shape)
    return zarr.open_group(str(path), mode="r")["a"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rows", SELECTIONS, ids=range(len(SELECTIONS)))
def test_any_rows_in_any_order(tmp_path, rows, dtype):
    array = stored(tmp_path / "a.zarr", (3, 25, 7), dtype, compressors=None)
    for layer in range(3):
        np.testing.assert_array_equal(plain_chunks(array, layer).read(rows), array[layer][rows])
    flat = stored(tmp_path / "b.zarr", (25, 7), dtype, compressors=None)
    np.testing.assert_array_equal(plain_chunks(flat).read(rows), flat[:][rows])


def test_what_is_packed_or_cut_across_rows_is_left_to_zarr(tmp_path):
    assert plain_chunks(stored(tmp_path / "a.zarr", (25, 7))) is None
    assert plain_chunks(stored(tmp_path / "b.zarr", (25, 7), compressors=None, chunks=(10, 4))) is None
    assert plain_chunks(stored(tmp_path / "c.zarr", (3, 25, 7), compressors=None, chunks=(3, 10, 7)), 0) is None
    other_end_first = {"serializer": zarr.codecs.BytesCodec(endian="big"), "compressors": None}
    assert plain_chunks(stored(tmp_path / "d.zarr", (25, 7), **other_end_first)) is None


def views(n=300, k=60):
    rng = np.random.default_rng(0)
    y = rng.integers(0, k, n)
    z = (3 * rng.normal(size=(n, k)) + 6 * np.eye(k)[y]).astype(np.float32)
    return Views(z, {f"zoom:0.{i}": (z * 0.7 + rng.normal(size=z.shape)).astype(np.float32) for i in (3, 5)}, y)


def test_a_fit_from_disk_is_the_fit_in_memory(tmp_path):
    sample = views()
    lazy = read_views(sample.write(tmp_path / "v.zarr"))
    options = {"random_state": 0, "max_iter": 30, "tol": 0}
    assert ReCal(**options).fit(lazy).plan_ == ReCal(**options).fit(sample).plan_
    part = np.random.default_rng(1).permutation(300)[:200]
    assert ReCal(**options).fit(lazy[part]).plan_ == ReCal(**options).fit(sample[part]).plan_


def test_a_chunk_that_was_cut_or_lost_is_told(tmp_path):
    path = views().write(tmp_path / "v.zarr")
    chunk = path / "transformed/c/0/0/0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:-8])
    with pytest.raises(FileError, match="cut short"):
        read_views(path).transformed("zoom:0.3")
    chunk.unlink()
    with pytest.raises(FileError, match="rows 0 and on of view 0 are not what was written"):
        read_views(path).transformed("zoom:0.3")
    with pytest.raises(InputError, match="is nan"):
        read_views(path, verify=False).transformed("zoom:0.3")
