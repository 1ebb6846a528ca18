"""Files that try to break the loader: each is refused with one FileError, and damage never does
anything else.
"""

from __future__ import annotations

import re

import pytest

from recal import Plan, load, save
from recal.errors import FileError
from tests.unit.files import hostile_files as hostile


def test_the_valid_files_that_the_hostile_ones_are_made_from_load(tmp_path):
    (tmp_path / "ts").write_bytes(hostile.VALID)
    assert load(tmp_path / "ts").temperature_ == 2.0
    assert load(tmp_path / "ts").fitted_rows([[2.0, 0.0]]) == 0, "it keeps no hashes of rows"
    (tmp_path / "recal").write_bytes(hostile.pack(hostile.RECAL))
    assert len(load(tmp_path / "recal").plan_.steps) == 1
    (tmp_path / "blended").write_bytes(hostile.pack(hostile.BLENDED))
    assert load(tmp_path / "blended").plan_.gate == 0.99


@pytest.mark.parametrize("name", hostile.CASES)
def test_a_hostile_file_is_refused_in_one_sentence(name, tmp_path):
    path = tmp_path / f"{name}.recal"
    path.write_bytes(hostile.CASES[name][0])
    with pytest.raises(FileError) as refused:
        load(path)
    message = str(refused.value)
    assert path.name in message
    assert re.search(hostile.CASES[name][1], message), message
    assert "\n" not in message
    assert len(message) < 600


def test_too_large_a_file_is_refused_unread(tmp_path, monkeypatch):
    path = save(Plan(), tmp_path / "plan")
    monkeypatch.setattr("recal.files.saved.MAX_FILE_BYTES", 100)
    with pytest.raises(FileError, match="at most 100 are read"):
        load(path)
