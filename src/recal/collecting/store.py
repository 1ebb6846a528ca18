"""The store: views written block by block into a zarr folder, so that an interrupted collect can be
resumed.

    name.zarr/logits, labels, transformed   the arrays that `read_views` reads
    name.zarr/ledger.txt                    the job, and one line per finished block

A block's arrays are written first and its line afterwards. A block without a valid line, or with
other checksums, is computed again, so a kill, a full disk or a power cut loses only the blocks in
progress. Nothing depends on time, location or engine: two runs of one job give the same bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from recal.clusters import row_names
from recal.collecting.blocks import (
    Block,
    Job,
    ViewsSink,
    first_changed_block,
    is_recorded,
    join_labels,
)
from recal.collecting.fingerprint import digest
from recal.collecting.sources import Source
from recal.errors import FileError, InputError
from recal.files import ledger as ledgers
from recal.files.ledger import FolderLock, Ledger, block_record, read_ledger
from recal.files.paths import check_file
from recal.files.views import read_views
from recal.files.zarr_views import describe_store, description
from recal.views import Views

# The parts of a job that must be equal to resume it, and their names in messages.
_JOB = {
    "model": "another model",
    "pool": "another pool of transformations",
    "data": "other inputs",
    "batch_size": "another batch_size",
    "outputs": "another kind of outputs",
    "preprocess": "another preprocess",
    "labels": "other labels",
    "rows": "other clusters or groups",
}
_REMEDY = "Choose another name, or pass resume=False (--again) to start over and replace it"


class StoreArrays:
    """The zarr arrays of a store."""

    def __init__(self, target: Path, batch_size: int) -> None:
        self.target, self.batch_size = target, batch_size
        self._arrays: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._arrays)

    @property
    def first(self) -> tuple[int, np.dtype[Any]]:
        """The number of classes and the dtype of all blocks."""
        return int(self._arrays["logits"].shape[1]), np.dtype(self._arrays["logits"].dtype)

    def create(self, block: Block, attributes: dict[str, Any], n_samples: int) -> None:
        """Create arrays for blocks like this one."""
        import zarr

        (m, _, k), b, n = block.transformed.shape, self.batch_size, n_samples
        root = zarr.open_group(str(self.target), mode="a", zarr_format=3)
        root.attrs["recal"] = attributes
        # Compression saves little on logits, and took nearly half of the time to write a store.
        options: Any = {"dtype": block.logits.dtype, "compressors": None, "overwrite": True}
        options["fill_value"] = np.nan
        self._arrays["logits"] = root.create_array("logits", shape=(n, k), chunks=(b, k), **options)
        if m:  # all views of a batch are in one file, and each can be read alone
            self._arrays["transformed"] = root.create_array(
                "transformed", shape=(m, n, k), shards=(m, b, k), chunks=(1, b, k), **options
            )

    def open(self) -> None:
        """Open the arrays, unless they are open."""
        import zarr

        if self._arrays:
            return
        root: Any = zarr.open_group(str(self.target), mode="r+")
        self._arrays = {name: root[name] for name in ("logits", "transformed") if name in root}

    def write(self, block: Block) -> None:
        self.open()
        # Remove files that a killed or damaged write left behind: zarr would read them before it
        # writes.
        for name in (f"logits/c/{block.index}/0", f"transformed/c/0/{block.index}/0"):
            (self.target / name).unlink(missing_ok=True)
        rows = slice(block.index * self.batch_size, block.index * self.batch_size + len(block))
        self._arrays["logits"][rows] = block.logits
        if len(block.transformed):
            self._arrays["transformed"][:, rows] = block.transformed

    def read(self, index: int, n_rows: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the logits and the views of a block."""
        self.open()
        rows = slice(index * self.batch_size, index * self.batch_size + n_rows)
        for name in (f"logits/c/{index}/0", f"transformed/c/0/{index}/0"):
            check_file(self.target / name, self.target)
        logits = np.asarray(self._arrays["logits"][rows])
        if "transformed" not in self._arrays:
            return logits, np.empty((0, *logits.shape), dtype=logits.dtype)
        return logits, np.asarray(self._arrays["transformed"][:, rows])


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Turn a file system error into an error that says how to resume."""
    try:
        yield
    except OSError as error:
        raise FileError(
            f"Cannot write {target}: {error.strerror or error}. Finished blocks are kept: "
            "free some space (or fix the cause) and run the same command again to resume."
        ) from error


class StoreSink(ViewsSink):
    """Writes blocks into a zarr folder, and resumes one that is unfinished."""

    _lock: FolderLock  # after `_open`, no other process can write

    def __init__(
        self,
        job: Job,
        source: Source,
        classes: Sequence[Any] | None,
        target: Path,
        *,
        batch_size: int,
        resume: bool,
    ) -> None:
        super().__init__(job, source, classes)
        self.target, self.batch_size, self.resume = target, batch_size, resume
        self._ledger = Ledger(target, self._header())
        self._preprocessing = None if job.preprocessing is None else job.preprocessing.as_json()
        self._arrays = StoreArrays(target, batch_size)
        self._probe: int | None = None
        self._locks = ExitStack()

    def _header(self) -> dict[str, Any]:
        source, record = self.source, self.job.preprocessing
        assert record is not None  # `collect` made it
        rows = [source.clusters, source.groups]
        labels = None
        if source.labels is not None:
            labels = digest([np.asarray(source.labels), source.classes, self.classes])
        return {
            "kind": ledgers.COLLECTED,
            "version": ledgers.LEDGER_VERSION,
            "model": record.model,
            "pool": [str(transform) for transform in self.job.transforms],
            "data": {"fingerprint": source.fingerprint(), "skipped": list(source.skipped)},
            "batch_size": self.batch_size,
            "outputs": self.job.outputs,
            "preprocess": None if self.job.preprocess is None else digest(self.job.preprocess),
            "labels": labels,
            "rows": digest(rows) if any(values is not None for values in rows) else None,
        }

    def __enter__(self) -> Self:
        # An error closes the locks here, because __exit__ is not called.
        with _writing(self.target), self._locks:
            self._open()
            self._locks = self._locks.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._locks.close()

    def _open(self) -> None:
        if self.target.exists():
            self._read_ledger()  # refuse a folder that is not recal's before changing anything
        self.target.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(self.target)
        self._locks.callback(self._lock.close)
        header, ledger = self._ledger.header, self._read_ledger()
        if self.resume and ledger is not None and ledger.blocks:
            different = [_JOB[key] for key in _JOB if ledger.header.get(key) != header[key]]
            if different:
                raise InputError(
                    f"{self.target} was made with {' and '.join(different)}; views of two jobs are not mixed",
                    remedy=_REMEDY,
                )
            self._ledger = ledger
            self._drop_damaged_blocks()
        if not self._ledger.blocks:
            # Keep the folder, because its handle is the lock; write the new ledger first.
            self._ledger = Ledger(self.target, header)
            self._ledger.write()
            for path in self.target.iterdir():
                if path.name != ledgers.LEDGER_FILE:
                    is_folder = path.is_dir() and not path.is_symlink()
                    shutil.rmtree(path) if is_folder else path.unlink()
            self._arrays = StoreArrays(self.target, self.batch_size)
        changed = first_changed_block(self.source, self.batch_size, self._ledger.blocks)
        if changed is not None:
            raise self._other_inputs(changed)
        self.done = frozenset(self._ledger.blocks)
        if self.done:
            # Compute one block again: only its logits can show that a function or preprocess has
            # changed.
            self._first, self._probe = self._arrays.first, min(self.done)
            self.done -= {self._probe}

    def _read_ledger(self) -> Ledger | None:
        """Return the ledger of a store, or None for an empty folder; refuse any other folder."""
        if self.target.is_dir() and ledgers.is_beginning(self.target):
            return None
        try:
            ledger = read_ledger(self.target)
            if ledger.header["kind"] != ledgers.COLLECTED:
                raise ValueError(f"its kind is {ledger.header['kind']!r}")
        except (OSError, ValueError) as error:
            raise FileError(
                f"{self.target} already exists and was not written by collect (no usable {ledgers.LEDGER_FILE}: {error}); "
                "it was not changed. Choose another name."
            ) from error
        return ledger

    def _drop_damaged_blocks(self) -> None:
        """Keep the blocks that match their checksums; a damaged store is unfinished."""
        blocks = self._ledger.blocks
        damaged = [index for index, record in blocks.items() if not self._is_intact(index, record)]
        if self._ledger.end is not None and not damaged:
            with suppress(FileError, InputError):
                read_views(self.target)  # checks labels and description
                return
        self._ledger.end = None
        for index in damaged:
            del blocks[index]
        if blocks:
            for pattern in ("*.partial", "*.part"):
                for path in list(self.target.rglob(pattern)):  # of zarr, and of recal
                    path.unlink()
            self._ledger.write()

    def _is_intact(self, index: int, record: dict[str, Any]) -> bool:
        try:
            found = block_record(*self._arrays.read(index, record["rows"]))
        except Exception:  # a damaged chunk or description
            return False
        return bool(found["sums"] == record["sums"])

    def take(self, index: int, result: Block) -> None:
        self.check(result)
        labels = None
        if self.source.labels is None and result.labels is not None:
            labels = result.labels.tolist()
        record = block_record(
            result.logits, result.transformed, inputs=result.inputs, labels=labels
        )
        if index == self._probe:
            self._compare(result, record)
            self._probe = None
            return
        if self._ledger.end is not None:
            raise self._other_inputs(index)  # more batches than the finished store has
        with _writing(self.target):
            self._lock.check()
            if not self._arrays:
                attributes = description(self._ledger.header["pool"], "", self._preprocessing)
                self._arrays.create(result, attributes, self.source.n_samples)
            self._arrays.write(result)
            self._lock.check()
            self._ledger.add(index, record)

    def _compare(self, block: Block, record: dict[str, Any]) -> None:
        stored = self._ledger.blocks[block.index]
        if not is_recorded(stored, block.inputs, block.labels):
            raise self._other_inputs(block.index)
        if record["sums"] == stored["sums"]:
            return
        before = self._arrays.read(block.index, stored["rows"])
        pairs = zip(before, (block.logits, block.transformed))
        if not all(old.shape == new.shape and differ_by_rounding(old, new) for old, new in pairs):
            raise InputError(
                f"{self.target} was made with another model or another preprocess: computed again, its block "
                f"{block.index} differs",
                remedy=_REMEDY,
            )

    def _other_inputs(self, index: int) -> InputError:
        return InputError(
            f"{self.target} was made with other inputs: batch {index} differs from the one recorded",
            remedy=_REMEDY,
        )

    def finish(self) -> Views:
        if self._ledger.end is None:
            with _writing(self.target):
                self._finish()
        return read_views(self.target)

    def _finish(self) -> None:
        import zarr

        blocks = self._ledger.blocks
        missing = set(range(max(blocks, default=-1) + 1)) - set(blocks)
        n_samples = sum(record["rows"] for record in blocks.values())
        if missing or self.source.n_samples != n_samples:
            raise InputError(
                f"{self.target}: {self.source.n_samples} samples were expected and {n_samples} arrived."
            )
        n_classes, pool = self._arrays.first[0], self._ledger.header["pool"]
        parts = [blocks[index].get("labels") for index in sorted(blocks)]
        labels, columns = self.columns(join_labels(self.source, parts), n_samples)
        root: Any = zarr.open_group(str(self.target), mode="a")
        rows: dict[str, Any] = {"clusters": self.source.clusters, "groups": self.source.groups}
        rows["ids"] = self.source.names()
        names = {name: row_names(values, n_samples, name) for name, values in rows.items()}
        shape = (n_samples, n_classes)
        end = describe_store(root, pool, columns, labels, shape, self._preprocessing, names)
        root.attrs["recal"] = description(pool, self._ledger.generation(end), self._preprocessing)
        self._lock.check()
        self._ledger.end = end
        self._ledger.write()


def differ_by_rounding(old: NDArray[Any], new: NDArray[Any]) -> bool:
    """Whether two arrays of logits differ in the last bits only, as on two machines."""
    limits = np.finfo(old.dtype)
    unit = float(limits.eps) * max(float(np.abs(old).max(initial=0.0)), float(limits.tiny))
    gap = np.abs(old.astype(np.float64) - new.astype(np.float64)).max(initial=0.0)
    # Summing a few thousand products in another order changes the last bits by no more than this;
    # two different models differ by more.
    return bool(gap <= 64 * unit)
