"""Views in a folder: written block by block, and opened without reading logits.

    name.zarr/zarr.json             transformations, labels, and names of classes and of rows
    name.zarr/logits/c/0/0          the logits of the originals, row by row
    name.zarr/transformed/c/I/0/0   those of transformation I
    name.zarr/ledger.txt            each line is a CRC-32 of its text and a JSON record:
        header  kind, version, batch_size and, for a store of `collect`, the identity of the job
        block   its number, shape and dtype, and CRC-32 of the logits and of each view
        end     a digest of zarr.json; only in a finished folder

The folder is a zarr group of version 3 whose arrays are one chunk each, so that rows can be mapped
from their files. Other programs can read it with zarr, which recal does not need.

A block's rows are written before its line. A line that was cut off or changed does not match its
CRC and is ignored, so its block is computed again. Finishing replaces the ledger by one with sorted
lines and the end. A reader compares each block with its checksums once. CRC-32 detects accidents,
not forgery.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.engine import row_blocks
from recal.errors import FileError, InputError
from recal.files.paths import (
    check_file,
    file_errors,
    folder_lock,
    partial_name,
    replace_folder,
    replacing,
)
from recal.files.views import LEDGER_FILE, OF_ROWS, details
from recal.transforms import as_transform
from recal.transforms.preprocessing import Preprocessing
from recal.views import Views

DESCRIPTION = "zarr.json"
COLLECTED, WRITTEN = "recal collect", "recal views"
FORMAT = 2
# Larger arrays stay on disk when all of their rows are used.
_LARGE_BYTES = 250_000_000
Entry = dict[str, Any]

# --- the ledger


@dataclass
class Ledger:
    """The ledger of one folder; `end` is None while it is unfinished."""

    folder: Path
    header: Entry
    blocks: dict[int, Entry] = field(default_factory=dict)
    end: str | None = None

    @property
    def batch_size(self) -> int:
        return int(self.header["batch_size"])

    @property
    def n_samples(self) -> int:
        return sum(record["shape"][0] for record in self.blocks.values())

    @property
    def n_classes(self) -> int:
        return int(self._any_block["shape"][1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self._any_block["dtype"]).newbyteorder("<")

    @property
    def n_layers(self) -> int:
        """The number of arrays: the logits, and one for each transformation."""
        return len(self._any_block["sums"])

    @property
    def _any_block(self) -> Entry:
        return next(iter(self.blocks.values()))

    def layer(self, number: int) -> Path:
        """Return the file of the logits (0), or of a transformation (from 1 on)."""
        if number == 0:
            return self.folder / "logits" / "c" / "0" / "0"
        return self.folder / "transformed" / "c" / str(number - 1) / "0" / "0"

    def make_files(self, n_layers: int) -> None:
        """Make the files that blocks are written into, if they do not exist."""
        for number in range(n_layers):
            self.layer(number).parent.mkdir(parents=True, exist_ok=True)
            self.layer(number).touch()

    def write_block(self, index: int, layers: Sequence[Floats], **more: Any) -> None:
        """Write the rows of a block; its line is not written yet."""
        self.blocks[index] = {"block": index, **block_record(layers), **more}
        n_bytes = self.batch_size * self.n_classes * self.dtype.itemsize
        for number, values in enumerate(layers):
            with self.layer(number).open("r+b") as file:
                file.seek(index * n_bytes)
                file.write(np.ascontiguousarray(values, self.dtype).data)

    def read_block(self, index: int) -> list[Floats]:
        """Return the rows of a block from every layer."""
        record, dtype = self.blocks[index], self.dtype
        n_rows, n_classes = record["shape"]
        start = index * self.batch_size * n_classes * dtype.itemsize
        count, read = n_rows * n_classes, []
        for number in range(len(record["sums"])):
            check_file(self.layer(number), self.folder)
            values = np.fromfile(self.layer(number), dtype, count, offset=start)
            read.append(values.reshape(n_rows, n_classes))
        return read

    def add_line(self, index: int) -> None:
        """Append the line of a finished block."""
        with (self.folder / LEDGER_FILE).open("ab") as file:
            file.write(_line(self.blocks[index]))

    def write(self) -> None:
        """Replace the file by a new one with sorted lines."""
        records = [self.header, *(self.blocks[index] for index in sorted(self.blocks))]
        records += [] if self.end is None else [{"end": self.end}]
        with replacing(self.folder / LEDGER_FILE) as file:
            file.write(b"".join(map(_line, records)))

    def finish(self, views: Views) -> None:
        """Write the description of the views, and the end."""
        n_samples, n_classes, count = self.n_samples, self.n_classes, self.n_layers - 1
        for number in range(self.n_layers):  # a killed run may have written more rows
            os.truncate(self.layer(number), n_samples * n_classes * self.dtype.itemsize)
        _describe_array(self.folder / "logits", (n_samples, n_classes), self.dtype)
        if count:
            _describe_array(self.folder / "transformed", (count, n_samples, n_classes), self.dtype)
        described = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in details(views).items()
        }
        attributes = {"recal": {"kind": "views", "version": FORMAT, **described}}
        group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        self.end = _write_json(self.folder / DESCRIPTION, group)
        self.write()


def read_ledger(folder: Path) -> Ledger:
    """Return a folder's ledger.

    Raise ValueError or OSError if there is none, or if its header is damaged.
    """
    path = folder / LEDGER_FILE
    check_file(path, folder)
    if path.stat().st_size > 2**30:
        raise ValueError(f"{LEDGER_FILE} is too large")
    lines = path.read_bytes().splitlines()
    header = _record(lines[0]) if lines else None
    if header is None or not _is_count(header.get("batch_size")):
        raise ValueError(f"the first line of {LEDGER_FILE} is damaged")
    if header.get("kind") not in (COLLECTED, WRITTEN) or header.get("version") != FORMAT:
        raise ValueError(f"{LEDGER_FILE} is of another kind or version")
    ledger = Ledger(folder, header)
    for record in filter(None, map(_record, lines[1:])):
        if _is_block(record):
            ledger.blocks[record["block"]] = record
        elif isinstance(record.get("end"), str):
            ledger.end = record["end"]
    return ledger


def block_record(layers: Iterable[Floats]) -> Entry:
    """Return what the ledger says about the values of a block."""
    arrays = list(layers)
    shape, dtype = list(arrays[0].shape), arrays[0].dtype.name
    return {"shape": shape, "dtype": dtype, "sums": [checksum(values) for values in arrays]}


def checksum(values: NDArray[Any]) -> int:
    """Return the CRC-32 of an array's bytes in little-endian order."""
    plain = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return zlib.crc32(plain.reshape(-1).view(np.uint8).data)


