"""A job computes blocks of logits, and sinks receive them.

All engines run the same job, so all give the same bits. The sink here keeps blocks in memory or one
file; `store` has the resumable store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Labels, check_classes, check_labels
from recal.collecting.models.base import Model, as_logits
from recal.collecting.sources import Batch, Source, digest_inputs
from recal.errors import InputError, RecalError, blame
from recal.files.paths import file_errors
from recal.maps.base import Map
from recal.transforms import BuiltIn, Transform
from recal.transforms.preprocessing import Outputs, Preprocessing
from recal.views import Views

Preprocess = Callable[[Any], Any]
# Labels as column indices, and the names of the columns.
LabelColumns = tuple[Labels | None, NDArray[Any] | None]


@dataclass(frozen=True)
class Block:
    """The logits of one batch: (b, K) for the originals and (m, b, K) for the copies."""

    index: int
    start: int
    logits: Floats
    transformed: Floats
    labels: NDArray[Any] | None = None
    inputs: str | None = None  # a digest of its inputs, for a store

    def __len__(self) -> int:
        return len(self.logits)


@dataclass(frozen=True)
class Job:
    """A model, the transformations of its inputs, and the preprocessing between the two."""

    model: Model
    transforms: tuple[Transform, ...] = ()
    preprocess: Preprocess | None = None
    outputs: Outputs = "logits"
    # A map with a gate: rows of views that confident samples do not need stay 0.
    plan: Map | None = None
    # The record of these settings, stored with the views.
    preprocessing: Preprocessing | None = None
    # Whether blocks need a digest of their inputs.
    digests: bool = False

    def run(self, batch: Batch, describe: Callable[[int], str]) -> Block:
        """Return the logits of one batch, with one forward pass per view."""
        inputs, rows = self.model.prepare(batch.inputs), np.arange(len(batch))
        logits = self._logits(_copy_batch(inputs), None, batch, describe, rows)
        transformed = np.zeros((len(self.transforms), *logits.shape), dtype=logits.dtype)
        if self.plan is not None:
            rows = np.flatnonzero(self.plan.needs_views(logits))
            inputs = inputs if len(rows) == len(logits) else _take_rows(inputs, rows)
        for place, transform in enumerate(self.transforms if len(rows) else ()):
            is_own = isinstance(transform, BuiltIn)
            # The inputs are needed again and may be the caller's, so code that may work in place
            # gets a copy.
            values = inputs if is_own else _copy_batch(inputs)
            whose = "" if is_own else f"Your transformation {transform!s}"
            values = _call(transform, values, whose, _where(transform, batch))
            view = self._logits(values, transform, batch, describe, rows)
            if view.shape[1] != logits.shape[1]:
                raise InputError(
                    f"{self.model.name} gave {logits.shape[1]} classes for the originals and "
                    f"{view.shape[1]} through {str(transform)!r}."
                )
            transformed[place, rows] = view
        inputs_digest = digest_inputs(batch) if self.digests else None
        return Block(batch.index, batch.start, logits, transformed, batch.labels, inputs_digest)

    def _logits(
        self,
        values: Any,
        transform: Transform | None,
        batch: Batch,
        describe: Callable[[int], str],
        rows: NDArray[np.intp],
    ) -> Floats:
        """Return the logits of one view, checked; `rows` are the rows of the batch that `values`
        belong to.
        """
        where = _where(transform, batch)
        if self.preprocess is not None:
            values = _call(self.preprocess, values, "Your preprocess", where)
        outputs = _call(self.model.answer, values, f"The model {self.model.name}", where)
        self.model.n_answered += len(rows)
        logits = _call(lambda raw: as_logits(raw, self.outputs, self.model), outputs, "", where)
        if len(logits) != len(rows):
            raise InputError(
                f"{self.model.name} gave {len(logits)} rows for {len(rows)} inputs "
                f"({_view_name(transform)}, from {describe(batch.start)} on); give one per input."
            )
        if not (np.isfinite(logits.min()) and np.isfinite(logits.max())):
            row, column = np.argwhere(~np.isfinite(logits))[0].tolist()
            sample = describe(batch.start + int(rows[row]))
            raise InputError(
                f"Logits must be finite; {self.model.name} gave {logits[row, column]} for "
                f"{sample}, class {column}, in {_view_name(transform)}",
                remedy="Remove that sample, or fix the model or the preprocessing",
            )
        return logits


def _call(function: Callable[[Any], Any], batch: Any, whose: str, where: str) -> Any:
    """Call a function of the user; if it fails, say whose it is and where.

    An empty `whose` means recal itself.
    """
    try:
        return function(batch)
    except SystemExit as stop:
        rule = f"{whose} ended Python (sys.exit: {stop.code}) {where}; it must return logits."
        raise InputError(rule) from stop
    except Exception as error:
        if not whose or isinstance(error, RecalError):
            error.add_note(where)
        else:
            blame(error, whose, f"{where}, {_describe_batch(batch)}")
        raise


def _take_rows(inputs: Any, rows: NDArray[np.intp]) -> Any:
    """Return some rows of a batch: an array, a tensor, a list or a frame."""
    if hasattr(inputs, "iloc"):
        return inputs.iloc[rows]
    return [inputs[row] for row in rows.tolist()] if isinstance(inputs, list) else inputs[rows]


def _view_name(transform: Transform | None) -> str:
    return "the original" if transform is None else f"the view {str(transform)!r}"


def _where(transform: Transform | None, batch: Batch) -> str:
    last = batch.start + len(batch) - 1
    return f"while collecting {_view_name(transform)} of samples {batch.start}..{last}"


def _describe_batch(batch: Any) -> str:
    """Describe the form of a batch for messages: most models fail on a form that they were not
    trained on.
    """
    shape = getattr(batch, "shape", None)
    if shape is None or not hasattr(batch, "dtype"):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a batch of {str(batch.dtype).removeprefix('torch.')} of the shape {tuple(shape)}"


def _copy_batch(inputs: Any) -> Any:
    return inputs.clone() if hasattr(inputs, "clone") else inputs.copy()  # lists, arrays and frames


class Sink:
    """Keeps the result of each batch. Results come in any order, each once.

    Attributes
    ----------
    done : frozenset of int
        Batches that need not be computed.
    doing : str
        The text of the progress bar.
    """

    done: frozenset[int] = frozenset()

    def __init__(self, doing: str) -> None:
        self.doing = doing
        self.results: dict[int, Any] = {}

    def take(self, index: int, result: Any) -> None:
        self.results[index] = result

    def in_order(self) -> list[Any]:
        return [self.results[index] for index in sorted(self.results)]


class ViewsSink(Sink, ABC):
    """Takes the blocks of `collect`, and returns views."""

    def __init__(self, job: Job, source: Source, classes: Sequence[Any] | None) -> None:
        super().__init__("Collecting")
        self.job, self.source, self.classes = job, source, classes
        # The number of classes and the dtype of the first block.
        self._first: tuple[int, np.dtype[Any]] | None = None

    @abstractmethod
    def finish(self) -> Views:
        """Return all views, or those of a store."""

    def check(self, block: Block) -> None:
        """Compare a block with the first one."""
        if self._first is None:
            self._first = (block.logits.shape[1], block.logits.dtype)
            if self.source.labels is not None:  # refuse bad labels before the work, not after it
                self.columns(self.source.labels)
        n_classes, dtype = self._first
        if block.logits.shape[1] != n_classes or not np.can_cast(block.logits.dtype, dtype):
            raise InputError(
                f"{self.job.model.name} gave {n_classes} columns of {dtype} before and "
                f"{block.logits.shape[1]} of {block.logits.dtype} for batch {block.index}."
            )

    def columns(self, labels: NDArray[Any] | None) -> LabelColumns:
        """Return labels as column indices, and the names of the columns, as in `label_columns`."""
        assert self._first is not None
        return label_columns(labels, self.source, self.job.model, self.classes, self._first[0])

    def about_rows(self, labels_of_blocks: Iterable[ArrayLike | None]) -> dict[str, Any]:
        """Return what views hold beside logits, by the names of the parameters of `Views`."""
        source = self.source
        labels, columns = self.columns(join_labels(source, labels_of_blocks))
        return {
            "labels": labels if labels is None or columns is None else columns[labels],
            "classes": columns,
            "preprocessing": self.job.preprocessing,
            "clusters": source.clusters,
            "groups": source.groups,
            "ids": source.names(),
        }


def join_labels(source: Source, parts: Iterable[ArrayLike | None]) -> NDArray[Any] | None:
    """Return the labels of a source, or of its batches in order if only reading shows them."""
    arrays = [np.asarray(part) for part in parts if part is not None]
    if source.labels is not None or not arrays:
        return source.labels
    return np.concatenate(arrays)


def label_columns(
    labels: NDArray[Any] | None,
    source: Source,
    model: Model,
    classes: Sequence[Any] | None,
    n_classes: int,
) -> LabelColumns:
    """Return the labels of a source as column indices, and the names of the columns if there are
    any.

    `classes` are the names that the caller gave; without them, the model or the source names the
    columns.
    """
    folders = source.classes
    names = model.classes if classes is None else classes
    if names is None and folders is not None and len(folders) != n_classes:
        rule = f"The labels have {len(folders)} classes and the model has {n_classes}"
        remedy = "Pass classes=[...] (--classes A,B,C), the names of its columns in order"
        raise InputError(rule, remedy=remedy)
    names = folders if names is None else names
    columns = None if names is None else check_classes(names, n_classes)
    if columns is not None and columns.dtype.kind in "iu":
        columns = None if np.array_equal(columns, np.arange(n_classes)) else columns
    if labels is None:
        return None, columns
    if folders is not None and columns is not None:
        labels = np.asarray(folders)[labels]
    return check_labels(labels, len(labels), n_classes, columns), columns


class MemorySink(ViewsSink):
    """Keeps all logits in memory, and writes one .npz file at the end if there is a target."""

    def __init__(
        self, job: Job, source: Source, classes: Sequence[Any] | None, target: Path | None = None
    ) -> None:
        super().__init__(job, source, classes)
        self.target = target
        if target is not None:
            with file_errors(target, "write"):  # fail now rather than after hours of work
                target.parent.mkdir(parents=True, exist_ok=True)
                probe = target.with_name(f".{target.name}.probe")
                probe.touch()
                probe.unlink()

    def take(self, index: int, result: Block) -> None:
        self.check(result)
        super().take(index, result)

    def finish(self) -> Views:
        assert self._first is not None
        n_classes, dtype = self._first
        about = self.about_rows(block.labels for block in self.in_order())
        shape = 1 + len(self.job.transforms), self.source.n_samples, n_classes
        stack = np.empty(shape, dtype=dtype)
        while self.results:
            _, block = self.results.popitem()  # so that only one block is in memory twice
            rows = slice(block.start, block.start + len(block))
            stack[0, rows], stack[1:, rows] = block.logits, block.transformed
        views = Views(stack[0], dict(zip(self.job.transforms, stack[1:])), **about)
        if self.target is not None:
            views.write(self.target)
        return views
