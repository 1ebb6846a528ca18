"""Append-only records that survive a kill, and locks: the ledger of a store of views, and journals.

    name.zarr/ledger.txt    each line is a CRC-32 of its text and a JSON record:
        header  kind, version, batch_size and, for a store of `collect`, the identity of the job
        block   its number and rows, CRC-32 of the logits and of each view, digest of its inputs
        end     digest of the description, CRC-32 of the labels; only in a finished store

`collect` writes a block's arrays first and appends its line afterwards. A line that was cut off or
changed does not match its CRC and is ignored, so its block is computed again. Finishing replaces
the file by one with sorted lines and the end.

`zarr_views.py` compares a block with its checksums when it is first read. CRC-32 detects accidents,
not forgery.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import FileError
from recal.files.paths import replacing

LEDGER_FILE = "ledger.txt"
COLLECTED, WRITTEN = "recal collect", "recal views"
LEDGER_VERSION = 1
Entry = dict[str, Any]


def checksum(values: NDArray[Any]) -> int:
    """Return the CRC-32 of an array's bytes in little-endian order."""
    plain = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return zlib.crc32(plain.reshape(-1).view(np.uint8).data)


def block_record(logits: NDArray[Any], transformed: Iterable[NDArray[Any]], **more: Any) -> Entry:
    """Return the record of a block: its rows, and a checksum for the logits and for each view."""
    return {"rows": len(logits), "sums": [checksum(logits), *map(checksum, transformed)], **more}


def description_digest(
    specs: list[str],
    classes: list[Any] | None,
    shape: tuple[int, ...],
    preprocessing: Any | None = None,
) -> str:
    """Return a digest of a store's description: names of views and classes, shape, preprocessing."""
    return _digest([specs, classes, list(shape), preprocessing])


def _digest(values: Any) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


class Ledger:
    """The ledger of one store.

    Attributes
    ----------
    header : record
    blocks : dict of int to record
    end : record or None
        None while the store is unfinished.
    """

    def __init__(
        self,
        folder: Path,
        header: Entry,
        blocks: dict[int, Entry] | None = None,
        end: Entry | None = None,
    ) -> None:
        self.folder, self.header, self.blocks, self.end = folder, header, blocks or {}, end

    @property
    def sums(self) -> list[list[int]]:
        """The checksums of the logits and of each view, one per block."""
        rows = (self.blocks[index]["sums"] for index in sorted(self.blocks))
        return [list(layer) for layer in zip(*rows)]

    def generation(self, end: Entry) -> str:
        """Return a digest of all checksums; equal views have equal digests."""
        return _digest([self.header["batch_size"], end, self.sums])

    def add(self, index: int, record: Entry) -> None:
        """Append the line of a finished block."""
        entry = {"block": index, **record}
        with (self.folder / LEDGER_FILE).open("ab") as file:
            file.write(_line(entry))
        self.blocks[index] = entry

    def write(self) -> None:
        """Replace the file by a new one with sorted lines."""
        records = [self.header, *(self.blocks[index] for index in sorted(self.blocks))]
        records += [] if self.end is None else [{"end": self.end}]
        with replacing(self.folder / LEDGER_FILE) as file:
            file.write(b"".join(map(_line, records)))


def read_ledger(folder: Path) -> Ledger:
    """Return a store's ledger.

    Raise ValueError or OSError if there is none, or if its header is damaged.
    """
    path = folder / LEDGER_FILE
    if not path.is_file():
        raise ValueError("it is missing")
    if path.stat().st_size > 2**30:
        raise ValueError("it is too large")
    lines = path.read_bytes().splitlines()
    header = _record(lines[0]) if lines else None
    if (
        header is None
        or header.get("kind") not in (COLLECTED, WRITTEN)
        or header.get("version") != LEDGER_VERSION
        or not _is_count(header.get("batch_size"))
    ):
        raise ValueError("its first line is damaged")
    blocks: dict[int, Entry] = {}
    end = None
    for record in filter(None, map(_record, lines[1:])):
        if _is_block(record):
            blocks[record["block"]] = record
        elif isinstance(record.get("end"), dict):
            end = record["end"]
    return Ledger(folder, header, blocks, end)