def _line(record: Entry) -> bytes:
    text = json.dumps(record).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _record(line: bytes) -> Entry | None:
    text = line[9:]
    try:
        record = json.loads(text) if int(line[:8], 16) == zlib.crc32(text) else None
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _is_block(record: Entry) -> bool:
    sums, shape, number = record.get("sums"), record.get("shape"), record.get("block")
    return (
        isinstance(sums, list)
        and len(sums) > 0
        and isinstance(shape, list)
        and len(shape) == 2
        and all(map(_is_count, shape))
        and record.get("dtype") in ("float16", "float32", "float64")
        and type(number) is int
        and number >= 0
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def is_beginning(folder: Path) -> bool:
    """Whether a folder holds only what `collect` leaves before its ledger is written."""
    return folder.is_dir() and all(
        path.name.startswith(".") and path.name.endswith(".part") for path in folder.iterdir()
    )


# --- writing


def write_folder(views: Views, target: Path) -> None:
    """Write a folder under a temporary name and rename it. Only a folder of views without a writer
    is replaced.
    """
    target = Path(os.path.realpath(target))
    partial = partial_name(target)
    try:
        with file_errors(target, "write", " No files were written."):
            if target.exists() and not is_beginning(target):
                try:
                    read_ledger(target)
                except (OSError, ValueError):
                    problem = "it contains files that recal did not write"
                    raise FileExistsError(17, problem) from None
            target.parent.mkdir(parents=True, exist_ok=True)
            with folder_lock(target) if target.is_dir() else nullcontext():
                _write_blocks(views, partial)
                replace_folder(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_blocks(views: Views, folder: Path) -> None:
    slices = list(row_blocks(views.n_samples, views.n_classes))
    header = {"kind": WRITTEN, "version": FORMAT, "batch_size": slices[0].stop}
    ledger, first = Ledger(folder, header), views[:1]
    layers = [first.logits, *(first.transformed(one) for one in views.transforms)]
    dtype = np.result_type(*layers)
    ledger.make_files(len(layers))
    for index, part in enumerate(slices):
        block = views[part]
        layers = [block.logits, *(block.transformed(one) for one in views.transforms)]
        ledger.write_block(index, [values.astype(dtype, copy=False) for values in layers])
    ledger.finish(views)


def _describe_array(folder: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Describe an array for zarr: each matrix is one chunk."""
    chunk = {"chunk_shape": [1, *shape[1:]] if len(shape) == 3 else shape}
    about = {"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": dtype.name}
    about |= {"fill_value": "NaN", "attributes": {}}
    about["chunk_grid"] = {"name": "regular", "configuration": chunk}
    about["chunk_key_encoding"] = {"name": "default", "configuration": {"separator": "/"}}
    about["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    _write_json(folder / "zarr.json", about)


def _write_json(path: Path, value: Entry) -> str:
    """Write a JSON file; return a digest of it."""
    content = json.dumps(value).encode()
    with replacing(path) as file:
        file.write(content)
    return _json_digest(content)


def _json_digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


# --- reading


def open_folder(path: Path, given: Mapping[str, Any]) -> Views:
    """Open views without reading their logits; `given` labels or classes replace the folder's."""
    try:
        ledger = read_ledger(path)
        if ledger.end is None:
            raise FileError(
                f"{path} is unfinished: collect was interrupted",
                remedy="Run the same collect again to resume where it stopped",
            )
        check_file(path / DESCRIPTION, path)
        content = (path / DESCRIPTION).read_bytes()
        if _json_digest(content) != ledger.end:
            raise ValueError("what it says about its views is not what was written with them")
        described = json.loads(content)["attributes"]["recal"]
        layers = open_layers(ledger)
        transforms = [as_transform(spec) for spec in described["transforms"]]
        if len(set(transforms)) != len(layers) - 1:
            raise ValueError("it names another number of transformations")
        columns = {name: described.get(name) for name in OF_ROWS}
        if (stored := described.get("preprocessing")) is not None:
            columns["preprocessing"] = Preprocessing.from_json(stored)
    except FileError:
        raise
    except Exception as error:  # a forged description may be anything
        raise _damaged(path, error) from error
    columns |= {name: values for name, values in given.items() if values is not None}
    try:
        return Views.unread(layers[0], dict(zip(transforms, layers[1:])), **columns)
    except InputError as error:
        raise error.at(path) from None


def _damaged(path: Path, problem: object) -> FileError:
    return FileError(f"{path} is damaged: {problem}. Collect again to repair it.")


def open_layers(ledger: Ledger) -> list[StoredRows]:
    """Return all arrays of a folder; raise ValueError or OSError if blocks or rows are missing."""
    n_blocks = -(-ledger.n_samples // ledger.batch_size)
    shapes = {(*record["shape"][1:], record["dtype"]) for record in ledger.blocks.values()}
    counts = {len(record["sums"]) for record in ledger.blocks.values()}
    if set(ledger.blocks) != set(range(n_blocks)) or len(shapes) != 1 or len(counts) != 1:
        raise ValueError(f"{LEDGER_FILE} lacks blocks, so rows are not what was written")
    return [StoredRows(ledger, number) for number in range(ledger.n_layers)]


class StoredRows:
    """One array of a folder, of which only the requested rows are read.

    A block is compared with its checksum when some of its rows are first read.
    """

    def __init__(self, ledger: Ledger, number: int) -> None:
        self._folder, self._path, self._number = ledger.folder, ledger.layer(number), number
        self.shape, self._step = (ledger.n_samples, ledger.n_classes), ledger.batch_size
        self._sums = [ledger.blocks[index]["sums"][number] for index in sorted(ledger.blocks)]
        self._is_checked = np.zeros(len(self._sums), dtype=bool)
        check_file(self._path, self._folder)
        self._state = self._file_state()
        expected = self.shape[0] * self.shape[1] * ledger.dtype.itemsize
        if self._state is None or self._state[1] != expected:
            raise ValueError(f"{self._path} does not have the {expected:,} bytes that were written")
        self._mapped = np.memmap(self._path, ledger.dtype, "r", shape=self.shape)

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> Floats:
        if self._file_state() != self._state:
            raise FileError(
                f"{self._folder} was written again, or removed, since it was opened, so these "
                "views no longer belong to it. Open it again with read_views."
            )
        if not self._is_checked.all():
            blocks = np.unique(np.arange(self.shape[0])[rows] // self._step)
            for block in blocks[~self._is_checked[blocks]].tolist():
                self._compare(block)
        values = self._mapped[rows].view(np.ndarray)  # numba compiles for plain arrays
        if isinstance(rows, slice) and values.nbytes > _LARGE_BYTES:
            return values
        return np.array(values, dtype=values.dtype.newbyteorder("="))

    def _file_state(self) -> tuple[int, int] | None:
        """Return what changes when the file is replaced; mapped rows beyond its end would crash."""
        try:
            info = self._path.stat()
        except OSError:
            return None
        return info.st_ino, info.st_size

    def _compare(self, block: int) -> None:
        first = block * self._step
        if checksum(self._mapped[first : first + self._step]) != self._sums[block]:
            part = f"view {self._number - 1}" if self._number else "the logits"
            problem = f"rows {first} and on of {part} are not what was written"
            raise _damaged(self._folder, problem)
        self._is_checked[block] = True
