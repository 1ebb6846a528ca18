"""Where inputs come from: a source reads them batch by batch and never holds more than it must."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_one_each
from recal.collecting.fingerprint import digest, digest_array, digest_texts, is_read_whole
from recal.collecting.models.base import _comes_from
from recal.errors import InputError

# What a file or folder may be told; each reader takes its own of these.
FILE_OPTIONS = (
    *("resize", "crop", "on_error", "pixels", "read", "seconds"),
    *("label_column", "text_column", "cluster_column", "group_column", "cluster_by"),
)


@dataclass(frozen=True)
class Stamp:
    """When some files were touched last: a digest of their names, sizes and times, and the newest of the times."""

    digest: str
    newest: int  # in nanoseconds, by the file system's clock

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Stamp:
        found = [os.stat(path) for path in paths]
        # The time of the last change of anything about a file cannot be set by hand, as that of its content can.
        told = [f"{path} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns}" for path, info in zip(paths, found)]
        times = [moment for info in found for moment in (info.st_mtime_ns, info.st_ctime_ns)]
        return cls(digest_texts(told), max(times, default=0))


@dataclass(frozen=True)
class Batch:
    """Some inputs in a row, with their labels where the source gives them along."""

    index: int
    start: int
    inputs: Any
    labels: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.inputs)


class Source(ABC):
    """A finite sequence of inputs.

    Attributes
    ----------
    n_samples : int or None
        None where it is known only at the end.
    labels : ndarray or None
        One per sample, where they are known beforehand.
    classes : sequence of str or None
        What the integer labels stand for, where the source names them (the folders of an image folder).
    skipped : tuple of str
        What could not be read and was left out.
    clusters, groups : ndarray or None
        What each sample belongs to, where a column or the names of the files tell: rows of one cluster are dependent
        (frames of a video), and groups are calibrated and decided one by one (customers).
    """

    n_samples: int | None
    labels: NDArray[Any] | None = None
    classes: tuple[str, ...] | None = None
    skipped: tuple[str, ...] = ()
    clusters: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a digest that differs when the data differ, as far as can be told without reading all."""

    @abstractmethod
    def batches(self, size: int, done: frozenset[int] = frozenset()) -> Iterator[Batch]:
        """Yield batches of `size` samples, the last one maybe smaller; those in `done` need not be read."""

    def describe(self, row: int) -> str:
        """Return how messages call a sample."""
        return f"sample {row}"

    def names(self) -> Sequence[str] | None:
        """Return how people call each input, such as its file's name; None where it is its row's number."""
        return None

    def reading(self) -> dict[str, Any]:
        """Return how files are turned into inputs, by the names of `Preprocessing`."""
        return {}

    def sample(self) -> tuple[tuple[int, ...], str] | None:
        """Return the shape and dtype of one input, where all are alike and it can be told without reading all."""
        return None

    def is_known_whole(self) -> bool:
        """Whether the fingerprint differs when any byte of the data does."""
        return False

    def stamp(self, start: int, stop: int) -> Stamp | None:
        """Return what changes when the files behind these rows are touched; None where only reading them tells."""
        return None


