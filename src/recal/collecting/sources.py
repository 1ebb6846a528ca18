"""Sources of inputs, read batch by batch."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import check_one_each
from recal.collecting.fingerprint import digest, digest_array
from recal.collecting.models.base import comes_from, to_numpy
from recal.errors import InputError
from recal.maps.base import namespace

# The options of files and folders, and what each applies to.
FILE_OPTIONS = {
    **dict.fromkeys(
        ("label_column", "text_column", "cluster_column", "group_column"),
        "tables (.csv, .tsv, .parquet)",
    ),
    **dict.fromkeys(("read", "on_error", "cluster_by"), "folders"),
    **dict.fromkeys(("resize", "crop", "pixels"), "folders of images"),
    "seconds": "folders of sounds",
}


@dataclass(frozen=True)
class Batch:
    """Consecutive inputs, with their labels if the source has them."""

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
        None if the length is unknown until the end.
    labels : ndarray or None
        One label per sample, if they are known before reading.
    classes : sequence of str or None
        Names of the integer labels, such as the class folders of an image folder.
    skipped : tuple of str
        Files that could not be read and were left out.
    clusters, groups : ndarray or None
        The cluster and the group of each sample, taken from a column or from file names. Rows of
        one cluster depend on each other (frames of a video). Groups are calibrated and decided
        separately (customers).
    kind : str or None
        What the inputs are, if the source knows: "image", "series", "audio", "text", "tabular".
    reading : mapping or None
        How files are turned into inputs, by the names of `Preprocessing`.
    """

    n_samples: int | None
    labels: NDArray[Any] | None = None
    classes: tuple[str, ...] | None = None
    skipped: tuple[str, ...] = ()
    clusters: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None
    kind: str | None = None
    reading: Mapping[str, Any] | None = None

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a digest that changes with the data, as far as is possible without reading
        everything.
        """

    @abstractmethod
    def batches(self, size: int, done: frozenset[int] = frozenset()) -> Iterator[Batch]:
        """Yield batches of `size` samples; the last may be smaller.

        Batches in `done` need not be read.
        """

    def names(self) -> Sequence[str] | None:
        """Return what traces each input to its origin, such as its file name."""
        return None

    def describe(self, row: int) -> str:
        """Return the name of a sample for messages."""
        names = self.names()
        return f"sample {row}" if names is None else f"sample {row} ({names[row]})"

    def sample(self) -> tuple[tuple[int, ...], str] | None:
        """Return the shape and dtype of one input, if all inputs share them and they are known
        without reading all.
        """
        return None


class IndexedSource(Source):
    """A source whose samples can be read in any order, so that several workers can share it."""

    n_samples: int

    @abstractmethod
    def read(self, rows: Sequence[int]) -> Any:
        """Return the inputs of these rows as one batch."""

    def take(self, rows: Sequence[int]) -> tuple[Any, NDArray[Any] | None]:
        """Return the inputs of these rows as one batch, and their labels if they are known."""
        return self.read(rows), None if self.labels is None else self.labels[list(rows)]

    def batch(self, index: int, size: int) -> Batch:
        start = index * size
        return Batch(index, start, *self.take(range(start, min(start + size, self.n_samples))))

    def batches(self, size: int, done: frozenset[int] = frozenset()) -> Iterator[Batch]:
        for index in range(-(-self.n_samples // size)):
            if index not in done:
                yield self.batch(index, size)


def as_indexed(source: Source) -> IndexedSource:
    """Return a source that workers can share; refuse any other."""
    if not isinstance(source, IndexedSource):
        raise InputError(
            "Workers read their own samples, so engine='ray' needs inputs that can be read in any order: arrays, "
            "files, folders, or datasets. For a DataLoader pass its dataset: loader.dataset."
        )
    return source


class Subset(IndexedSource):
    """Some rows of a source."""

    def __init__(self, source: IndexedSource, rows: NDArray[np.intp]) -> None:
        self.source, self.rows, self.n_samples = source, rows, len(rows)
        self.classes, self.skipped, self.reading = source.classes, source.skipped, source.reading
        self.kind = source.kind
        for name in ("labels", "clusters", "groups"):
            column = getattr(source, name)
            setattr(self, name, None if column is None else np.asarray(column)[rows])

    def fingerprint(self) -> str:
        return digest([self.source.fingerprint(), self.rows])

    def names(self) -> list[str]:
        names = self.source.names()
        return [str(row) if names is None else names[row] for row in self.rows]

    def describe(self, row: int) -> str:
        return self.source.describe(int(self.rows[row]))

    def sample(self) -> tuple[tuple[int, ...], str] | None:
        return self.source.sample()

    def read(self, rows: Sequence[int]) -> Any:
        return self.source.read(self._rows(rows))

    def take(self, rows: Sequence[int]) -> tuple[Any, NDArray[Any] | None]:
        return self.source.take(self._rows(rows))

    def _rows(self, rows: Sequence[int]) -> list[int]:
        return list(self.rows[list(rows)].tolist())


class ArraySource(IndexedSource):
    """Inputs in one array or tensor, in memory or mapped from a file."""

    def __init__(self, values: Any, labels: ArrayLike | None = None) -> None:
        self.values = values if hasattr(values, "detach") else _as_samples(values)
        if len(self.values.shape) == 0 or self.values.shape[0] == 0:
            raise InputError(
                f"Inputs must hold at least one sample, got an array of shape {tuple(self.values.shape)}."
            )
        self.n_samples = int(self.values.shape[0])
        self.labels = None if labels is None else np.asarray(labels)
        if self.labels is not None:
            check_one_each(self.labels, self.n_samples)

    def fingerprint(self) -> str:
        return digest_array(to_numpy(self.values))

    def sample(self) -> tuple[tuple[int, ...], str] | None:
        return form_of(self.values)

    def read(self, rows: Sequence[int]) -> Any:
        place = slice(rows.start, rows.stop) if isinstance(rows, range) else list(rows)
        batch = self.values[place]
        return np.asarray(batch) if isinstance(batch, np.memmap) else batch


def form_of(batch: Any) -> tuple[tuple[int, ...], str] | None:
    """Return the shape and dtype of the inputs of a batch; None if they are not numbers."""
    dtype = str(batch.dtype).removeprefix("torch.")
    is_numeric = hasattr(batch, "detach") or batch.dtype.kind in "fiub"
    return (tuple(int(size) for size in batch.shape[1:]), dtype) if is_numeric else None


def _as_samples(values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, list) and values and isinstance(values[0], str | bytes):
        # A fixed-width dtype would pad every text to the longest.
        return np.array(values, dtype=object)
    try:
        array = np.asarray(values)
    except ValueError:  # samples of different lengths
        array = as_objects(values)
    if array.dtype == object and array.ndim == 0:
        raise InputError(
            "Inputs are an array, a torch dataset or loader, an iterable of batches, or the path of a file or folder; "
            f"got {type(values).__name__}."
        )
    return array


def as_objects(items: Sequence[Any]) -> NDArray[np.object_]:
    """Return items as a one-dimensional array of objects, even if they have equal lengths."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def as_source(inputs: Any, **options: Any) -> Source:
    """Return the source for `inputs`; `options` go to the reader of files and folders."""
    if unknown := sorted(set(options) - set(FILE_OPTIONS)):
        raise InputError(
            f"There is no option `{unknown[0]}`; besides its own, collect takes those of files and folders: "
            f"{', '.join(FILE_OPTIONS)}."
        )
    if isinstance(inputs, tuple):
        if not inputs or not all(isinstance(item, str | bytes) for item in inputs):
            raise InputError(
                f"Inputs came as a tuple of {len(inputs)}; pass the inputs alone, and their labels as `labels`."
            )
        inputs = list(inputs)
    is_loader = comes_from(inputs, "torch.utils.data.dataloader")
    is_iterable = hasattr(inputs, "__iter__") and not hasattr(inputs, "__array__")
    if isinstance(inputs, Source):
        source: Source = inputs
    elif isinstance(inputs, str | os.PathLike):
        from recal.collecting.files import open_path

        return open_path(Path(inputs), **options)
    elif type(inputs).__name__ in ("DataFrame", "LazyFrame", "Table") and any(
        comes_from(inputs, package) for package in ("pandas", "polars", "pyarrow")
    ):
        from recal.collecting.tables import open_frame

        source = open_frame(inputs)
    elif comes_from(inputs, "torch.utils.data") and not is_loader:
        source = open_dataset(inputs)
    elif is_loader or (is_iterable and not isinstance(inputs, list | dict | set)):
        source = LoaderSource(inputs)
    else:
        source = ArraySource(inputs)
    if names := [name for name, value in options.items() if value is not None]:
        raise InputError(f"{', '.join(names)}: only inputs read from a file or folder take this.")
    return source


