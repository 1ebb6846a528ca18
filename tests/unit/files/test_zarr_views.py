"""Rows read straight from a store's files are those that zarr reads."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from recal import ReCal, read_views
from recal.errors import FileError, InputError
from recal.files.zarr_rows import plain_chunks
from tests.problems import views

SELECTIONS = [
    np.arange(25),
    np.arange(24, -1, -1),
    np.array([3, 3, 9, 10, 24, 0]),
    np.array([7]),
    np.arange(5, 25, 3),
]


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
    assert (
        plain_chunks(stored(tmp_path / "b.zarr", (25, 7), compressors=None, chunks=(10, 4))) is None
    )
    assert (
        plain_chunks(
            stored(tmp_path / "c.zarr", (3, 25, 7), compressors=None, chunks=(3, 10, 7)), 0
        )
        is None
    )
    other_end_first = {"serializer": zarr.codecs.BytesCodec(endian="big"), "compressors": None}
    assert plain_chunks(stored(tmp_path / "d.zarr", (25, 7), **other_end_first)) is None


def made_with_zarr(folder, **packing):
    """A folder of views that zarr alone wrote."""
    root = zarr.open_group(str(folder / "v.zarr"), mode="w", zarr_format=3)
    root.attrs["recal"] = {"kind": "views", "version": 1, "transforms": ["flip"]}
    values = np.random.default_rng(0).normal(size=(2, 25, 7)).astype(np.float32)
    root.create_array("logits", data=values[0], chunks=(10, 7), **packing)
    root.create_array("transformed", data=values[1:], chunks=(1, 10, 7), compressors=None)
    return values


def test_a_folder_made_with_zarr_may_be_transposed(tmp_path):
    turned = zarr.codecs.TransposeCodec(order=(1, 0))
    values = made_with_zarr(tmp_path, filters=turned, compressors=None)
    opened = read_views(tmp_path / "v.zarr")
    np.testing.assert_array_equal(opened.logits, values[0])
    np.testing.assert_array_equal(opened.transformed("flip")[::3], values[1, ::3])


@pytest.mark.parametrize(
    "codec", [zarr.codecs.BloscCodec(), zarr.codecs.GzipCodec(), zarr.codecs.ZstdCodec()]
)
def test_compressed_chunks_are_refused(tmp_path, codec):
    made_with_zarr(tmp_path, compressors=codec)
    with pytest.raises(FileError, match="compressors=None"):
        read_views(tmp_path / "v.zarr")


def test_what_recal_writes_is_uncompressed(tmp_path):
    path = views(20).assign(groups=["a"] * 20).write(tmp_path / "v.zarr")
    for held in path.rglob("zarr.json"):
        assert "zstd" not in held.read_text()


@pytest.mark.parametrize("transposed", [False, True])
def test_a_chunk_is_not_read_from_outside_the_store(tmp_path, transposed):
    more = {"filters": zarr.codecs.TransposeCodec(order=(1, 0))} if transposed else {}
    made_with_zarr(tmp_path, compressors=None, **more)
    chunk = tmp_path / "v.zarr/logits/c/0/0"
    chunk.rename(tmp_path / "secret")
    chunk.symlink_to(tmp_path / "secret")
    with pytest.raises(FileError, match="outside"):
        _ = read_views(tmp_path / "v.zarr").logits


def test_a_fit_from_disk_is_the_fit_in_memory(tmp_path):
    sample = views(n_classes=60, scale=6, noise=0.5, keep=0.7, dtype=np.float32)
    lazy = read_views(sample.write(tmp_path / "v.zarr"))
    options = {"random_state": 0, "max_iter": 30, "tol": 0}
    assert ReCal(**options).fit(lazy).plan_ == ReCal(**options).fit(sample).plan_
    part = np.random.default_rng(1).permutation(300)[:200]
    assert ReCal(**options).fit(lazy[part]).plan_ == ReCal(**options).fit(sample[part]).plan_


def test_a_chunk_that_was_cut_or_lost_is_told(tmp_path):
    path = views(n_classes=60, scale=6, noise=0.5, keep=0.7, dtype=np.float32).write(
        tmp_path / "v.zarr"
    )
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
