"""A file has its old content or its new one, whatever happens while it is written."""

from __future__ import annotations

import signal

import pytest

from recal.errors import FileError
from recal.files.paths import replacing
from recal.workflow.folder import publishing


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


def publish(folder):
    with publishing(folder) as work:
        (work / "a.txt").write_bytes(b"new")
        (work / "b.txt").write_bytes(bytes(2000))


def test_a_disk_that_fills_up_leaves_the_old_folder(tmp_path):
    """The limit on the size of files fails like a full disk, in the middle of a write."""
    resource = pytest.importorskip("resource")
    (tmp_path / "out").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "out" / name).write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with (
            pytest.raises(FileError, match="No files were written"),
            replacing(tmp_path / "out" / "b.txt") as file,
        ):
            file.write(bytes(2000))
        with pytest.raises(FileError, match="It was not changed"):
            publish(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    left = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert left == {"a.txt": b"old", "b.txt": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