def open_dataset(inputs: Any) -> Source:
    """Return the source for a torch Dataset."""
    if hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__"):
        return DatasetSource(inputs)
    if hasattr(inputs, "__iter__"):
        return LoaderSource(
            (_as_batch([item], 0) for item in inputs), name=type(inputs).__qualname__
        )
    raise InputError(
        f"{type(inputs).__name__} has neither __getitem__ and __len__ nor __iter__: not a usable dataset."
    )


class DatasetSource(IndexedSource):
    """A map-style dataset whose items are inputs, or pairs of input and label.

    Items are read when they are needed.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.n_samples = len(dataset)
        if self.n_samples == 0:
            raise InputError(f"{type(dataset).__name__} is empty; at least one sample is needed.")

    def fingerprint(self) -> str:
        rows = sorted({0, self.n_samples // 2, self.n_samples - 1})
        items = [digest_array(to_numpy(_split_item(self.dataset[row])[0])) for row in rows]
        return digest([type(self.dataset).__qualname__, self.n_samples, items])

    def read(self, rows: Sequence[int]) -> Any:
        return self.take(rows)[0]

    def take(self, rows: Sequence[int]) -> tuple[Any, NDArray[Any] | None]:
        return _as_batch([self.dataset[row] for row in rows], rows[0])


class LoaderSource(Source):
    """An iterable of batches of inputs, or of pairs (inputs, labels), regrouped to the requested
    batch size.
    """

    def __init__(self, loader: Any, *, name: str | None = None) -> None:
        self.loader, self._name = loader, name or type(loader).__qualname__
        try:
            self.n_samples = None if getattr(loader, "drop_last", False) else len(loader.dataset)
        except (AttributeError, TypeError):
            self.n_samples = None

    def fingerprint(self) -> str:
        # The contents are unknown before they are read, so a store compares every batch.
        return digest([self._name, self.n_samples])

    def batches(self, size: int, done: frozenset[int] = frozenset()) -> Iterator[Batch]:
        pairs: list[tuple[Any, NDArray[Any] | None]] = []
        count = index = 0
        for batch in self.loader:
            pairs.append(self._as_pair(batch))
            count += len(pairs[-1][0])
            while count >= size:
                inputs, labels = _join(pairs)
                yield Batch(
                    index, index * size, inputs[:size], None if labels is None else labels[:size]
                )
                pairs = [(inputs[size:], None if labels is None else labels[size:])]
                count -= size
                index += 1
        if count:
            yield Batch(index, index * size, *_join(pairs))
        elif index == 0:
            raise InputError(f"{self._name} gave no batch; a generator can be read only once.")

    def _as_pair(self, batch: Any) -> tuple[Any, NDArray[Any] | None]:
        inputs, labels = _split_item(batch)
        if not hasattr(inputs, "shape"):
            inputs = np.asarray(inputs)
        if len(inputs.shape) == 0:
            raise InputError(
                f"{self._name} gave a single number; each batch must have the shape (n_samples, ...)."
            )
        labels = None if labels is None else np.atleast_1d(to_numpy(labels))
        if labels is not None and len(labels) != len(inputs):
            raise InputError(
                f"{self._name} gave a batch of {len(inputs)} inputs with {len(labels)} labels."
            )
        return inputs, labels


def _split_item(item: Any) -> tuple[Any, Any]:
    """Return an item or batch as (inputs, labels or None)."""
    if isinstance(item, dict):
        raise InputError(
            f"Items are dictionaries with {', '.join(map(repr, item))}; pairs (input, label) are needed. "
            "Map them first, for instance with a small wrapping dataset."
        )
    if not isinstance(item, tuple | list):
        return item, None
    if len(item) not in (1, 2):
        raise InputError(f"Items must be an input or a pair (input, label); got {len(item)} parts.")
    return item[0], item[1] if len(item) == 2 else None


def _as_batch(items: Sequence[Any], start: int) -> tuple[Any, NDArray[Any] | None]:
    """Return items of a dataset as one batch of inputs and labels; `start` is the first row."""
    inputs, labels = zip(*map(_split_item, items))
    arrays = [item if hasattr(item, "detach") else np.asarray(item) for item in inputs]
    shapes = {tuple(array.shape) for array in arrays}
    if len(shapes) > 1:
        raise InputError(
            f"Samples from {start} on have different shapes {sorted(shapes)[:3]}; bring them to one."
        )
    values = [to_numpy(label).item() if hasattr(label, "shape") else label for label in labels]
    return namespace(arrays[0]).stack(arrays), None if labels[0] is None else np.array(values)


def _join(pairs: Sequence[tuple[Any, NDArray[Any] | None]]) -> tuple[Any, NDArray[Any] | None]:
    """Return pairs of inputs and labels as one pair."""
    inputs = [pair[0] for pair in pairs]
    labels = [pair[1] for pair in pairs if pair[1] is not None]
    if labels and len(labels) != len(pairs):
        raise InputError("Some batches came with labels and some without.")
    if len(inputs) > 1:
        join = namespace(inputs[0]).concat if hasattr(inputs[0], "detach") else np.concatenate
        inputs = [join(inputs)]
    return inputs[0], np.concatenate(labels) if labels else None


def digest_inputs(batch: Batch) -> str:
    """Return a digest of a batch's inputs."""
    return digest_array(to_numpy(batch.inputs), whole=True)
