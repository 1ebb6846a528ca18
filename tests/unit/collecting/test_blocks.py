"""A worker writes into a store only while the run that sent it holds the store, and only its ledger
makes it count.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest

from recal import collect, read_views
from recal.collecting import as_model, as_source
from recal.collecting.blocks import Block, Job
from recal.collecting.store import StoreSink
from recal.errors import FileError, InputError

INPUTS = np.random.default_rng(0).normal(size=(12, 3))


def identity(batch):
    return np.asarray(batch)


def open_sink(target):
    return StoreSink(
        Job(as_model(identity)), as_source(INPUTS), None, target, batch_size=4, resume=True
    )


def blocks(sink):
    return [
        sink.job.run(batch, sink.source.describe, digests=True) for batch in sink.source.batches(4)
    ]


def begun(target):
    """A sink with its first block, the blocks, and a writer as it arrives in another process."""
    sink = open_sink(target).__enter__()
    made = blocks(sink)
    assert sink.finisher() is None, "what the arrays are is not known yet"
    sink.put(made[0])
    return sink, made, copy.deepcopy(sink.finisher())


def test_what_workers_write_and_the_driver_lists_is_a_store(tmp_path):
    sink, made, writer = begun(tmp_path / "v.zarr")
    for block in made[1:]:
        record = writer(block)
        assert record["rows"] == len(block)
        sink.take(block.index, record)
    views = sink.finish()
    sink.__exit__(None, None, None)
    np.testing.assert_array_equal(views.logits, INPUTS)
    collect(identity, INPUTS, None, batch_size=4, out=tmp_path / "local.zarr")
    names = [
        {p.relative_to(f).as_posix() for p in f.rglob("*")}
        for f in (tmp_path / "v.zarr", tmp_path / "local.zarr")
    ]
    assert names[0] == names[1], "the file that let workers in is gone"


def test_a_block_without_a_line_is_computed_again(tmp_path):
    sink, made, writer = begun(tmp_path / "v.zarr")
    writer(made[1])
    sink.__exit__(None, None, None)  # killed before its line
    with open_sink(tmp_path / "v.zarr") as again:
        assert again.done == frozenset(), "block 0 is compared, and block 1 was never listed"
        assert again.finisher() is None, "the block that is compared must come to the driver"
        for block in made:
            again.put(block)
        np.testing.assert_array_equal(again.finish().logits, INPUTS)


def test_a_worker_of_a_run_that_ended_writes_nothing(tmp_path):
    sink, made, writer = begun(tmp_path / "v.zarr")
    sink._lock.close()  # as a kill does; the file that let workers in stays behind
    with open_sink(tmp_path / "v.zarr") as again:
        for block in made:
            again.put(block)
        late = Block(1, 4, made[1].logits + 1, made[1].transformed, None, made[1].inputs)
        assert writer(late) is late
        again.finish()
    assert writer(late) is late
    np.testing.assert_array_equal(read_views(tmp_path / "v.zarr").logits, INPUTS)


def test_workers_hold_blocks_to_the_first(tmp_path):
    sink, made, writer = begun(tmp_path / "v.zarr")
    with pytest.raises(InputError, match="identity gave 3 before and 2 for batch 1"):
        writer(Block(1, 4, made[1].logits[:, :2], made[1].transformed[:, :, :2]))
    sink.__exit__(None, None, None)


def test_a_full_disk_is_told_by_the_worker(tmp_path, monkeypatch):
    sink, made, writer = begun(tmp_path / "v.zarr")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(writer.arrays), "write", full)
    with pytest.raises(
        FileError, match=r"v\.zarr: No space left on device\. Finished blocks are kept"
    ):
        writer(made[1])
    sink.__exit__(None, None, None)
