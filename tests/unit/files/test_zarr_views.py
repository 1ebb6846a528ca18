"""Folders of views that other programs wrote, damaged chunks, and fits from disk."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from recal import read_views
from recal.errors import FileError
from tests.problems import views


def made_with_zarr(folder, dtype="float32", chunks=(10, 7), **packing):
    """A folder of views that zarr alone wrote."""
    root = zarr.open_group(str(folder / "v.zarr"), mode="w", zarr_format=3)
    root.attrs["recal"] = {"kind": "views", "version": 1, "transforms": ["flip"]}
    values = np.random.default_rng(0).normal(size=(2, 25, 7)).astype(dtype)
    root.create_array("logits", data=values[0], chunks=chunks, **{"compressors": None, **packing})
    root.create_array("transformed", data=values[1:], chunks=(1, *chunks), compressors=None)
    return values


@pytest.mark.parametrize(
    "how",
    [
        {"dtype": "float16"},
        {},
        {"dtype": "float64"},
        {"chunks": (10, 4)},
        {"serializer": zarr.codecs.BytesCodec(endian="big")},
    ],
    ids=str,
)
def test_any_rows_of_a_foreign_folder_in_any_order(tmp_path, how):
    values = made_with_zarr(tmp_path, **how)
    opened = read_views(tmp_path / "v.zarr")
    for rows in (np.arange(25), np.arange(24, -1, -1), [3, 3, 9, 10, 24, 0], [7], slice(5, 25, 3)):
        np.testing.assert_array_equal(opened[rows].logits, values[0][rows])
        np.testing.assert_array_equal(opened[rows].transformed("flip"), values[1][rows])


@pytest.mark.parametrize(
    "packing",
    [
        {"compressors": zarr.codecs.BloscCodec()},
        {"compressors": zarr.codecs.GzipCodec()},
        {"filters": zarr.codecs.TransposeCodec(order=(1, 0))},
    ],
    ids=["blosc", "gzip", "transposed"],
)
def test_packed_chunks_are_refused(tmp_path, packing):
    made_with_zarr(tmp_path, **packing)
    with pytest.raises(FileError, match="compressors=None"):
        read_views(tmp_path / "v.zarr")


def test_what_recal_writes_is_uncompressed(tmp_path):
    path = views(20).assign(groups=["a"] * 20).write(tmp_path / "v.zarr")
    for held in path.rglob("zarr.json"):
        assert "zstd" not in held.read_text()


@pytest.mark.parametrize("place", ["v.zarr/logits/c/0/0", "v.zarr/logits/c/0"])
def test_a_chunk_is_not_read_from_outside_the_store(tmp_path, place):
    made_with_zarr(tmp_path)
    chunk = tmp_path / place
    chunk.rename(tmp_path / "secret")
    chunk.symlink_to(tmp_path / "secret")
    with pytest.raises(FileError, match="outside"):
        _ = read_views(tmp_path / "v.zarr").logits
