"""A journal: JSON records in a file, one per line, appended by any number of processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recal.errors import FileError

Record = dict[str, Any]


class Journal:
    """Append-only records that survive a kill at any moment.

    A line that a kill cut off is left as it is, and is
    not read.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from recal.files.journal import Journal
    >>> journal = Journal(Path(tempfile.mkdtemp()) / "audit.jsonl")
    >>> size = journal.append({"id": 1}, {"id": 2})
    >>> [record["id"] for record in journal.read()]
    [1, 2]
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, *records: Record, sync: bool = True) -> int:
        """Write records in one piece, while no other process writes; return the bytes written.

        Without `sync` they survive a kill of the process, but not a power cut.
        """
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        content = lines.encode()
        try:
            with _locked(self.path) as file:
                if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                    content = b"\n" + content  # after a line that a kill cut off
                file.write(content)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
        except OSError as error:
            raise FileError(f"Cannot write {self.path}: {error.strerror or error}.") from error
        return len(content)

    def size(self) -> int:
        """Return the size of the file in bytes; 0 if there is none."""
        return self.path.stat().st_size if self.path.exists() else 0

    def read(self, start: int = 0) -> Iterator[Record]:
        """Yield the records, without incomplete lines; `start` skips lines that were read before."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise FileError(f"Cannot read {self.path}: {error.strerror or error}.") from error
        for line in lines[start:]:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                yield record


@contextmanager
def _locked(path: Path) -> Iterator[Any]:
    """Open a file for appending, and lock it where the system has locks."""
    with path.open("ab+") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError):  # Windows, and some network file systems
            pass
        file.seek(0, os.SEEK_END)
        yield file
