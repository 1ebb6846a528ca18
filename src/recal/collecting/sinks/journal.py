"""An append-only list of what is finished: a torn last line is as if it had never been written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from recal.files.places import is_remote, remove_tree

_BEGUN = "begun"
Record = dict[str, Any]


def open_journal(path: Path, *, finished: bool = False) -> Journal | ObjectJournal:
    """Return the list at a path; that of a finished store is removed, and its records come from elsewhere."""
    return ObjectJournal(path, finished=finished) if is_remote(path) else Journal(path, finished=finished)


class Journal:
    """One JSON line per finished block. Whoever opens it holds the lock of the store's folder.

    Attributes
    ----------
    records : dict of int to record
    """

    def __init__(self, path: Path, *, finished: bool = False) -> None:
        self.path = path
        self.records: dict[int, Record] = {}
        self._file = None
        if finished:
            path.unlink(missing_ok=True)  # killed between the manifest and this
            return
        self._file = path.open("a+b")
        self._file.seek(0)
        whole = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            try:
                record: Record = json.loads(line)
                self.records[int(record["chunk"])] = record
            except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
                break
            whole += len(line)
        self._file.truncate(whole)

    def add(self, chunk: int, record: Record) -> None:
        """Write one line, in one piece."""
        assert self._file is not None
        entry = {"chunk": chunk, **record}
        end = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(json.dumps(entry).encode() + b"\n")
            self._file.flush()
        except OSError:
            self._file = self.path.open("r+b")  # what is still in the old one's buffer must not follow later
            self._file.truncate(end)
            raise
        self.records[chunk] = entry

    def forget(self, chunks: Iterable[int]) -> None:
        """Write the list anew without `chunks`."""
        gone = set(chunks)
        if not gone:
            return
        assert self._file is not None
        self.records = {index: record for index, record in self.records.items() if index not in gone}
        self._file.truncate(0)
        for index, record in list(self.records.items()):
            self.add(index, record)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        self.close()
        self.path.unlink()


class ObjectJournal:
    """The same in an object store, where nothing can be appended: one object per finished block, below the path."""

    def __init__(self, path: Path, *, finished: bool = False) -> None:
        self.path = path
        self.records: dict[int, Record] = {}
        if finished:
            self.remove()
            return
        (path / _BEGUN).write_bytes(b"")  # a store with an empty list is unfinished, too
        for place in path.iterdir():
            with suppress(ValueError, KeyError, TypeError, RecursionError, OverflowError):
                record: Record = json.loads(place.read_bytes())
                self.records[int(record["chunk"])] = record

    def add(self, chunk: int, record: Record) -> None:
        """Write one object."""
        entry = {"chunk": chunk, **record}
        (self.path / f"{chunk}.json").write_bytes(json.dumps(entry).encode())
        self.records[chunk] = entry

    def forget(self, chunks: Iterable[int]) -> None:
        for chunk in chunks:
            (self.path / f"{chunk}.json").unlink(missing_ok=True)
            del self.records[chunk]

    def close(self) -> None:
        return

    def remove(self) -> None:
        remove_tree(self.path)