def _line(record: Entry) -> bytes:
    text = json.dumps(record).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _record(line: bytes) -> Entry | None:
    text = line[9:].rstrip(b"\n")
    try:
        record = json.loads(text) if int(line[:8], 16) == zlib.crc32(text) else None
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _is_block(record: Entry) -> bool:
    sums, number = record.get("sums"), record.get("block")
    if not isinstance(sums, list) or not sums or any(type(value) is not int for value in sums):
        return False
    return type(number) is int and number >= 0 and _is_count(record.get("rows"))


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def is_store(folder: Path) -> bool:
    """Whether a folder contains views, finished or not; only such a folder may be replaced."""
    try:
        if is_beginning(folder) or read_ledger(folder):
            return True
    except (OSError, ValueError):
        pass
    header = attributes(folder)
    return header.get("kind") == "views" and isinstance(header.get("transforms"), list)


def attributes(folder: Path) -> Entry:
    """Return what the folder's zarr.json says about its views, or nothing if it cannot be read."""
    try:
        header = json.loads((folder / "zarr.json").read_bytes())["attributes"]["recal"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


def is_beginning(folder: Path) -> bool:
    """Whether a folder holds only what `collect` leaves if it is stopped before its ledger is
    written.
    """
    return folder.is_dir() and all(
        path.name.startswith(".") and path.name.endswith(".part") for path in folder.iterdir()
    )


class Journal:
    """Append-only records that survive a kill at any moment.

    A line that a kill cut off is left as it is, and is not read.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from recal.files.ledger import Journal
    >>> journal = Journal(Path(tempfile.mkdtemp()) / "audit.jsonl")
    >>> journal.append({"id": 1}, {"id": 2})
    >>> [record["id"] for record in journal.read()]
    [1, 2]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0  # bytes

    def append(self, *records: Entry, sync: bool = True) -> None:
        """Write records in one piece, while no other process writes.

        Without `sync` they survive a kill of the process, but not a power cut.
        """
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        content = lines.encode()
        try:
            with self.path.open("ab+") as file:
                lock(file.fileno())
                file.seek(0, os.SEEK_END)
                if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                    content = b"\n" + content  # after a line that a kill cut off
                file.write(content)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
        except OSError as error:
            raise FileError(f"Cannot write {self.path}: {error.strerror or error}.") from error

    def read(self) -> Iterator[Entry]:
        """Yield the records that were added since the last call, without incomplete lines."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                content = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise FileError(f"Cannot read {self.path}: {error.strerror or error}.") from error
        complete = content[: content.rfind(b"\n") + 1]  # another process may be writing the rest
        self._read += len(complete)
        for line in complete.splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                yield record


def lock(handle: int, *, wait: bool = True) -> None:
    """Lock an open file or folder until it is closed, where the system has locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # some network file systems have no locks
        return


class FolderLock:
    """Locks a local folder by its own handle: no file is left behind, and the lock ends with the
    process.
    """

    def __init__(self, folder: Path, refusal: str = "") -> None:
        self.folder = folder
        self._handle: int | None = None
        if os.name == "nt":  # which cannot open folders
            return
        self._handle = os.open(folder, os.O_RDONLY)
        try:
            lock(self._handle, wait=False)
        except BlockingIOError as error:
            self.close()
            raise FileError(
                refusal
                or f"Another collect is writing {folder} now; wait for it, or choose another name."
            ) from error

    def check(self) -> None:
        """Refuse to continue if the folder was removed or replaced."""
        try:
            current = os.stat(self.folder)
            same = self._handle is None or os.path.samestat(current, os.fstat(self._handle))
        except OSError:
            same = False
        if not same:
            raise FileError(
                f"{self.folder} was removed or replaced while it was written. Run the same command again."
            )

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
