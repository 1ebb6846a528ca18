"""A file has its old content or its new one, whatever happens while it is written."""

from __future__ import annotations

import pytest

from recal.errors import FileError
from recal.files.paths import replacing, write_together


def test_what_fails_half_way_leaves_the_old_content_and_nothing_beside_it(tmp_path):
    path = tmp_path / "note.txt"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"half")
            file.flush()
            assert path.read_bytes() == b"old", "whoever reads now meets the old content"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["note.txt"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_folder_of_that_name_is_refused(tmp_path):
    with pytest.raises(FileError, match="it is a folder"), replacing(tmp_path):
        pass


def test_of_several_files_none_appears_where_one_cannot_be_written(tmp_path):
    (tmp_path / "out" / "b").mkdir(parents=True)
    with pytest.raises(FileError, match="it is a folder"):
        write_together(tmp_path / "out", {"a": b"one", "b": b"two"})
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["b"]
