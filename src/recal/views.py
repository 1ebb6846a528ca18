"""Views: logits of a set of inputs and of their transformed copies. Start reading here."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import (
    Floats,
    Labels,
    check_classes,
    check_labels,
    check_logits,
    check_matrix,
    is_array,
)
from recal.clusters import row_names
from recal.errors import InputError
from recal.transforms import Transform, as_transform
from recal.transforms.preprocessing import Preprocessing

# The selected rows of the stored arrays. A range takes no memory, and numpy slices by it without a
# copy.
Rows = range | NDArray[np.intp]
Names = NDArray[np.str_]


class Views:
    """Logits of the original inputs and of every transformed copy, with labels if there are any.

    Parameters
    ----------
    logits : array-like of shape (n_samples, n_classes), (n_samples,) or (n_samples, 1)
        The model's logits for the inputs as they are. Nothing is copied or changed. One number for
        each sample is the log-odds of the second of two classes and becomes the two columns (0,
        log-odds). If all logits are torch tensors or arrays of another library, `predict_proba`
        computes with that library and returns its arrays.
    transformed : mapping of transformation to array-like of the same shape
        The same model's logits for the transformed inputs. A spec such as ``"zoom:0.37"`` may stand
        for a transformation.
    labels : array-like of shape (n_samples,), optional
        The true classes: integers are column indices; anything else needs `classes`.
    classes : sequence of length n_classes, optional
        The names of the columns, if labels are not column indices.
    preprocessing : Preprocessing, optional
        How inputs were prepared for the model. `collect` sets it, files store it, and a fit keeps
        it.
    clusters : array-like of shape (n_samples,), optional
        Rows that belong together, such as frames of one video. `fit`, `compare` and the command
        line never split them.
    groups : array-like of shape (n_samples,), optional
        The subject, customer or camera of each row. Each group is calibrated and decided
        separately.
    ids : array-like of shape (n_samples,), optional
        What traces each row to its input, such as a file name. The default is its row number.

    Examples
    --------
    >>> from recal import Views
    >>> views = Views([[2.0, 0.5], [0.1, 0.3]], {"zoom:0.5": [[1.0, 0.5], [0.2, 0.3]]}, [0, 1])
    >>> views
    Views: 2 samples, 2 classes, 1 transformation, labelled
    >>> views[:1].transformed("zoom:0.5")
    array([[1. , 0.5]])
    """

    def __init__(
        self,
        logits: ArrayLike,
        transformed: Mapping[Transform | str, ArrayLike] | None = None,
        labels: ArrayLike | None = None,
        *,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        preprocessing: Preprocessing | None = None,
        clusters: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        ids: ArrayLike | None = None,
    ) -> None:
        self._logits: Any = check_logits(logits)
        n_samples, n_classes = self._logits.shape
        self._transformed: dict[Transform, Any] = {}
        if transformed is not None and not isinstance(transformed, Mapping):
            rule = "must map each transformation to its logits, as in {'zoom:0.5': array}"
            raise InputError(f"{rule}, got a {type(transformed).__name__}", argument="transformed")
        for key, values in (transformed or {}).items():
            transform = as_transform(key)
            array = check_logits(values, f"transformed[{str(transform)!r}]")
            if array.shape != (n_samples, n_classes):
                raise InputError(
                    f"Logits of {str(transform)!r} must have the originals' shape "
                    f"{(n_samples, n_classes)}, got {array.shape}."
                )
            if transform in self._transformed:
                raise InputError(f"The transformation {str(transform)!r} is given twice.")
            self._transformed[transform] = array
        self._set_columns(labels, classes, preprocessing, clusters, groups, ids)
        given: dict[Transform | None, Any] = {None: logits}
        given |= zip(self._transformed, (transformed or {}).values())
        self._tensors = given if all(map(is_array, given.values())) else None
        self._checked: set[Transform | None] = {None, *self._transformed}

    @classmethod
    def unread(cls, logits: Any, transformed: dict[Transform, Any], **columns: Any) -> Views:
        """Wrap arrays that may be on disk; each is read and checked when it is first used.

        An array on disk has a `shape` and returns rows when it is indexed by a slice or an array of
        indices. The other columns are those of `Views`.
        """
        views = cls.__new__(cls)
        views._logits, views._transformed = logits, transformed
        views._set_columns(**columns)
        views._checked, views._tensors = set(), None
        return views

    def _set_columns(
        self,
        labels: ArrayLike | None = None,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        preprocessing: Preprocessing | None = None,
        clusters: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        ids: ArrayLike | None = None,
    ) -> None:
        n_samples, n_classes = self._logits.shape
        self.classes = None if classes is None else check_classes(classes, n_classes)
        self._labels = (
            None if labels is None else check_labels(labels, n_samples, n_classes, self.classes)
        )
        self.preprocessing = preprocessing
        self._clusters = row_names(clusters, n_samples, "clusters")
        self._groups = row_names(groups, n_samples, "groups")
        self._ids = row_names(ids, n_samples, "ids")
        self._rows: Rows = range(n_samples)

    def assign(
        self, *, clusters: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Views:
        """Return the same views with these clusters or groups, (n_samples,); None keeps the current
        ones.

        Examples
        --------
        >>> from recal import Views
        >>> Views([[2.0, 0.5], [0.1, 0.3]]).assign(clusters=["film 1", "film 1"]).clusters.tolist()
        ['film 1', 'film 1']
        """
        views = copy.copy(self)
        for name, values in (("clusters", clusters), ("groups", groups)):
            names = row_names(values, self.n_samples, name)
            if names is not None:
                stored = np.zeros(self._logits.shape[0], names.dtype)
                stored[_index(self._rows)] = names
                setattr(views, f"_{name}", stored)
        return views

    @property
    def logits(self) -> Floats:
        """Logits of the originals, (n_samples, n_classes)."""
        return self._read(None)

    @property
    def tensors(self) -> dict[Transform | None, Any] | None:
        """The logits by transformation, None for the originals, as arrays of a library other than
        numpy.

        None if they were not given as such arrays.
        """
        if self._tensors is None or self._is_whole:
            return self._tensors
        from array_api_compat import array_namespace, device

        first = self._tensors[None]
        xp = array_namespace(first)
        rows = xp.asarray(self._numbers.tolist(), device=device(first))
        return {key: xp.take(array, rows, axis=0) for key, array in self._tensors.items()}

    def transformed(self, transform: Transform | str) -> Floats:
        """Return the logits of the transformed inputs, (n_samples, n_classes)."""
        key = as_transform(transform)
        if key not in self._transformed:
            specs = ", ".join(str(t) for t in self.transforms) or "none"
            raise InputError(f"These views hold no {str(key)!r}; they hold: {specs}.")
        return self._read(key)

    def rows_of(
        self, transform: Transform, rows: NDArray[np.intp]
    ) -> tuple[Floats, NDArray[np.intp]]:
        """Return an array that contains these rows of a view, and their indices in it.

        An array in memory is not copied. From disk, no other rows are read.
        """
        if not self.in_memory:
            return self[rows].transformed(transform), np.arange(len(rows))
        kept = self._rows
        where = kept.start + kept.step * rows if isinstance(kept, range) else kept[rows]
        return self._transformed[transform], where

    @property
    def in_memory(self) -> bool:
        """Whether logits are in memory; otherwise they are read from a file when used."""
        return isinstance(self._logits, np.ndarray)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transformations whose logits these views have."""
        return tuple(self._transformed)

    @property
    def labels(self) -> Labels | None:
        """The true classes as column indices, (n_samples,), or None."""
        return self._picked(self._labels)

    @property
    def clusters(self) -> Names | None:
        """The name of each row's cluster, (n_samples,), or None."""
        return self._picked(self._clusters)

    @property
    def groups(self) -> Names | None:
        """The name of each row's group, (n_samples,), or None."""
        return self._picked(self._groups)

    @property
    def ids(self) -> Names:
        """What traces each row to its input, (n_samples,), such as a file name or the row number
        before any selection.
        """
        known = self.known_ids
        return np.arange(self.n_samples).astype(str) if known is None else known

    @property
    def known_ids(self) -> Names | None:
        """The ids, or None if they are the numbers of these rows."""
        if self._ids is None and not self._is_whole:
            return self._numbers.astype(str)
        return self._picked(self._ids)

    def _picked(self, column: NDArray[Any] | None) -> NDArray[Any] | None:
        return None if column is None else column[_index(self._rows)]

    @property
    def _numbers(self) -> NDArray[np.intp]:
        """The numbers of the selected rows in the stored arrays."""
        return np.arange(self._logits.shape[0])[_index(self._rows)]

    @property
    def _is_whole(self) -> bool:
        return isinstance(self._rows, range) and self._rows == range(self._logits.shape[0])

    @property
    def n_samples(self) -> int:
        return len(self._rows)

    @property
    def n_classes(self) -> int:
        return int(self._logits.shape[1])

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, rows: Any) -> Views:
        """Select rows by number, slice, mask or indices, as numpy does.

        Nothing is read or copied until logits are used; a slice of arrays in memory is never
        copied.
        """
        picked = copy.copy(self)
        picked._rows = self._select(rows)
        if picked.n_samples == 0:
            raise InputError("The selection holds no rows; at least one sample is needed.")
        return picked

    def _select(self, rows: Any) -> Rows:
        if isinstance(rows, slice):
            return self._rows[rows]
        index = np.asarray(rows)
        if index.size == 0 and index.ndim == 1:
            return range(0)
        if index.ndim > 1 or index.dtype.kind not in "iub" or rows is True or rows is False:
            raise InputError(
                f"Rows are a number, a slice, a mask or a list of numbers, got {rows!r}."
            )
        try:
            return np.atleast_1d(self._numbers[index])
        except IndexError as error:
            raise InputError(f"Rows must select from {self.n_samples} samples: {error}.") from None

    def _read(self, key: Transform | None) -> Floats:
        stored = self._logits if key is None else self._transformed[key]
        whole = self._is_whole
        array: Floats = stored
        if not (whole and isinstance(stored, np.ndarray)):
            array = stored[_index(self._rows)]
        if key not in self._checked:
            # Some of the rows may look like probabilities by chance, but not all of them.
            check = check_logits if whole else check_matrix
            array = check(array, "logits" if key is None else f"transformed[{str(key)!r}]")
            if whole:
                self._checked.add(key)
        return array

    def __repr__(self) -> str:
        count = len(self._transformed)
        labelled = "labelled" if self._labels is not None else "without labels"
        parts = [(self.clusters, "cluster"), (self.groups, "group")]
        sizes = [(len(np.unique(names)), what) for names, what in parts if names is not None]
        return (
            f"Views: {self.n_samples:,} samples, {self.n_classes:,} classes, "
            f"{count} transformation{'' if count == 1 else 's'}, {labelled}"
            + "".join(f", {size:,} {what}{'' if size == 1 else 's'}" for size, what in sizes)
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write to one ``.npz`` file, or to a zarr folder if the name ends in ``.zarr``."""
        from recal.files.paths import local_path  # files import views, not the other way round
        from recal.files.views import write_views

        return write_views(self, local_path(path))


def _index(rows: Rows) -> slice | NDArray[np.intp]:
    """Return rows as an index for numpy."""
    if not isinstance(rows, range):
        return rows
    # A range that goes down to row 0 stops at -1, which a slice would read as the last row.
    return slice(rows.start, None if rows.stop < 0 else rows.stop, rows.step)