class IndexedSource(Source):
    """A source whose samples can be read in any order, so that several workers can share it."""

    n_samples: int

    @abstractmethod
    def read(self, start: int, stop: int) -> Any:
        """Return the inputs of rows start..stop-1 as one batch."""

    def take(self, rows: Sequence[int]) -> tuple[Any, NDArray[Any] | None]:
        """Return the inputs of some rows as one batch, and their labels where they are known."""

        ones = [self.batch(int(row), 1) for row in rows]
        return join([(one.inputs, one.labels) for one in ones])

    def batch(self, index: int, size: int) -> Batch:
        start = index * size
        stop = min(start + size, self.n_samples)
        return Batch(index, start, self.read(start, stop), None if self.labels is None else self.labels[start:stop])

    def batches(self, size: int, done: frozenset[int] = frozenset()) -> Iterator[Batch]:
        for index in range(-(-self.n_samples // size)):
            if index not in done:
                yield self.batch(index, size)


class ArraySource(IndexedSource):
    """Inputs in one array or tensor, in memory or mapped from a file, which `file` then names."""

    file: Path | None = None

    def __init__(self, values: Any, labels: ArrayLike | None = None) -> None:
        self.values = values if hasattr(values, "detach") else _as_array(values)
        if len(self.values.shape) == 0 or self.values.shape[0] == 0:
            raise InputError(f"Inputs must hold at least one sample, got an array of shape {tuple(self.values.shape)}.")
        self.n_samples = int(self.values.shape[0])
        self.labels = None if labels is None else np.asarray(labels)
        if self.labels is not None:
            check_one_each(self.labels, self.n_samples)

    def fingerprint(self) -> str:
        return digest_array(self._numpy())

    def is_known_whole(self) -> bool:
        return is_read_whole(self._numpy())

    def stamp(self, start: int, stop: int) -> Stamp | None:
        return None if self.file is None else Stamp.of([self.file])

    def _numpy(self) -> NDArray[Any]:
        return self.values.detach().cpu().numpy() if hasattr(self.values, "detach") else self.values

    def sample(self) -> tuple[tuple[int, ...], str] | None:
        return form_of(self.values)

    def read(self, start: int, stop: int) -> Any:
        batch = self.values[start:stop]
        return np.asarray(batch) if isinstance(batch, np.memmap) else batch


def form_of(batch: Any) -> tuple[tuple[int, ...], str] | None:
    """Return the shape and dtype of the inputs of a batch; None where they are no numbers."""
    dtype = str(batch.dtype).removeprefix("torch.")
    known = hasattr(batch, "detach") or batch.dtype.kind in "fiub"
    return (tuple(int(size) for size in batch.shape[1:]), dtype) if known else None


def _as_array(values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, list) and values and isinstance(values[0], str | bytes):
        return np.array(values, dtype=object)  # a fixed-width dtype would hold every text at the longest one's length
    try:
        array = np.asarray(values)
    except ValueError:  # samples of different lengths
        array = np.empty(len(values), dtype=object)
        array[:] = values
    if array.dtype == object and array.ndim == 0:
        raise InputError(
            "Inputs are an array, a torch dataset or loader, an iterable of batches, or the path of a file or folder; "
            f"got {type(values).__name__}."
        )
    return array


def is_table(inputs: Any) -> bool:
    """Whether these are a frame of pandas, polars or pyarrow."""
    return type(inputs).__name__ in ("DataFrame", "LazyFrame", "Table") and any(
        _comes_from(inputs, package) for package in ("pandas", "polars", "pyarrow")
    )


def as_source(inputs: Any, **options: Any) -> Source:
    """Return the source that serves `inputs`; `options` go to the reader of files and folders."""
    if unknown := sorted(set(options) - set(FILE_OPTIONS)):
        raise InputError(
            f"There is no option `{unknown[0]}`; besides its own, collect takes those of files and folders: "
            f"{', '.join(FILE_OPTIONS)}."
        )
    if isinstance(inputs, tuple) and inputs and all(isinstance(item, str | bytes) for item in inputs):
        inputs = list(inputs)
    if isinstance(inputs, Source):
        source: Source = inputs
    elif isinstance(inputs, str | os.PathLike):
        from recal.collecting.inputs.files import open_path

        return open_path(Path(inputs), **options)
    elif isinstance(inputs, tuple):
        raise InputError(
            f"Inputs came as a tuple of {len(inputs)}; pass the inputs alone, and their labels as `labels`."
        )
    elif is_table(inputs):
        from recal.collecting.inputs.tables import open_frame

        source = open_frame(inputs)
    elif _comes_from(inputs, "torch.utils.data"):
        source = open_torch(inputs)
    elif hasattr(inputs, "__iter__") and not hasattr(inputs, "__array__") and not isinstance(inputs, list | dict | set):
        source = LoaderSource(inputs)
    else:
        source = ArraySource(inputs)
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InputError(f"{', '.join(given)}: only inputs read from a file or folder take this.")
    return source


def open_torch(inputs: Any) -> Source:
    """Return the source for a torch DataLoader or Dataset."""
    if _comes_from(inputs, "torch.utils.data.dataloader"):
        return LoaderSource(inputs)
    if hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__"):
        return DatasetSource(inputs)
    if hasattr(inputs, "__iter__"):
        return LoaderSource(([item] for item in inputs), items=True, name=type(inputs).__qualname__)
    raise InputError(f"{type(inputs).__name__} has neither __getitem__ and __len__ nor __iter__: not a usable dataset.")


class DatasetSource(IndexedSource):
    """A map-style dataset whose items are inputs, or pairs of input and label. Items are read when they are needed."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.n_samples = len(dataset)
        if self.n_samples == 0:
            raise InputError(f"{type(dataset).__name__} is empty; at least one sample is needed.")
        self._labelled = _split(dataset[0])[1] is not None

    def fingerprint(self) -> str:
        rows = sorted({0, self.n_samples // 2, self.n_samples - 1})
        items = [digest_array(_numpy(_split(self.dataset[row])[0])) for row in rows]
        return digest([type(self.dataset).__qualname__, self.n_samples, items])

    def read(self, start: int, stop: int) -> Any:
        return self._read(start, stop)[0]

    def _read(self, start: int, stop: int) -> tuple[Any, NDArray[Any] | None]:
        pairs = [_split(self.dataset[row]) for row in range(start, stop)]
        inputs = _stack([pair[0] for pair in pairs], start)
        return inputs, np.array([_number(pair[1]) for pair in pairs]) if self._labelled else None

    def batch(self, index: int, size: int) -> Batch:
        start = index * size
        return Batch(index, start, *self._read(start, min(start + size, self.n_samples)))


class LoaderSource(Source):
    """An iterable of batches, each of inputs or of a pair of inputs and labels; they are cut anew to collect's size."""

    def __init__(self, loader: Any, *, items: bool = False, name: str | None = None) -> None:
        self.loader, self._items = loader, items
        self._name = name or type(loader).__qualname__
        try:
            self.n_samples = None if items or getattr(loader, "drop_last", False) else len(loader.dataset)
        except (AttributeError, TypeError):
            self.n_samples = None

    def fingerprint(self) -> str:
        # What it will give cannot be known; a store compares every batch that it meets again.
        return digest([self._name, self.n_samples])

    def batches(self, size: int, done: frozenset[int] = frozenset()) -> Iterator[Batch]:
        held: list[tuple[Any, NDArray[Any] | None]] = []
        count = index = 0
        for batch in self.loader:
            inputs, labels = self._pair(batch)
            held.append((inputs, labels))
            count += len(inputs)
            while count >= size:
                inputs, labels = join(held)
                yield Batch(index, index * size, inputs[:size], None if labels is None else labels[:size])
                held = [(inputs[size:], None if labels is None else labels[size:])]
                count -= size
                index += 1
        if count:
            yield Batch(index, index * size, *join(held))
        elif index == 0:
            raise InputError(f"{self._name} gave no batch; a generator can be read only once.")

    def _pair(self, batch: Any) -> tuple[Any, NDArray[Any] | None]:
        if self._items:
            inputs, label = _split(batch[0])
            return _stack([inputs], 0), None if label is None else np.array([_number(label)])
        inputs, labels = _split(batch)
        if not hasattr(inputs, "shape"):
            inputs = np.asarray(inputs)
        if len(inputs.shape) == 0:
            raise InputError(f"{self._name} gave a single number; each batch must have the shape (n_samples, ...).")
        labels = None if labels is None else np.atleast_1d(_numpy(labels))
        if labels is not None and len(labels) != len(inputs):
            raise InputError(f"{self._name} gave a batch of {len(inputs)} inputs with {len(labels)} labels.")
        return inputs, labels


def _split(item: Any) -> tuple[Any, Any]:
    """An item or batch as (inputs, labels or None)."""
    if isinstance(item, dict):
        raise InputError(
            f"Items are dictionaries with {', '.join(map(repr, item))}; pairs (input, label) are needed. "
            "Map them first, for instance with a small wrapping dataset."
        )
    if not isinstance(item, tuple | list):
        return item, None
    if len(item) == 1:
        return item[0], None
    if len(item) == 2:
        return item[0], item[1]
    raise InputError(f"Items must be an input or a pair (input, label); got {len(item)} parts.")


def join(held: list[tuple[Any, NDArray[Any] | None]]) -> tuple[Any, NDArray[Any] | None]:
    """Return pairs of inputs and labels as one pair."""
    inputs = [pair[0] for pair in held]
    labels = [pair[1] for pair in held if pair[1] is not None]
    joined = inputs[0] if len(inputs) == 1 else _concatenate(inputs)
    if labels and len(labels) != len(held):
        raise InputError("Some batches came with labels and some without.")
    return joined, np.concatenate(labels) if labels else None


def _concatenate(parts: list[Any]) -> Any:
    if hasattr(parts[0], "detach"):
        from recal.collecting.models.torch import concatenate

        return concatenate(parts)
    return np.concatenate(parts)


def _stack(items: list[Any], start: int) -> Any:
    shapes = {tuple(np.shape(item) if not hasattr(item, "shape") else item.shape) for item in items}
    if len(shapes) > 1:
        raise InputError(f"Samples from {start} on have different shapes {sorted(shapes)[:3]}; bring them to one.")
    if hasattr(items[0], "detach"):
        from recal.collecting.models.torch import stack

        return stack(items)
    return np.stack([np.asarray(item) for item in items])


def _numpy(value: Any) -> NDArray[Any]:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _number(label: Any) -> Any:
    return _numpy(label).item() if hasattr(label, "detach") or hasattr(label, "shape") else label
