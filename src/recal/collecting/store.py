"""The sink that writes a store of views block by block, so that an interrupted collect can be
resumed.

`files/zarr_views.py` describes the store. A block's rows are written first and its line afterwards.
A block without a valid line, or with other checksums, is computed again, so a kill, a full disk or
a power cut loses only the blocks in progress. Nothing depends on time, location or engine: two runs
of one job give the same bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from recal.collecting.blocks import Block, Job, ViewsSink
from recal.collecting.fingerprint import digest
from recal.collecting.sources import Source, digest_inputs
from recal.errors import FileError, InputError
from recal.files import zarr_views
from recal.files.paths import file_errors, folder_lock
from recal.files.views import LEDGER_FILE, read_views
from recal.files.zarr_views import Ledger, block_record, open_layers, read_ledger
from recal.views import Views

_REMEDY = "Choose another name, or pass resume=False (--force) to start over and replace it"
_RESUME = (
    " Finished blocks are kept: free some space (or fix the cause) and run the same command again "
    "to resume."
)


class OtherJobError(InputError):
    """A store holds the views of another model, other inputs or other options."""


class StoreSink(ViewsSink):
    """Writes blocks into a folder of views, and resumes one that is unfinished."""

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
        self._probe: int | None = None
        self._lock = ExitStack()
        self._is_new = not target.exists()

    def _header(self) -> dict[str, Any]:
        source, record = self.source, self.job.preprocessing
        assert record is not None  # `collect` made it
        labels = names = None
        if source.labels is not None:
            labels = digest([np.asarray(source.labels), source.classes, self.classes])
        if source.clusters is not None or source.groups is not None:
            names = digest([source.clusters, source.groups])
        return {
            "kind": zarr_views.COLLECTED,
            "version": zarr_views.FORMAT,
            "model": record.model,
            "pool": [str(transform) for transform in self.job.transforms],
            "inputs": source.fingerprint(),
            "batch_size": self.batch_size,
            "outputs": self.job.outputs,
            "preprocess": None if self.job.preprocess is None else digest(self.job.preprocess),
            "labels": labels,
            "clusters or groups": names,
        }

    def __enter__(self) -> Self:
        # An error releases the lock here, because __exit__ is not called.
        with file_errors(self.target, "write", _RESUME), self._lock:
            self._open()
            self._lock = self._lock.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_new and not self._ledger.blocks:
            shutil.rmtree(self.target, ignore_errors=True)
        self._lock.close()

    def _open(self) -> None:
        if self.target.exists():
            self._read_ledger()  # refuse a folder that is not recal's before changing anything
        self.target.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(folder_lock(self.target))
        header, ledger = self._ledger.header, self._read_ledger()
        if self.resume and ledger is not None and ledger.blocks:
            different = [key for key in header if ledger.header.get(key) != header[key]]
            if different:
                rule = f"{self.target} was made by another job: other {' and '.join(different)}"
                raise OtherJobError(rule, remedy=_REMEDY)
            self._ledger = ledger
            self._drop_damaged_blocks()
        if not self._ledger.blocks:
            # Keep the folder, because its handle is the lock; write the new ledger first.
            self._ledger = Ledger(self.target, header)
            self._ledger.write()
            for path in self.target.iterdir():
                if path.name != LEDGER_FILE:
                    is_folder = path.is_dir() and not path.is_symlink()
                    shutil.rmtree(path) if is_folder else path.unlink()
        self._ledger.make_files(1 + len(self.job.transforms))
        self._check_inputs()
        self.done = frozenset(self._ledger.blocks)
        if self.done:
            # Compute one block again: only its logits can show that a function or preprocess has
            # changed.
            self._first = self._ledger.n_classes, self._ledger.dtype
            self._probe = min(self.done)
            self.done -= {self._probe}

    def _check_inputs(self) -> None:
        """Read the inputs of finished blocks again, and refuse other inputs or labels."""
        for index, record in sorted(self._ledger.blocks.items()):
            if index * self.batch_size >= self.source.n_samples:
                raise self._other_inputs(index)
            batch = self.source.batch(index, self.batch_size)
            labels = None if record["labels"] is None else np.asarray(batch.labels).tolist()
            if record["inputs"] != digest_inputs(batch) or record["labels"] != labels:
                raise self._other_inputs(index)

    def _read_ledger(self) -> Ledger | None:
        """Return the ledger of a store, or None for an empty folder; refuse any other folder."""
        if zarr_views.is_beginning(self.target):
            return None
        try:
            ledger = read_ledger(self.target)
            if ledger.header["kind"] != zarr_views.COLLECTED:
                raise ValueError(f"its kind is {ledger.header['kind']!r}")
        except (OSError, ValueError) as error:
            rule = f"{self.target} already exists and was not written by collect ({error})"
            raise FileError(rule, remedy="Choose another name") from error
        return ledger

    def _drop_damaged_blocks(self) -> None:
        """Keep the blocks that match their checksums; a damaged store is unfinished."""
        blocks = self._ledger.blocks
        damaged = [index for index in blocks if not self._is_intact(index)]
        if self._ledger.end is not None and not damaged:
            try:
                read_views(self.target)  # checks labels and description
            except (FileError, InputError):
                pass
            else:
                return
        self._ledger.end = None
        for index in damaged:
            del blocks[index]
        if blocks:
            for path in list(self.target.rglob(".*.part")):
                path.unlink()
            self._ledger.write()

    def _is_intact(self, index: int) -> bool:
        try:
            found = block_record(self._ledger.read_block(index))
        except (OSError, ValueError):  # missing or cut
            return False
        return bool(found["sums"] == self._ledger.blocks[index]["sums"])

    def take(self, index: int, result: Block) -> None:
        self.check(result)
        assert self._first is not None
        labels = None
        if self.source.labels is None and result.labels is not None:
            labels = result.labels.tolist()
        dtype = self._first[1]
        given = (result.logits, *result.transformed)
        layers = [values.astype(dtype, copy=False) for values in given]
        if index == self._probe:
            self._compare(result, layers)
            self._probe = None
            return
        if self._ledger.end is not None:
            raise self._other_inputs(index)  # more batches than the finished store has
        with file_errors(self.target, "write", _RESUME):
            self._ledger.write_block(index, layers, inputs=result.inputs, labels=labels)
            self._ledger.add_line(index)

    def _compare(self, block: Block, layers: list[NDArray[Any]]) -> None:
        stored = self._ledger.read_block(block.index)
        same = all(old.shape == new.shape for old, new in zip(stored, layers, strict=True))
        if not (same and all(map(differ_by_rounding, stored, layers))):
            raise OtherJobError(
                f"{self.target} was made with another model or another preprocess: computed again, "
                f"its block {block.index} differs",
                remedy=_REMEDY,
            )

    def _other_inputs(self, index: int) -> OtherJobError:
        return OtherJobError(
            f"{self.target} was made with other inputs: batch {index} differs from the one "
            "recorded",
            remedy=_REMEDY,
        )

    def finish(self) -> Views:
        ledger = self._ledger
        if ledger.end is None:
            blocks = ledger.blocks
            about = self.about_rows(blocks[index].get("labels") for index in sorted(blocks))
            with file_errors(self.target, "write", _RESUME):
                logits, *layers = open_layers(ledger)
                ledger.finish(Views.unread(logits, dict(zip(self.job.transforms, layers)), **about))
        return read_views(self.target)


def differ_by_rounding(old: NDArray[Any], new: NDArray[Any]) -> bool:
    """Whether two arrays of logits differ in the last bits only, as on two machines."""
    limits = np.finfo(old.dtype)
    # Summing a few thousand products in another order changes the last bits by no more than this;
    # two different models differ by more.
    gap = 64 * float(limits.eps) * max(float(np.abs(old).max(initial=0.0)), float(limits.tiny))
    return bool(np.allclose(old.astype(np.float64), new.astype(np.float64), rtol=0.0, atol=gap))
