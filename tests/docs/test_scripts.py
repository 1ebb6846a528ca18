"""The examples run as they are printed."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd, env=environment).stdout


def test_time_series(tmp_path):
    lines = run("time_series.py", cwd=tmp_path).splitlines()
    assert [line.split()[-3] for line in lines[1:]] == ["0.943"] * 3, "no answer changes"


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
