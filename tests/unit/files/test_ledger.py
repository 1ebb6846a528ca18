"""A folder of views that was damaged, or written again: told when it is read, and never silently
wrong.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

from recal import Views, collect, read_views
from recal.errors import FileError
from recal.files.ledger import COLLECTED, read_ledger

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(20, 3)).astype(np.float32)
IMAGES = RNG.integers(0, 256, (20, 8, 8), dtype=np.uint8)
POOL = "zoom:0.5-0.9:2"


def three_logits(batch):
    return np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)[:, :3] / 20


def make(seed=0) -> Views:
    rng = np.random.default_rng(seed)
    seen = {spec: rng.normal(size=(20, 3)).astype(np.float32) for spec in ("zoom:0.3", "zoom:0.7")}
    return Views(LOGITS, seen, labels=np.arange(20) % 3, classes=["a", "b", "c"])


@pytest.fixture(params=["written", "collected"])
def store(request, tmp_path, monkeypatch):
    """A folder of four rows a block, from each of the two writers."""
    path = tmp_path / "v.zarr"
    if request.param == "written":
        monkeypatch.setattr("recal.files.views._PART_VALUES", 12)
        make().write(path)
    else:
        collect(three_logits, IMAGES, POOL, labels=np.arange(20) % 3, batch_size=4, out=path)
    return path


def everything(path, **options):
    views = read_views(path, **options)
    return [
        views.logits,
        *(views.transformed(transform) for transform in views.transforms),
        views.labels,
    ]


def chunks(path):
    return sorted(file for file in path.rglob("*") if file.is_file() and "/c/" in file.as_posix())


def flip(file):
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    file.write_bytes(content)


def cut(file):
    file.write_bytes(file.read_bytes()[:-4])


def empty(file):
    file.write_bytes(bytes(len(file.read_bytes())))


def remove(file):
    file.unlink()


@pytest.mark.parametrize("damage", [flip, cut, empty, remove])
def test_damage_in_any_chunk_is_told_when_it_is_read(store, damage):
    before = everything(store)
    for file in chunks(store):
        whole = file.read_bytes()
        damage(file)
        with pytest.raises(FileError, match=r"v\.zarr is damaged"):
            everything(store)
        file.write_bytes(whole)
    for old, new in zip(before, everything(store)):
        np.testing.assert_array_equal(old, new)


def test_swapped_chunks_are_told(store):
    for folder in ("logits", "transformed"):
        first, second, *_ = [file for file in chunks(store) if file.is_relative_to(store / folder)]
        one, other = first.read_bytes(), second.read_bytes()
        first.write_bytes(other)
        second.write_bytes(one)
        with pytest.raises(FileError, match="not what was written"):
            everything(store)
        first.write_bytes(one)
        second.write_bytes(other)


def test_names_that_were_changed_are_told(store):
    path = store / "zarr.json"
    held = json.loads(path.read_text())
    held["attributes"]["recal"]["transforms"].reverse()
    path.write_text(json.dumps(held))
    with pytest.raises(FileError, match="what it says about its views is not what was written"):
        read_views(store)


@pytest.mark.parametrize("content", [b"", b"[]", b"[" * 100_000, b'{"rows": 0}'])
def test_a_list_of_checksums_that_was_damaged_or_lost_is_told(store, content):
    (store / "ledger.txt").write_bytes(content)
    with pytest.raises(FileError, match=r"its ledger\.txt cannot be used.*verify=False"):
        read_views(store)
    (store / "ledger.txt").unlink()
    with pytest.raises(FileError, match="it is missing"):
        read_views(store)
    assert len(everything(store, verify=False)[0]) == 20


def test_only_blocks_that_are_read_are_compared_and_each_once(store, monkeypatch):
    compared = []
    views = read_views(store)
    views._logits._snapshot.sums[0][:] = [-1] * 5
    monkeypatch.setattr(
        "recal.files.zarr_views.checksum", lambda values: compared.append(len(values)) or -1
    )
    for rows in ([5, 6], slice(4, 8), 7, slice(5, 6), slice(7, 4, -1)):
        _ = views[rows].logits
    assert compared == [4]
    _ = views.logits
    assert compared == [4] * 5


def test_a_part_of_a_damaged_block_is_not_read_either(store):
    flip(store / "logits/c/1/0")
    views = read_views(store)
    np.testing.assert_array_equal(views[:4].logits, everything(store, verify=False)[0][:4])
    for rows in ([7], slice(6, 7), slice(3, 6), slice(0, 20, 3)):
        with pytest.raises(FileError, match="rows 4 and on of the logits"):
            _ = views[rows].logits


# --- collecting again


def counted(path, calls):
    """A collect that leaves in `calls` how many rows the model was shown each time."""

    def three_logits(batch):
        calls.append(len(batch))
        return np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)[:, :3] / 20

    def run():
        calls.clear()
        return collect(three_logits, IMAGES, POOL, labels=np.arange(20) % 3, batch_size=4, out=path)

    return run


@pytest.mark.parametrize("damage", [flip, cut, remove])
@pytest.mark.parametrize(
    "place", ["logits/c/1/0", "transformed/c/0/2/0", "labels/c/0", "zarr.json"]
)
def test_collecting_again_mends_what_was_damaged(tmp_path, damage, place):
    path = tmp_path / "v.zarr"
    calls = []

    run = counted(path, calls)
    run()
    whole = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    damage(path / place)
    run()
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == whole
    if place.startswith(("logits", "transformed")):
        assert len(calls) == 2 * 3, "the damaged block, and the one by which the model is known"


@pytest.mark.parametrize("line", [1, 3, -1])
def test_a_damaged_line_of_the_ledger_costs_its_block_alone(tmp_path, line):
    path, calls = tmp_path / "v.zarr", []

    run = counted(path, calls)
    run()
    whole = (path / "ledger.txt").read_bytes()
    lines = whole.splitlines(keepends=True)
    digit = re.search(rb'"([0-9a-f])[0-9a-f]{31}"', lines[line]).start(
        1
    )  # of a digest: the line stays valid JSON
    lines[line] = (
        lines[line][:digit]
        + (b"1" if lines[line][digit : digit + 1] == b"0" else b"0")
        + lines[line][digit + 1 :]
    )
    (path / "ledger.txt").write_bytes(b"".join(lines))
    with pytest.raises(FileError, match="unfinished" if line == -1 else "not what was written"):
        read_views(path)
    run()
    assert len(calls) == (3 if line == -1 else 2 * 3), (
        "the block without a line, and the one that is compared"
    )
    assert (path / "ledger.txt").read_bytes() == whole


# --- written again while it is open


@pytest.mark.parametrize("again", ["written", "collected", "removed"])
def test_open_views_refuse_to_go_on_when_the_folder_was_written_again(store, again):
    views = read_views(store)
    part = views[[1, 5]]
    first = views[:4].logits
    if again == "written":
        make(seed=1).write(store)
    elif again == "removed":
        for file in sorted(store.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
    elif read_ledger(store).header["kind"] == COLLECTED:
        collect(three_logits, IMAGES, "zoom:0.1-0.4:2", batch_size=4, out=store, resume=False)
    else:
        return
    for read in (
        lambda: views.logits,
        lambda: part.logits,
        lambda: views.transformed(views.transforms[0]),
    ):
        with pytest.raises(
            FileError, match=r"was written again, or removed, since it was opened.*read_views"
        ):
            read()
    assert len(first) == 4


# --- who writes


class Waiting:
    """A model that waits in its second batch until it is told to go on."""

    def __init__(self):
        self.__name__ = self.__qualname__ = "three_logits"
        self.there, self.go, self.calls = threading.Event(), threading.Event(), 0

    def __call__(self, batch):
        self.calls += 1
        if self.calls == 4:
            self.there.set()
            self.go.wait(30)
        return three_logits(batch)


@pytest.mark.parametrize("again", [{"resume": False}, {"resume": True}, None])
def test_a_store_that_another_run_writes_is_neither_removed_nor_mixed(tmp_path, again):
    path, model = tmp_path / "v.zarr", Waiting()
    run = threading.Thread(target=lambda: collect(model, IMAGES, POOL, batch_size=4, out=path))
    run.start()
    assert model.there.wait(30)

    def other():
        if again is None:
            return make().write(path)
        return collect(
            lambda batch: -three_logits(batch), IMAGES, "zoom:0.3", batch_size=4, out=path, **again
        )

    try:
        with pytest.raises(FileError, match="Another collect is writing"):
            other()
    finally:
        model.go.set()
        run.join()
    np.testing.assert_array_equal(read_views(path).logits, three_logits(IMAGES))


def test_a_store_that_was_removed_under_way_is_told(tmp_path):
    path = tmp_path / "v.zarr"
    calls = []

    def model(batch):
        calls.append(0)
        if len(calls) == 7:
            path.rename(tmp_path / "elsewhere")
        return three_logits(batch)

    with pytest.raises(
        FileError, match=r"was removed or replaced while it was written|Cannot write"
    ):
        collect(model, IMAGES, POOL, batch_size=4, out=path)


@pytest.mark.parametrize("place", ["logits/c/1/0", "transformed/c/0/1/0", "ledger.txt"])
def test_a_pipe_in_place_of_a_file_is_refused_at_once(store, place):
    if not (store / place).exists():
        place = "transformed/c/0/1/0"
    (store / place).unlink()
    os.mkfifo(store / place)
    with pytest.raises(FileError, match="damaged"):
        everything(store)
    if place != "ledger.txt":
        with pytest.raises(FileError, match="is not a regular file"):
            everything(store, verify=False)


def test_answers_that_differ_by_more_than_rounding_are_another_models(tmp_path):
    path = tmp_path / "v.zarr"

    def shifted(step):
        def model(batch):
            return three_logits(batch) + np.float32(step)

        return model

    collect(shifted(0.0), IMAGES, None, batch_size=4, out=path)
    collect(shifted(2e-6), IMAGES, None, batch_size=4, out=path)
    with pytest.raises(ValueError, match="another model or another preprocess"):
        collect(shifted(1e-4), IMAGES, None, batch_size=4, out=path)


# --- killed while it is replaced

KILLED = """
import os, sys
import numpy as np
import recal.files.zarr_views as folders
from recal import Views

views = Views(np.full((4, 3), 7.0), {"zoom:0.5": np.full((4, 3), 8.0)})
rename = os.rename
os.rename = lambda *names: (rename(*names), os._exit(9))
views.write(sys.argv[1])
os._exit(9)
"""


def test_killed_between_its_renames_a_folder_is_still_there(tmp_path):
    path = make().write(tmp_path / "v.zarr")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment, check=False)
    assert done.returncode == 9
    assert read_views(path).n_samples in (4, 20)
