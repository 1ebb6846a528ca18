"""Sinks receive blocks of logits. The sink here keeps them in memory or one file; `store` has the
resumable store.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Labels, check_classes, check_labels, check_one_each
from recal.collecting.fingerprint import digest_texts
from recal.collecting.forward import Block, Finisher, Job
from recal.collecting.sources import Batch, IndexedSource, Source, digest_inputs
from recal.errors import FileError, InputError
from recal.files.paths import replacing
from recal.transforms import Transform
from recal.views import Views

# A file that changes twice within one clock tick keeps its time, so files this young (ns) are
# always read again.
_YOUNG = 2_000_000_000
STAMPS = ".stamps.json"
# The number of classes and the dtype of the first block.
First = tuple[int, np.dtype[Any]]


def check_block(block: Block, first: First, model: str) -> None:
    """Refuse a block whose number of classes differs from the first block's, or whose dtype does
    not fit its dtype.
    """
    n_classes, dtype = block.logits.shape[1], block.logits.dtype
    first_classes, first_dtype = first
    if n_classes != first_classes:
        raise InputError(
            f"The number of classes changed: {model} gave {first_classes} before and {n_classes} "
            f"for batch {block.index}. A classifier must give one column per class for every input."
        )
    if not np.can_cast(dtype, first_dtype):
        raise InputError(f"{model} gave {first_dtype} before and {dtype} for batch {block.index}.")


class Sink(ABC):
    """Takes blocks in any order, each once.

    Attributes
    ----------
    done : frozenset of int
        Batches that need not be computed.
    wants_digests : bool
        Whether blocks need a digest of their inputs.
    doing : str
        The text of the progress bar.
    """

    done: frozenset[int] = frozenset()
    wants_digests: ClassVar[bool] = False
    doing: ClassVar[str] = "Collecting"

    def __init__(self, job: Job, source: Source, classes: Sequence[Any] | None) -> None:
        self.job, self.source, self.asked_classes = job, source, classes
        self._first: First | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def put(self, block: Block) -> None:
        """Keep a block that was computed here."""
        self._check(block)
        finish = self.finisher()
        self.take(block.index, block if finish is None else finish(block))

    def meet_again(self, batch: Batch) -> None:
        """Check a batch in `done`, from a source that cannot skip batches."""
        return

    def finisher(self) -> Finisher | None:
        """Return a function that workers apply to their blocks before they send them, or None."""
        return None

    @abstractmethod
    def take(self, index: int, result: Any) -> None:
        """Keep the finisher's result for a block, or the block itself if there is no finisher."""

    @abstractmethod
    def finish(self) -> Any:
        """Return the result of the run."""

    def _check(self, block: Block) -> None:
        """Compare a block with the first one."""
        if self._first is None:
            self._first = (block.logits.shape[1], block.logits.dtype)
            if self.source.labels is not None:  # refuse bad labels before the work, not after it
                self.columns(self.source.labels, block.logits.shape[1])
        check_block(block, self._first, self.job.model.name)

    def labels(
        self, parts: Iterable[ArrayLike | None], n_samples: int, n_classes: int
    ) -> tuple[Labels | None, NDArray[Any] | None]:
        """Return the labels as column indices, and the names of the columns if there are any.

        `parts` are the labels of each block in order, for a source whose labels are known only
        after reading.
        """
        values = self.source.labels
        arrays = [np.asarray(part) for part in parts if part is not None]
        if values is None and arrays:
            values = np.concatenate(arrays)
        if values is not None:
            check_one_each(values, n_samples)
        return self.columns(values, n_classes)

    def columns(
        self, values: NDArray[Any] | None, n_classes: int
    ) -> tuple[Labels | None, NDArray[Any] | None]:
        folders = self.source.classes
        names = self.job.model.classes if self.asked_classes is None else self.asked_classes
        if names is None and folders is not None and len(folders) != n_classes:
            raise InputError(
                f"The labels have {len(folders)} classes and the model has {n_classes}, so the "
                "order of its columns is unknown",
                remedy="Pass classes=[...] (--classes A,B,C), the names of its columns in order",
            )
        names = folders if names is None else names
        columns = None if names is None else check_classes(names, n_classes)
        if columns is not None and columns.dtype.kind in "iu":
            columns = None if np.array_equal(columns, np.arange(n_classes)) else columns
        if values is None:
            return None, columns
        if folders is not None and columns is not None:
            values = np.asarray(folders)[values]
        return check_labels(values, len(values), n_classes, columns), columns


