"""Sinks: destinations of blocks of logits. This module has memory and one file; store.py has the resumable store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels, check_classes, check_labels, check_one_each
from recal.collecting.inputs.sources import Batch, Source
from recal.collecting.job import Block, Finisher, Job
from recal.errors import FileError, InputError, Remedy
from recal.transforms import Transform
from recal.views import Views

# The number of classes and the dtype of the first block.
First = tuple[int, np.dtype[Any]]


def check_block(block: Block, first: First, model: str) -> None:
    """Refuse a block whose number of classes differs from the first block's, or whose dtype does not fit in it."""
    (n_classes, dtype), (first_classes, first_dtype) = (block.logits.shape[1], block.logits.dtype), first
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
        self._labels: dict[int, NDArray[Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @abstractmethod
    def put(self, block: Block) -> None:
        """Keep a block."""

    def meet_again(self, batch: Batch) -> None:
        """Check a batch in `done`, from a source that cannot skip batches."""
        return

    def finisher(self) -> Finisher | None:
        """Return a function that workers apply to their blocks before they send them, or None."""
        return None

    def take(self, finished: Any) -> None:
        """Keep the result of a finisher."""
        raise NotImplementedError(f"{type(self).__name__} has no finisher")

    def _check(self, block: Block) -> None:
        """Compare a block with the first one, and keep its labels."""
        if self._first is None:
            self._first = (block.logits.shape[1], block.logits.dtype)
            if self.source.labels is not None:  # refuse bad labels before the work, not after it
                self._columns(self.source.labels, block.logits.shape[1])
        check_block(block, self._first, self.job.model.name)
        if block.labels is not None and self.source.labels is None:
            self._labels[block.index] = block.labels

    def labels(self, n_samples: int, n_classes: int) -> tuple[Labels | None, NDArray[Any] | None]:
        """Return the labels as column indices, and the names of the columns if there are any."""
        values = self.source.labels
        if values is None and self._labels:
            values = np.concatenate([self._labels[index] for index in sorted(self._labels)])
        if values is not None and len(values) != n_samples:
            check_one_each(values, n_samples)
        return self._columns(values, n_classes)

    def _columns(self, values: NDArray[Any] | None, n_classes: int) -> tuple[Labels | None, NDArray[Any] | None]:
        names = self.asked_classes if self.asked_classes is not None else self.job.model.classes
        folders = self.source.classes
        if names is None and folders is not None and len(folders) != n_classes:
            raise InputError(
                f"The labels have {len(folders)} classes and the model has {n_classes}, so the order of its columns is "
                "unknown",
                remedy=Remedy(
                    "Pass classes=[...], the names of the model's columns in order",
                    typed="Give --classes A,B,C, the names of the model's columns in order",
                ),
            )
        columns = None if names is None else check_classes(names, n_classes)
        if columns is None and folders is not None:
            columns = check_classes(folders, n_classes)
        elif columns is not None and columns.dtype.kind in "iu" and np.array_equal(columns, np.arange(n_classes)):
            columns = None
        if values is None:
            return None, columns
        if folders is not None and columns is not None:
            values = np.asarray(folders)[values]
        return check_labels(values, len(values), n_classes, columns), columns


class ViewsSink(Sink):
    """Turns blocks into Views."""

    @abstractmethod
    def finish(self) -> Views:
        """Return all blocks as Views."""


class MemorySink(ViewsSink):
    """Keeps all logits in memory."""

    def __init__(self, job: Job, source: Source, classes: Sequence[Any] | None) -> None:
        super().__init__(job, source, classes)
        self._blocks: dict[int, Block] = {}
        self._stack: Floats | None = None  # (1 + m, n, K) if n is known, so that blocks are not kept twice
        self._rows = 0

    def put(self, block: Block) -> None:
        self._check(block)
        if self.source.n_samples is None:
            self._blocks[block.index] = block
            return
        if self._stack is None:
            shape = (1 + len(self.job.transforms), self.source.n_samples, block.logits.shape[1])
            self._stack = np.empty(shape, dtype=block.logits.dtype)
        rows = slice(block.start, block.start + len(block))
        self._stack[0, rows], self._stack[1:, rows] = block.logits, block.transformed
        self._rows += len(block)

    def finish(self) -> Views:
        stack = self._stack
        if stack is None:
            blocks = [self._blocks.pop(index) for index in sorted(self._blocks)]
            pieces = [np.concatenate([block.logits[None], block.transformed]) for block in blocks]
            stack = np.concatenate(pieces, axis=1)
        elif self._rows != stack.shape[1]:
            raise InputError(f"{stack.shape[1]} samples were expected and {self._rows} arrived.")
        logits = stack[0]
        transformed: dict[Transform | str, Any] = dict(zip(self.job.transforms, stack[1:]))
        labels, columns = self.labels(*logits.shape)
        named = labels if labels is None or columns is None else columns[labels]
        rows = {"clusters": self.source.clusters, "groups": self.source.groups}
        return Views(logits, transformed, named, classes=columns, preprocessing=self.job.preprocessing, **rows)


class FileSink(MemorySink):
    """Keeps all logits in memory and writes them to one .npz file at the end."""

    def __init__(self, job: Job, source: Source, classes: Sequence[Any] | None, target: Path) -> None:
        super().__init__(job, source, classes)
        self.target = target
        try:  # fail now rather than after hours of work
            target.parent.mkdir(parents=True, exist_ok=True)
            probe = target.with_name(f".{target.name}.probe")
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise FileError(f"Cannot write {target}: {error.strerror or error}.") from error

    def finish(self) -> Views:
        views = super().finish()
        views.write(self.target)
        return views
