"""torch datasets and loaders, and any other iterable of batches; torch itself is not imported here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest, digest_array
from recal.collecting.inputs.sources import Batch, IndexedSource, Source
from recal.collecting.models.base import _comes_from
from recal.errors import InputError


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