class MemorySink(Sink):
    """Keeps all logits in memory, and writes them to one .npz file at the end if there is a target."""

    def __init__(
        self, job: Job, source: Source, classes: Sequence[Any] | None, target: Path | None = None
    ) -> None:
        super().__init__(job, source, classes)
        self.target = target
        self._blocks: dict[int, Block] = {}
        if target is not None:
            try:  # fail now rather than after hours of work
                target.parent.mkdir(parents=True, exist_ok=True)
                probe = target.with_name(f".{target.name}.probe")
                probe.touch()
                probe.unlink()
            except OSError as error:
                raise FileError(f"Cannot write {target}: {error.strerror or error}.") from error

    def take(self, index: int, result: Block) -> None:
        self._blocks[index] = result

    def finish(self) -> Views:
        n_samples = sum(map(len, self._blocks.values()))
        if self.source.n_samples not in (None, n_samples):
            raise InputError(
                f"{self.source.n_samples} samples were expected and {n_samples} arrived."
            )
        assert self._first is not None
        n_classes, dtype = self._first
        parts = [self._blocks[index].labels for index in sorted(self._blocks)]
        stack = np.empty((1 + len(self.job.transforms), n_samples, n_classes), dtype=dtype)
        while self._blocks:
            _, block = self._blocks.popitem()  # so that only one block is in memory twice
            rows = slice(block.start, block.start + len(block))
            stack[0, rows], stack[1:, rows] = block.logits, block.transformed
        transformed: dict[Transform | str, Any] = dict(zip(self.job.transforms, stack[1:]))
        labels, columns = self.labels(parts, n_samples, n_classes)
        named = labels if labels is None or columns is None else columns[labels]
        names: dict[str, Any] = {"clusters": self.source.clusters, "groups": self.source.groups}
        names["ids"] = self.source.names()
        record = self.job.preprocessing
        views = Views(stack[0], transformed, named, classes=columns, preprocessing=record, **names)
        if self.target is not None:
            views.write(self.target)
        return views


def first_changed_block(
    source: Source, batch_size: int, folder: Path, records: Mapping[int, Mapping[str, Any]]
) -> int | None:
    """Return the first finished block whose inputs differ from its record, or None.

    Every finished block has a digest of its inputs. A file in the output folder records the names,
    sizes and times of the input files, so that they are not read again if none of them has changed.
    Losing that file does no harm.
    """
    if not isinstance(source, IndexedSource) or source.covers_all_bytes():
        return None  # batches of a loader are compared as they arrive; otherwise the fingerprint covers all bytes
    now, files = time.time_ns(), source.files(range(source.n_samples))
    stamp, newest = ("", now) if files is None else _stamp(files)
    if not stamp or not _is_untouched(folder / STAMPS, stamp, newest):
        for index, record in sorted(records.items()):
            is_beyond = index * batch_size >= source.n_samples
            if is_beyond or not has_inputs_of(record, source.batch(index, batch_size)):
                return index
    if stamp:
        with suppress(FileError), replacing(folder / STAMPS) as file:  # a folder may be read-only
            file.write(json.dumps({"taken": now, "files": stamp}).encode())
    return None


def _stamp(paths: Sequence[Path]) -> tuple[str, int]:
    """Return a digest of the names, sizes and times of files, and the newest of the times in
    nanoseconds.
    """
    infos = [os.stat(path) for path in paths]
    # Unlike the modification time, the time of the last change (ctime) cannot be set by hand.
    texts = [
        f"{path} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns}"
        for path, info in zip(paths, infos)
    ]
    return digest_texts(texts), max(
        (max(info.st_mtime_ns, info.st_ctime_ns) for info in infos), default=0
    )


def _is_untouched(path: Path, stamp: str, newest: int) -> bool:
    """Whether an earlier run recorded this stamp, and its files were no longer young then."""
    try:
        stored = json.loads(path.read_bytes())
        return bool(stored["files"] == stamp and newest < stored["taken"] - _YOUNG)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def has_inputs_of(record: Mapping[str, Any], batch: Batch) -> bool:
    """Whether the record of a block matches the inputs and labels of this batch."""
    if record.get("inputs") not in (None, digest_inputs(batch)):
        return False
    labels = record.get("labels")
    return labels is None or batch.labels is None or np.asarray(batch.labels).tolist() == labels
