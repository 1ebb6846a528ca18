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

from recal.checks import as_objects, one_each
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
    """Inputs that can be read in any order, so that several workers can share them.

    Attributes
    ----------
    n_samples : int
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

    n_samples: int
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
    def read(self, rows: Sequence[int]) -> Any:
        """Return the inputs of these rows as one batch."""

    def take(self, rows: Sequence[int]) -> tuple[Any, NDArray[Any] | None]:
        """Return the inputs of these rows as one batch, and their labels if they are known."""
        return self.read(rows), None if self.labels is None else self.labels[list(rows)]

    def batch(self, index: int, size: int) -> Batch:
        start = index * size
        return Batch(index, start, *self.take(range(start, min(start + size, self.n_samples))))

    def batches(self, size: int, done: frozenset[int] = frozenset()) -> Iterator[Batch]:
        """Yield batches of `size` samples, without those in `done`; the last may be smaller."""
        for index in range(-(-self.n_samples // size)):
            if index not in done:
                yield self.batch(index, size)

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


class Subset(Source):
    """Some rows of a source."""

    def __init__(self, source: Source, rows: NDArray[np.intp]) -> None:
        self.source, self.rows, self.n_samples = source, rows, len(rows)
        for name in ("classes", "skipped", "reading", "kind"):
            setattr(self, name, getattr(source, name))
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


class ArraySource(Source):
    """Inputs in one array or tensor, in memory or mapped from a file."""

    def __init__(self, values: Any, labels: ArrayLike | None = None) -> None:
        self.values = values if hasattr(values, "detach") else _as_samples(values)
        shape = tuple(self.values.shape)
        if not shape or not shape[0]:
            raise InputError(f"Inputs must hold at least one sample, got the shape {shape}.")
        self.n_samples = int(shape[0])
        if labels is not None:
            self.labels = one_each(np.asarray(labels), self.n_samples)

    def fingerprint(self) -> str:
        return digest_array(to_numpy(self.values))

    def sample(self) -> tuple[tuple[int, ...], str] | None:
        return sample_form(self.values)

    def read(self, rows: Sequence[int]) -> Any:
        place = slice(rows.start, rows.stop) if isinstance(rows, range) else list(rows)
        batch = self.values[place]
        return np.asarray(batch) if isinstance(batch, np.memmap) else batch


def sample_form(batch: Any) -> tuple[tuple[int, ...], str] | None:
    """Return the shape and dtype of the inputs of a batch; None if they are not numbers."""
    dtype = str(batch.dtype).removeprefix("torch.")
    is_numeric = hasattr(batch, "detach") or batch.dtype.kind in "fiub"
    return (tuple(int(size) for size in batch.shape[1:]), dtype) if is_numeric else None


def _as_samples(values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, list) and values and isinstance(values[0], str):
        # A fixed-width dtype would pad every text to the longest.
        return np.array(values, dtype=object)
    try:
        return np.asarray(values)
    except ValueError:  # samples of different lengths
        return as_objects(values)


def as_source(inputs: Any, **options: Any) -> Source:
    """Return the source for `inputs`; `options` go to the reader of files and folders."""
    if unknown := sorted(set(options) - set(FILE_OPTIONS)):
        names = ", ".join(FILE_OPTIONS)
        raise InputError(f"There is no option `{unknown[0]}`; those of files and folders: {names}.")
    if isinstance(inputs, str | os.PathLike):
        from recal.collecting.files import open_path

        return open_path(Path(inputs), **options)
    if given := [name for name, value in options.items() if value is not None]:
        raise InputError(f"{', '.join(given)}: only inputs read from a file or folder take this.")
    if isinstance(inputs, Source):
        return inputs
    if isinstance(inputs, tuple):
        remedy = "Pass the inputs alone, and their labels as `labels`"
        raise InputError(f"Inputs came as a tuple of {len(inputs)}", remedy=remedy)
    if type(inputs).__name__ in ("DataFrame", "Table"):
        from recal.collecting.tables import open_frame

        return open_frame(inputs)
    if comes_from(inputs, "torch.utils.data.dataloader"):
        raise InputError("Inputs are read in any order", remedy="Pass the dataset: loader.dataset")
    if hasattr(inputs, "__array__") or isinstance(inputs, list):
        return ArraySource(inputs)
    if hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__"):
        return DatasetSource(inputs)
    raise InputError(
        "Inputs are read in any order: pass an array, a frame, a torch dataset with __getitem__ "
        f"and __len__, or the path of a file or folder; got {type(inputs).__name__}."
    )


class DatasetSource(Source):
    """A map-style dataset whose items are inputs, or pairs of input and label.

    Items are read when they are needed.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.n_samples = dataset, len(dataset)
        if self.n_samples == 0:
            raise InputError(f"{type(dataset).__name__} is empty; at least one sample is needed.")

    def fingerprint(self) -> str:
        rows = sorted({0, self.n_samples // 2, self.n_samples - 1})
        items = [digest_array(to_numpy(_split_item(self.dataset[row])[0])) for row in rows]
        return digest([type(self.dataset).__qualname__, self.n_samples, items])

    def read(self, rows: Sequence[int]) -> Any:
        return self.take(rows)[0]

    def take(self, rows: Sequence[int]) -> tuple[Any, NDArray[Any] | None]:
        inputs, labels = zip(*[_split_item(self.dataset[row]) for row in rows])
        arrays = [item if hasattr(item, "detach") else np.asarray(item) for item in inputs]
        shapes = {tuple(array.shape) for array in arrays}
        if len(shapes) > 1:
            raise InputError(
                f"Samples from {rows[0]} on have different shapes {sorted(shapes)[:3]}",
                remedy="Bring them to one",
            )
        values = [to_numpy(label).item() if hasattr(label, "shape") else label for label in labels]
        stacked = namespace(arrays[0]).stack(arrays)
        return stacked, None if labels[0] is None else np.array(values)


def _split_item(item: Any) -> tuple[Any, Any]:
    """Return an item as (input, label or None)."""
    if isinstance(item, tuple | list) and len(item) in (1, 2):
        return item[0], item[1] if len(item) == 2 else None
    if isinstance(item, tuple | list | dict):
        rule = "Items must be an input or a pair (input, label)"
        raise InputError(f"{rule}; got a {type(item).__name__} of {len(item)}.")
    return item, None


def digest_inputs(batch: Batch) -> str:
    """Return a digest of a batch's inputs."""
    return digest_array(to_numpy(batch.inputs), whole=True)
