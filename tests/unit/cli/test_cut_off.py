"""A command that was killed, or met a full disk, finishes when it is run again."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from recal.cli.app import run
from tests.problems import views

TOOL = Path(__file__).with_name("cut_off.py")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "asking.py").write_text("def model(batch):\n    return batch[:, :3] - 2.0\n")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32))
    return tmp_path


@pytest.mark.parametrize("left", [[], [".ledger.txt.7-0a.part"], [".x.part"]])
def test_a_store_stopped_before_its_ledger_is_resumed(place, left, capsys):
    (place / "v.zarr").mkdir()
    for name in left:
        (place / "v.zarr" / name).touch()
    command = shlex.split("collect --model asking:model --data x.npy --batch-size 4 --out v.zarr")
    assert run(command) == 0, capsys.readouterr().err


def test_a_ledger_of_somebody_else_is_left_alone(place, capsys):
    (place / "v.zarr").mkdir()
    (place / "v.zarr" / "ledger.txt").write_text('{"day": 1, "what": "my diary"}\n')
    command = shlex.split("collect --model asking:model --data x.npy --out v.zarr")
    for more in ([], ["--force"]):
        assert run([*command, *more]) == 2
    assert "diary" in (place / "v.zarr" / "ledger.txt").read_text()


@pytest.fixture
def full_disk(monkeypatch):
    """From the third file on, whatever is written meets a full disk."""
    import os

    whole, files = os.fsync, set()

    def fsync(handle):
        files.add(handle)
        if len(files) > 2:
            raise OSError(28, "No space left on device")
        return whole(handle)

    monkeypatch.setattr(os, "fsync", fsync)


def test_compare_writes_all_of_its_files_or_none(place, full_disk, capsys):
    views(60, scale=2, noise=0.9).write(place / "v.npz")
    assert run(["compare", "v.npz", "--methods", "ts", "--splits", "1", "--out", "results"]) == 2
    told = capsys.readouterr().err
    assert "No space left on device. No files were written" in told
    assert not (place / "results").exists()


@pytest.mark.slow
def test_killed_or_full_at_any_step_the_same_command_finishes_the_work(tmp_path):
    done = subprocess.run(
        [sys.executable, TOOL, str(tmp_path), "4"], capture_output=True, text=True
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert {name: found["faults"] for name, found in told.items()} == {key: [] for key in told}
    assert sum(found["attempts"] for found in told.values()) > 40
