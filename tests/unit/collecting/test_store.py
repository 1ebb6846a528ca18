"""The store survives what happens on the way: kills, full disks, damage, and jobs that are not its
own.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from recal import collect, read_views
from recal.errors import FileError, InputError
from recal.files.zarr_views import read_ledger
from tests.unit.collecting.conftest import contents

POOL = "zoom:0.5-0.9:3"


class Stop(Exception):
    pass


def as_if_the_same(function):
    """Functions are known by their names."""
    function.__name__ = function.__qualname__ = "three_logits"


class Interrupted:
    """A model that gives up at its n-th call; before that it is `model`."""

    def __init__(self, model, calls):
        as_if_the_same(self)
        self.model, self.calls = model, calls

    def __call__(self, batch):
        self.calls -= 1
        if self.calls < 0:
            raise Stop
        return self.model(batch)


@pytest.fixture
def job(images, labels, model):
    def run(out, model=model, inputs=images, pool=POOL, **options):
        options = {"labels": labels, "batch_size": 4, "preflight": False, **options}
        return collect(model, inputs, pool, out=out, **options)

    return run


@pytest.fixture
def whole(tmp_path, job):
    job(tmp_path / "whole.zarr")
    return contents(tmp_path / "whole.zarr")


def test_a_store_holds_what_memory_would(tmp_path, job, images, labels, model):
    stored = job(tmp_path / "v.zarr")
    memory = collect(model, images, POOL, labels=labels, batch_size=4)
    again = read_views(tmp_path / "v.zarr")
    for views in (stored, again):
        np.testing.assert_array_equal(views.logits, memory.logits)
        assert views.transforms == memory.transforms
        for one in memory.transforms:
            np.testing.assert_array_equal(views.transformed(one), memory.transformed(one))
        np.testing.assert_array_equal(views.labels, labels)


@pytest.mark.parametrize("calls", [4, 9, 19])
def test_an_interrupted_store_goes_on_bit_for_bit(tmp_path, job, model, whole, calls):
    with pytest.raises(Stop):
        job(tmp_path / "v.zarr", model=Interrupted(model, calls))
    with pytest.raises(FileError, match=r"v\.zarr is unfinished"):
        read_views(tmp_path / "v.zarr")
    counted = Interrupted(model, 1000)
    job(tmp_path / "v.zarr", model=counted)
    assert contents(tmp_path / "v.zarr") == whole
    finished, probe = calls // 4, 4  # one block is computed again, to know the model by its answers
    assert 1000 - counted.calls == 20 - 4 * finished + probe


def test_a_run_that_fails_before_its_first_block_leaves_no_store(tmp_path, job, model):
    for calls, preflight in [(0, True), (2, True), (3, False)]:
        with pytest.raises(Stop):
            job(tmp_path / "v.zarr", model=Interrupted(model, calls), preflight=preflight)
        assert not (tmp_path / "v.zarr").exists()


def other_logits(batch):
    return -np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)[:, :3]


as_if_the_same(other_logits)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool": "zoom:0.5-0.9:4"}, "other pool"),
        ({"inputs": np.zeros((20, 8, 8), np.uint8)}, "another job: other inputs"),
        ({"batch_size": 5}, "other batch_size"),
        ({"labels": np.zeros(20, int)}, "other labels"),
        ({"model": LogisticRegression().fit(np.eye(64)[:3], [0, 1, 2])}, "other model. Choose"),
        ({"model": other_logits}, "another model or another preprocess: .* block 0 differs"),
        ({"preprocess": lambda x: x}, "other preprocess"),
        ({"outputs": "probabilities"}, "other outputs"),
        ({"pool": None, "labels": None}, "other pool and labels"),
    ],
)
def test_a_store_of_another_job_is_refused_and_left_alone(
    tmp_path, job, model, change, message, finished
):
    path = tmp_path / "v.zarr"
    if finished:
        job(path)
    else:
        with pytest.raises(Stop):
            job(path, model=Interrupted(model, 9))
    before = contents(path)
    with pytest.raises(InputError, match=message):
        job(path, **change)
    assert contents(path) == before


def test_beginning_again_replaces_the_store(tmp_path, job, whole):
    job(tmp_path / "v.zarr", pool="zoom:0.5")
    job(tmp_path / "v.zarr", resume=False)
    assert contents(tmp_path / "v.zarr") == whole


@pytest.mark.parametrize("resume", [True, False])
def test_what_collect_did_not_make_is_never_touched(tmp_path, job, resume):
    folder = tmp_path / "mine.zarr"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(FileError, match=r"mine\.zarr already exists and was not written"):
        job(folder, resume=resume)
    assert (folder / "thesis.txt").read_text() == "years of work"
    job(None).write(tmp_path / "views.zarr")
    with pytest.raises(FileError, match="was not written by collect"):
        job(tmp_path / "views.zarr", resume=resume)


def test_a_full_disk_stops_and_loses_nothing(tmp_path, job, model):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    options = {"inputs": images, "labels": None, "batch_size": 20}
    job(tmp_path / "whole.zarr", **options)
    size = max(len(data) for data in contents(tmp_path / "whole.zarr").values())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def filling(batch):  # the disk is full from the second block on
        if (batch[0] == images[20]).all():
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
        return model(batch)

    as_if_the_same(filling)
    try:
        with pytest.raises(FileError, match=r"Cannot write .*v\.zarr: File too large.*are kept"):
            job(tmp_path / "v.zarr", model=filling, **options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert size > 200
    assert sorted(read_ledger(tmp_path / "v.zarr").blocks) == [0]
    job(tmp_path / "v.zarr", **options)
    assert contents(tmp_path / "v.zarr") == contents(tmp_path / "whole.zarr")


KILLED = """
import sys, time
import numpy as np
from recal import collect

