"""Names of files that are not UTF-8, and terminals that are not."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from recal import Views
from recal.collecting.sources import as_source
from recal.errors import InputError


@pytest.fixture
def folder(tmp_path):
    """One image in a class folder, both with names that are no UTF-8."""
    inside = os.path.join(os.fsencode(tmp_path), b"images", b"cl\xe4ss")
    os.makedirs(inside)
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.png")
    os.rename(tmp_path / "a.png", os.path.join(inside, b"\xff.png"))
    return tmp_path / "images"


def test_names_that_are_not_utf_8_are_read(folder):
    source = as_source(folder)
    assert source.n_samples == 1
    assert len(source.fingerprint()) == 32


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {}]
)
def test_a_name_that_cannot_be_printed_stops_no_message(tmp_path, locale):
    name = os.path.join(os.fsencode(tmp_path), "n\u00e4me\u2026".encode() + b"\xff.npz")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **locale}
    command = [sys.executable, "-m", "recal", "evaluate", name]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"recal: " in done.stderr
    assert b"Unexpected" not in done.stderr


def test_masked_labels_are_refused():
    with pytest.raises(InputError, match="masked array"):
        Views([[1.0, 2.0], [2.0, 1.0]], labels=np.ma.masked_array([0, 1], mask=[False, True]))
