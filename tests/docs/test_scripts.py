"""The examples run as they are printed."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd, env=environment).stdout


@pytest.mark.slow
def test_an_example_ends_in_a_decision(tmp_path):
    shown = run("tables.py", "--record", "records/tables.json", cwd=tmp_path)
    assert "12 transformations, labelled" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith(("ts ", "ets ", "stack ", "recal "))]
    assert len(rows) == 5, "stack twice: with answers kept and free"
    assert len({row[1] for row in rows if row[1] != "(free)"}) == 1, "no answer changes where answers are kept"
    *_, decision, time = shown.splitlines()
    assert decision.startswith("Decision: with")
    assert time.startswith("Time: ")
    run("results.py", "records", "--out", "page.md", cwd=tmp_path)
    page = (tmp_path / "page.md").read_text()
    assert f"> {decision}" in page
    assert f"| ts | {rows[0][1]} |" in page


def test_a_log_of_a_language_model_becomes_automated_answers(tmp_path):
    shown = run("language_models.py", str(tmp_path), cwd=tmp_path)
    assert "Views: 2,000 samples, 4 classes, 1 transformation, labelled" in shown
    assert "can be automated with at most 5 % errors (none before calibration)" in shown
    assert (tmp_path / "calibrated" / "report.html").exists()


def test_what_an_example_lacks_is_said_kindly(tmp_path):
    command = [sys.executable, str(EXAMPLES / "imagenet.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 1
    assert done.stderr.strip().startswith("This example needs labelled photographs")
    command = [sys.executable, str(EXAMPLES / "languages.py"), "--pages", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert "needs py3langid" in done.stderr or "apt install manpages-de" in done.stderr


@pytest.mark.slow
def test_fashion_mnist(tmp_path):
    rng = np.random.default_rng(0)
    for part, n in (("train", 256), ("t10k", 200)):
        images, labels = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), rng.integers(0, 10, n).astype(np.uint8)
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(head + array.tobytes()))
    shown = run("fashion_mnist.py", "--data", str(tmp_path), "--epochs", "1", cwd=tmp_path)
    assert "Views: 200 samples, 10 classes, 20 transformations, labelled" in shown
    assert shown.count("error rate") == 2
    assert (tmp_path / "fashion-views.zarr" / "manifest.json").exists()
