"""Folders of views: read row by row, and damage or a second writer is noticed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import zarr

from recal import ReCal, TemperatureScaling, Views, ViewStacking, collect, read_views
from recal.engine import row_blocks, series
from recal.errors import FileError, InputError
from recal.files.zarr_views import COLLECTED, WRITTEN, Ledger, read_ledger

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(20, 3)).astype(np.float32)
IMAGES = RNG.integers(0, 256, (20, 8, 8), dtype=np.uint8)
POOL = "zoom:0.5-0.9:2"
LOGITS_FILE = "logits/c/0/0"


def three_logits(batch):
    return np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)[:, 27:30] / 20


def make(seed=0) -> Views:
    rng = np.random.default_rng(seed)
    seen = {spec: rng.normal(size=(20, 3)).astype(np.float32) for spec in ("zoom:0.3", "zoom:0.7")}
    return Views(LOGITS, seen, labels=np.arange(20) % 3, classes=["a", "b", "c"])


@pytest.fixture(params=["written", "collected"])
def store(request, tmp_path, monkeypatch):
    """A folder of four rows a block, from each of the two writers."""
    path = tmp_path / "v.zarr"
    if request.param == "written":
        few = partial(row_blocks, values=12)
        monkeypatch.setattr("recal.files.zarr_views.row_blocks", few)
        make().write(path)
    else:
        collect(three_logits, IMAGES, POOL, labels=np.arange(20) % 3, batch_size=4, out=path)
    return path


def everything(path):
    views = read_views(path)
    stored = [views.transformed(transform) for transform in views.transforms]
    return [views.logits, *stored, views.labels]


def chunks(path):
    return sorted(file for file in path.rglob("*") if file.is_file() and "/c/" in file.as_posix())


def flip(file, place=5):
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def cut(file):
    file.write_bytes(file.read_bytes()[:-4])


def empty(file):
    file.write_bytes(bytes(len(file.read_bytes())))


def remove(file):
    file.unlink()


@pytest.mark.parametrize("damage", [flip, cut, empty, remove])
def test_damage_in_any_chunk_is_reported_when_it_is_read(store, damage):
    before = everything(store)
    for file in chunks(store):
        whole = file.read_bytes()
        damage(file)
        with pytest.raises(FileError, match=r"v\.zarr is damaged"):
            everything(store)
        file.write_bytes(whole)
    for old, new in zip(before, everything(store)):
        np.testing.assert_array_equal(old, new)


def test_swapped_chunks_are_reported(store):
    content = (store / LOGITS_FILE).read_bytes()
    (store / LOGITS_FILE).write_bytes(content[48:96] + content[:48] + content[96:])
    with pytest.raises(FileError, match="not what was written"):
        everything(store)


@pytest.mark.parametrize("name", ["transforms", "labels"])
def test_names_that_were_changed_are_reported(store, name):
    path = store / "zarr.json"
    held = json.loads(path.read_text())
    held["attributes"]["recal"][name] = ["zoom:0.7", "zoom:0.3"]
    path.write_text(json.dumps(held))
    with pytest.raises(FileError, match="what it says about its views is not what was written"):
        read_views(store)


def test_zarr_reads_what_recal_wrote(store):
    root, views = zarr.open_group(str(store), mode="r"), read_views(store)
    np.testing.assert_array_equal(root["logits"][:], views.logits)
    for number, transform in enumerate(views.transforms):
        np.testing.assert_array_equal(root["transformed"][number], views.transformed(transform))


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b'{"rows": 0}', None])
def test_a_list_of_checksums_that_was_damaged_or_lost_is_reported(store, content):
    (store / "ledger.txt").unlink()
    if content is not None:
        (store / "ledger.txt").write_bytes(content)
    with pytest.raises(FileError, match=r"v\.zarr (is damaged|cannot be used)"):
        read_views(store)


def test_only_blocks_that_are_read_are_compared_and_each_once(store, monkeypatch):
    compared = []
    views = read_views(store)
    views._logits._sums[:] = [-1] * 5
    monkeypatch.setattr(
        "recal.files.zarr_views.checksum", lambda values: compared.append(len(values)) or -1
    )
    for rows in ([5, 6], slice(4, 8), 7, slice(5, 6), slice(7, 4, -1)):
        _ = views[rows].logits
    assert compared == [4]
    _ = views.logits
    assert compared == [4] * 5


def test_a_part_of_a_damaged_block_is_not_read_either(store):
    before = everything(store)[0]
    flip(store / LOGITS_FILE, 50)
    views = read_views(store)
    for rows in ([0, 3, 2], slice(0, 4), slice(19, 7, -3)):
        np.testing.assert_array_equal(views[rows].logits, before[rows])
    for rows in ([7], slice(6, 7), slice(3, 6), slice(0, 20, 3)):
        with pytest.raises(FileError, match="rows 4 and on of the logits"):
            _ = views[rows].logits


# --- collecting again


def counted(path, calls):
    """A collect that leaves in `calls` how many rows the model was shown each time."""

    def three_logits(batch):
        calls.append(len(batch))
        return np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)[:, 27:30] / 20

    def run():
        calls.clear()
        return collect(three_logits, IMAGES, POOL, labels=np.arange(20) % 3, batch_size=4, out=path)

    return run


@pytest.mark.parametrize("damage", [flip, cut, remove])
@pytest.mark.parametrize("place", [LOGITS_FILE, "transformed/c/1/0/0", "zarr.json"])
def test_collecting_again_repairs_what_was_damaged(tmp_path, damage, place):
    path = tmp_path / "v.zarr"
    calls = []

    run = counted(path, calls)
    run()
    whole = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    damage(path / place)
    (path / ".ledger.txt.1-abc.part").touch()  # killed while the last ledger was written
    run()
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == whole
    if damage is flip and place != "zarr.json":
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
    before, old, after = lines[line][:digit], lines[line][digit], lines[line][digit + 1 :]
    lines[line] = before + (b"1" if old == ord("0") else b"0") + after
    (path / "ledger.txt").write_bytes(b"".join(lines))
    with pytest.raises(FileError, match="unfinished" if line == -1 else "lacks blocks"):
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
        with pytest.raises(FileError, match=r"written again, or removed.*read_views"):
            read()
    assert len(first) == 4


# --- who writes


@pytest.mark.parametrize("again", [{"resume": False}, {"resume": True}, None])
def test_a_store_that_another_run_writes_is_neither_removed_nor_mixed(tmp_path, again):
    path, refused = tmp_path / "v.zarr", []

    def other():
        if again is None:
            return make().write(path)
        return collect(lambda batch: -three_logits(batch), IMAGES, "zoom:0.3", out=path, **again)

    def model(batch):
        with pytest.raises(FileError, match="Another collect is writing") as told:
            other()
        refused.append(told)
        return three_logits(batch)

    collect(model, IMAGES, POOL, batch_size=4, out=path)
    assert refused
    np.testing.assert_array_equal(read_views(path).logits, three_logits(IMAGES))


def test_a_store_that_was_removed_under_way_is_reported(tmp_path):
    path = tmp_path / "v.zarr"
    calls = []

    def model(batch):
        calls.append(0)
        if len(calls) == 7:
            path.rename(tmp_path / "elsewhere")
        return three_logits(batch)

    with pytest.raises(FileError, match="Cannot write"):
        collect(model, IMAGES, POOL, batch_size=4, out=path)


FILES = [LOGITS_FILE, "transformed/c/1/0/0", "zarr.json", "ledger.txt"]


@pytest.mark.parametrize("place", FILES)
def test_a_pipe_in_place_of_a_file_is_refused_at_once(store, place):
    (store / place).unlink()
    os.mkfifo(store / place)
    with pytest.raises(FileError, match="is not a regular file"):
        everything(store)


@pytest.mark.parametrize("place", [*FILES, "logits/c"])
def test_a_file_outside_the_folder_is_not_read(store, tmp_path, place):
    (store / place).rename(tmp_path / "secret")
    (store / place).symlink_to(tmp_path / "secret")
    with pytest.raises(FileError, match="outside"):
        read_views(store)


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


# --- fits from disk


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize(
    "method", [TemperatureScaling(), ReCal(random_state=0, max_iter=12), ViewStacking()]
)
def test_fits_are_those_of_views_in_memory(tmp_path, monkeypatch, method):
    monkeypatch.setattr("recal.files.zarr_views._LARGE_BYTES", 1000)
    monkeypatch.setattr(series, "_PIECE", 700)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 60, 900)
    seen = [(4 * np.eye(60)[y] + 1.5 * rng.normal(size=(900, 60))).astype("f4") for _ in range(3)]
    views = Views(2 * seen[0], {"zoom:0.5": seen[1], "flip": seen[2]}, y)
    stored = read_views(views.write(tmp_path / "v.zarr"))
    assert method.fit(stored).plan_ == method.fit(views).plan_
    assert isinstance(stored.logits.base, np.memmap)
    assert type(stored.logits) is type(stored.logits[[3, 4]]) is np.ndarray
    assert not stored.logits.flags.writeable


def test_values_that_are_not_finite_are_refused_as_in_memory(tmp_path):
    ledger = Ledger(tmp_path, {"kind": WRITTEN, "version": 2, "batch_size": 20})
    ledger.make_files(1)
    logits = LOGITS.copy()
    logits[5, 1] = np.nan
    ledger.write_block(0, [logits])
    ledger.finish(Views(LOGITS))
    with pytest.raises(InputError, match="row 5, column 1 is nan"):
        _ = read_views(tmp_path).logits