images = np.random.default_rng(0).integers(0, 256, (400, 8, 8), dtype=np.uint8)

def model(batch):
    time.sleep(0.001)
    return np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)[:, :5] / 20 - 3

def run(out):
    labels = np.arange(400) % 5
    return collect(model, images, "zoom:0.5-0.9:5", labels=labels, batch_size=8, out=out)

if __name__ == "__main__":
    run(sys.argv[1])
"""


def kill_and_resume(tmp_path, moments):
    """Kill a collect at each moment (a share of its time), resume it, and compare every byte."""
    script = tmp_path / "job.py"
    script.write_text(KILLED)
    started = time.monotonic()
    command = [sys.executable, str(script)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*command, str(tmp_path / "whole.zarr")], check=True, env=environment)
    seconds = time.monotonic() - started
    whole = contents(tmp_path / "whole.zarr")
    unfinished = 0
    for number, moment in enumerate(moments):
        path = tmp_path / f"{number}.zarr"
        process = subprocess.Popen([*command, str(path)], env=environment)
        time.sleep(seconds * 0.2)
        # The program's own start does not count.
        while not path.exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(moment * seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
        unfinished += (path / "ledger.txt").exists() and read_ledger(path).end is None
        subprocess.run([*command, str(path)], check=True, env=environment)
        assert contents(path) == whole, f"killed at {moment}"
    return unfinished


def test_killed_and_resumed_the_bytes_are_the_same(tmp_path):
    assert kill_and_resume(tmp_path, [0.1]) > 0


@pytest.mark.slow
def test_killed_at_ten_random_moments_and_resumed_the_bytes_are_the_same(tmp_path):
    draw = random.Random(0)
    moments = [draw.uniform(0, 0.3) for _ in range(9)]
    assert kill_and_resume(tmp_path, [0.0, *moments]) > 3


def test_starting_over_can_be_interrupted_and_repeated(tmp_path, job, whole, monkeypatch):
    target = tmp_path / "v.zarr"
    job(target, pool=None)

    def stopped(folder):
        raise Stop

    with monkeypatch.context() as during:
        during.setattr("recal.collecting.store.shutil.rmtree", stopped)
        with pytest.raises(Stop):
            job(target, resume=False)
    job(target, resume=False)
    assert contents(target).keys() == whole.keys()
