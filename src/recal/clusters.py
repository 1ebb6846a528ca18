"""Selecting rows, and rows that belong together: frames of one video, samples of one patient,
copies of one input.

Rows of one cluster are dependent. A split, a fold or a resample must therefore take a cluster as a
whole: if one frame of a video is in the fit and the next one in the test, the test looks better
than it is. Folds are drawn here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Indices, Labels, as_array, as_column, text_of
from recal.errors import InputError


class ByRow:
    """A frozen dataclass whose arrays have one entry per row; `record[rows]` selects rows of all.

    `whole` names the arrays that are not by row.
    """

    whole: ClassVar[tuple[str, ...]] = ()

    def __getitem__(self, rows: Any) -> Self:
        record = cast(Any, self)
        names = {field.name for field in fields(record)} - set(self.whole)
        columns = {name: getattr(self, name) for name in names}
        arrays = {name: one[rows] for name, one in columns.items() if isinstance(one, np.ndarray)}
        return cast(Self, replace(record, **arrays))


def some_rows(columns: Any, rows: Any) -> Any:
    """Return some rows of a column, or of columns by name; None stays None."""
    if isinstance(columns, Mapping):
        return {name: some_rows(values, rows) for name, values in columns.items()}
    return None if columns is None else columns[rows]


def check_clusters(clusters: ArrayLike, n_samples: int) -> Indices:
    """Return the number of each row's cluster, counted from 0; clusters may be named by words or
    numbers.

    Examples
    --------
    >>> from recal.clusters import check_clusters
    >>> check_clusters(["b", "a", "b"], 3)
    array([1, 0, 1])
    """
    return check_names(clusters, n_samples, "clusters")[1]


def count_of_clusters(count: int) -> str:
    """Return the words for a number of clusters."""
    return f"{count:,} cluster{'' if count == 1 else 's'}"


def check_names(values: ArrayLike, n_samples: int, name: str) -> tuple[tuple[str, ...], Indices]:
    """Return the distinct names of a column of words or whole numbers, as text, and the index of
    each row's name.
    """
    # An array of texts is as wide as its longest one, which may not fit into memory.
    has_text = isinstance(values, list | tuple) and any(isinstance(one, str) for one in values)
    array = as_column(values) if has_text else as_array(values, name)
    if array.shape != (n_samples,):
        rule = f"must have one value per sample, {n_samples}, got the shape {array.shape}"
        raise InputError(rule, argument=name)
    if array.dtype.kind == "f":
        if not (np.isfinite(array) & (array == np.rint(array))).all():
            raise InputError("must be words or whole numbers, none of them missing", argument=name)
        text_of(float(np.abs(array).max(initial=0.0)))  # refuses numbers that lost digits
        array = array.astype(np.int64)
    if array.dtype.kind not in "iub":
        texts = [text_of(value) for value in as_column(values).tolist()]
        # Rows of unknown clusters would become one cluster; an unknown group is a group.
        if name == "clusters" and "" in texts:
            raise InputError(
                f"must name the cluster of every row; row {texts.index('')} has none",
                argument=name,
                remedy="Give rows that belong to no other row a name of their own",
            )
        longest = max(map(len, texts), default=0)
        if longest > 1000:
            raise InputError(f"has a name of {longest:,} characters; at most 1,000", argument=name)
        array = np.array(texts, dtype=np.str_)
    distinct, index = np.unique(array, return_inverse=True)
    return tuple(str(value) for value in distinct.tolist()), index.astype(np.intp)


def row_names(values: ArrayLike | None, n_samples: int, name: str) -> NDArray[np.str_] | None:
    """Return a column of clusters or groups as text, (n_samples,); whole numbers are written
    without a fraction.

    Examples
    --------
    >>> from recal.clusters import row_names
    >>> row_names([3.0, 7.0, 3.0], 3, "groups").tolist()
    ['3', '7', '3']
    """
    if values is None:
        return None
    names, index = check_names(values, n_samples, name)
    return np.array(names, dtype=np.str_)[index]


def split_by_cluster(
    clusters: ArrayLike, shares: Sequence[float], rng: np.random.Generator
) -> list[Indices]:
    """Split rows at random into parts of about these shares of the rows; a cluster is never
    divided.

    Parameters
    ----------
    clusters : array-like of shape (n_samples,)
    shares : sequence of float
        The share of all rows that each part should get; they sum to 1.
    rng : numpy Generator

    Returns
    -------
    The rows of each part, sorted.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.clusters import split_by_cluster
    >>> videos = np.repeat(np.arange(10), 5)
    >>> first, second = split_by_cluster(videos, (0.6, 0.4), np.random.default_rng(0))
    >>> len(first), len(second), set(videos[first]) & set(videos[second])
    (30, 20, set())
    """
    index = check_clusters(clusters, len(np.asarray(clusters)))
    targets = np.asarray(shares, dtype=np.float64) * len(index)
    sizes = np.bincount(index)
    part, filled = np.empty(len(sizes), np.intp), np.zeros(len(targets))
    for cluster in _large_first(sizes, rng):
        part[cluster] = int(np.argmin((filled + 0.5 * sizes[cluster]) / targets))
        filled[part[cluster]] += sizes[cluster]
    return [np.flatnonzero(part[index] == number) for number in range(len(targets))]


def stratified_folds(
    labels: Labels,
    n_folds: int,
    rng: np.random.Generator,
    copies: Indices | None = None,
    clusters: Indices | None = None,
) -> Indices:
    """Return the fold of each sample, 0..n_folds-1. Sizes differ by at most one, overall and within
    each class.

    A class with fewer samples than folds is absent from some of them.

    Samples with the same number in `copies` share a fold, so that no sample is predicted by a fit
    to its own copy. Samples of one cluster share a fold, too; the folds are as even as the clusters
    allow, and their number is at most the number of clusters. If there are clusters, copies are
    ignored.

    Examples
    --------
    >>> from recal.clusters import stratified_folds
    >>> fold = stratified_folds(np.array([0, 0, 0, 0, 1, 2]), 2, np.random.default_rng(0))
    >>> np.bincount(fold), np.bincount(fold[:4])
    (array([3, 3]), array([2, 2]))
    """
    if clusters is not None:
        return cluster_folds(clusters, labels, min(n_folds, len(np.unique(clusters))), rng)
    if copies is not None:
        _, first = np.unique(copies, return_index=True)
        return stratified_folds(labels[first], n_folds, rng)[copies]
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(len(labels), dtype=np.intp)
    # Deal samples out like cards, class after class: neighbours in `by_class` never share a fold.
    fold[by_class] = np.arange(len(labels)) % n_folds
    return fold


def each_fold(folds: Indices) -> Iterator[tuple[NDArray[np.bool_], Indices]]:
    """Yield for each fold which rows are in the others, (n_samples,), and its own rows.

    Examples
    --------
    >>> from recal.clusters import each_fold
    >>> [left_out.tolist() for _, left_out in each_fold(np.array([0, 1, 0]))]
    [[0, 2], [1]]
    """
    for fold in range(int(folds.max()) + 1):
        yield folds != fold, np.flatnonzero(folds == fold)


def cluster_folds(
    clusters: ArrayLike, labels: Labels, n_folds: int, rng: np.random.Generator
) -> Indices:
    """Return the fold of each row, 0..n_folds-1; a cluster is never divided, and classes are spread
    evenly.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.clusters import cluster_folds
    >>> videos, labels = np.repeat([5, 6, 7, 8], 3), np.repeat([0, 0, 1, 1], 3)
    >>> fold = cluster_folds(videos, labels, 2, np.random.default_rng(0))
    >>> np.bincount(fold), len(set(fold[:3].tolist())), fold[0] != fold[3]
    (array([6, 6]), 1, np.True_)
    """
    index = check_clusters(clusters, len(labels))
    sizes = np.bincount(index)
    if len(sizes) < n_folds:
        raise InputError(
            f"There are {len(sizes)} clusters, too few for {n_folds} folds.", argument="clusters"
        )
    order = np.argsort(index, kind="stable")
    members = np.split(labels[order], np.cumsum(sizes)[:-1])
    fold, filled = np.empty(len(sizes), np.intp), np.zeros(n_folds)
    by_class = np.zeros((n_folds, int(labels.max()) + 1))
    for cluster in _large_first(sizes, rng):
        classes, counts = np.unique(members[cluster], return_counts=True)
        # Prefer a fold with few rows of these classes and few rows overall.
        crowded = by_class[:, classes] @ counts / sizes[cluster] + filled
        number = int(np.argmin(crowded))
        fold[cluster] = number
        filled[number] += sizes[cluster]
        by_class[number, classes] += counts
    return fold[index]


def cluster_sums(values: NDArray[np.float64], clusters: Indices | None) -> NDArray[np.float64]:
    """Return the sum of the values of each cluster; without clusters, the values."""
    if clusters is None:
        return values
    return np.asarray(np.bincount(clusters, values)[np.unique(clusters)])


def effective_count(values: NDArray[np.float64], clusters: Indices | None) -> float:
    """Return the number of independent rows that would estimate the mean of these values as well as
    the clustered rows.

    That is the number of rows divided by the design effect: the variance of the mean with clusters
    over the variance without them (Kish, 1965). The estimate is raised by two of its standard
    errors, and it never counts a cluster as less than one row of average size.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.clusters import effective_count
    >>> values = np.random.default_rng(0).normal(size=300)
    >>> effective_count(values, None)
    300.0
    >>> round(effective_count(np.repeat(values, 5), np.repeat(np.arange(300), 5)))
    300
    """
    if clusters is None:
        return float(len(values))
    sizes = np.bincount(clusters)
    sizes = sizes[sizes > 0]
    fewest = len(values) ** 2 / float(np.square(sizes).sum())  # if the rows of a cluster are copies
    residuals = values - values.mean()
    total = float(residuals @ residuals)
    if len(sizes) < 10 or not total > 0.0:  # the dependence of rows cannot be estimated
        return fewest
    effect = float(np.square(cluster_sums(residuals, clusters)).sum()) / total
    effect *= 1.0 + 2.0 * np.sqrt(2.0 / len(sizes))
    return float(np.clip(len(values) / effect, fewest, len(values)))


def _large_first(sizes: Indices, rng: np.random.Generator) -> Indices:
    """Return the clusters in random order, larger ones first, so that small ones can even out the
    sizes.
    """
    shuffled = rng.permutation(len(sizes))
    return shuffled[np.argsort(-sizes[shuffled], kind="stable")]
