"""What a worker of a distributed run does: it holds the model, reads its own samples and answers for batches by number.

Nothing here knows Ray: a worker is a plain object that some engine makes in another process.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import recal.errors
from recal.collecting.inputs.sources import IndexedSource, Source
from recal.collecting.job import Finisher, Job
from recal.errors import InputError, MissingExtraError, RecalError


def as_indexed(source: Source) -> IndexedSource:
    """Return a source that workers can share, or say what to pass instead."""
    if not isinstance(source, IndexedSource):
        raise InputError(
            "Workers read their own samples, so engine='ray' needs inputs that can be read in any order: arrays, "
            "files, folders, or datasets. For a DataLoader pass its dataset: loader.dataset."
        )
    return source


@dataclass(frozen=True)
class Task:
    """A job with its inputs, the same for every worker."""

    job: Job
    source: IndexedSource
    batch_size: int
    digests: bool = False

    def rows(self, index: int) -> int:
        """How many samples a batch holds."""
        return min(self.batch_size, self.source.n_samples - index * self.batch_size)


@dataclass(frozen=True)
class Refusal:
    """What recal refused, as words: an exception's own class need not survive the way to another process."""

    kind: str
    message: str
    parts: dict[str, Any]

    @classmethod
    def of(cls, error: RecalError) -> Refusal:
        return cls(type(error).__name__, str(error), dict(vars(error)))

    def error(self) -> RecalError:
        kind = getattr(recal.errors, self.kind, RecalError)
        if kind is MissingExtraError:  # which is made of other words than its message
            kind = RecalError
        error: RecalError = kind(self.message)
        vars(error).update(self.parts)  # argument, rule, remedy and the notes
        return error


class Worker:
    """Computes batches; what recal refuses comes back as a Refusal, whatever else goes wrong as it is."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        _set_threads(threads)  # before a model is opened: some count their threads only then
        self._open = ExitStack()
        self._finish: Finisher | None = None

    def begin(self, task: Task, finish: Finisher | None) -> Refusal | None:
        """Open the model."""
        self.task, self._finish = task, finish
        _set_threads(self.threads)
        self._open.close()  # where it is greeted twice
        try:
            self._open.enter_context(task.job.model.running())
        except RecalError as error:
            return Refusal.of(error)
        return None

    def finish_with(self, finish: Finisher) -> None:
        """From now on, do this with every block."""
        self._finish = finish

    def run(self, index: int) -> Any:
        """Return one batch's block, or what its finisher made of it."""
        task = self.task
        try:
            batch = task.source.batch(index, task.batch_size)
            block = task.job.run(batch, task.source.describe, digests=task.digests)
            return block if self._finish is None else self._finish(block)
        except RecalError as error:
            return Refusal.of(error)


def _set_threads(count: int) -> None:
    """Compute with so many threads: several workers on one machine would otherwise each take all of its cores."""
    from threadpoolctl import threadpool_limits

    os.environ["OMP_NUM_THREADS"] = os.environ["RECAL_NUM_THREADS"] = str(count)
    threadpool_limits(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)
