"""Rows that belong together: frames of one video, samples of one patient, copies of one input.

Rows of one cluster are dependent. A split, a fold or a resample must therefore take a cluster as a
whole: if one frame of a video is in the fit and the next one in the test, the test looks better
than it is. Folds are drawn here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Labels
from recal.engine.same_rows import row_hashes
from recal.errors import InputError

Rows = NDArray[np.intp]

# Two rows are nearly equal if no number differs by more than this share of the spread of all
# numbers.
_NEAR = 0.01
# Rows are compared within cells of a few random projections, this many times as wide as `_NEAR`.
_CELL = 4.0
_PROJECTIONS = 4
# A row that makes up more than this share of all rows is an output that the model gives to many
# inputs, not a copy.
_MOST_COPIES = 0.05
# Copies are right or wrong together. Near-equal pairs count as copies if they disagree at most this
# share as often as independent pairs would, and if at least `_FEWEST_EXPECTED` disagreements were
# expected.
_DISAGREE = 0.25
_FEWEST_EXPECTED = 5.0
# With fewer clusters, the dependence of their rows cannot be estimated; each cluster then counts as
# one row.
_FEWEST_CLUSTERS = 10


def check_clusters(clusters: ArrayLike, n_samples: int, name: str = "clusters") -> Rows:
    """Return the number of each row's cluster, counted from 0; clusters may be named by words or
    numbers.

    Examples
    --------
    >>> from recal.engine.clusters import check_clusters
    >>> check_clusters(["b", "a", "b"], 3)
    array([1, 0, 1])
    """
    return check_names(clusters, n_samples, name)[1]


def count_of_clusters(count: int) -> str:
    """Return the words for a number of clusters."""
    return f"{count:,} cluster{'' if count == 1 else 's'}"


def check_names(values: ArrayLike, n_samples: int, name: str) -> tuple[tuple[str, ...], Rows]:
    """Return the distinct names of a column of words or whole numbers, as text, and the index of
    each row's name.
    """
    array = np.asarray(values)
    if array.shape != (n_samples,):
        raise InputError(
            f"must have one value per sample, {n_samples}, got the shape {array.shape}",
            argument=name,
        )
    if array.dtype.kind == "f" and not (np.isfinite(array) & (array == np.rint(array))).all():
        raise InputError("must be words or whole numbers, none of them missing", argument=name)
    if array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iub":
        array = np.array([str(value) for value in array.tolist()], dtype=np.str_)
    distinct, index = np.unique(array, return_inverse=True)
    return tuple(str(value) for value in distinct.tolist()), index.astype(np.intp)


def row_names(values: ArrayLike | None, n_samples: int, name: str) -> NDArray[np.str_] | None:
    """Return a column of clusters or groups as text, (n_samples,); whole numbers are written
    without a fraction.

    Examples
    --------
    >>> from recal.engine.clusters import row_names
    >>> row_names([3.0, 7.0, 3.0], 3, "groups").tolist()
    ['3', '7', '3']
    """
    if values is None:
        return None
    names, index = check_names(values, n_samples, name)
    return np.array(names, dtype=np.str_)[index]


def split_by_cluster(
    clusters: ArrayLike, shares: Sequence[float], rng: np.random.Generator
) -> list[Rows]:
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
    >>> from recal.engine.clusters import split_by_cluster
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


def copies_of(logits: Floats, labels: Labels) -> Rows | None:
    """Return a number for each sample, counted from 0, that its copies share; None if there are no
    copies.

    Equal rows are not copies if their labels differ or if one of them is very frequent: the model
    then gives the same output for many inputs.

    Examples
    --------
    >>> from recal.engine.clusters import copies_of
    >>> rows = np.arange(50.0).reshape(-1, 1)
    >>> numbers = copies_of(np.vstack([rows, rows[:2]]), np.zeros(52, dtype=int))
    >>> bool((numbers[-2:] == numbers[:2]).all()), copies_of(rows, np.zeros(50, dtype=int)) is None
    (True, True)
    """
    _, first, number, counts = np.unique(
        row_hashes(logits), return_index=True, return_inverse=True, return_counts=True
    )
    if len(first) == len(labels) or counts.max() > max(1.0, _MOST_COPIES * len(labels)):
        return None
    return number if (labels[first][number] == labels).all() else None


def stratified_folds(
    labels: Labels,
    n_folds: int,
    rng: np.random.Generator,
    copies: Rows | None = None,
    clusters: Rows | None = None,
) -> Rows:
    """Return the fold of each sample, 0..n_folds-1. Sizes differ by at most one, overall and within
    each class.

    A class with fewer samples than folds is absent from some of them.

    Samples with the same number in `copies` share a fold, so that no sample is predicted by a fit
    to its own copy. Samples of one cluster share a fold, too; the folds are as even as the clusters
    allow, and their number is at most the number of clusters. If there are clusters, copies are
    ignored.

    Examples
    --------
    >>> from recal.engine.clusters import stratified_folds
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


def cluster_folds(
    clusters: ArrayLike, labels: Labels, n_folds: int, rng: np.random.Generator
) -> Rows:
    """Return the fold of each row, 0..n_folds-1; a cluster is never divided, and classes are spread
    evenly.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.engine.clusters import cluster_folds
    >>> fold = cluster_folds(np.repeat([5, 6, 7, 8], 3), np.repeat([0, 0, 1, 1], 3), 2, np.random.default_rng(0))
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


def cluster_sums(values: NDArray[np.float64], clusters: Rows | None) -> NDArray[np.float64]:
    """Return the sum of the values of each cluster, or the values themselves if there are no
    clusters.
    """
    return (
        values
        if clusters is None
        else np.asarray(np.bincount(clusters, values)[np.unique(clusters)])
    )


def effective_count(values: NDArray[np.float64], clusters: Rows | None) -> float:
    """Return the number of independent rows that would estimate the mean of these values as well as
    the clustered rows.

    That is the number of rows divided by the design effect: the variance of the mean with clusters
    over the variance without them (Kish, 1965). The estimate is raised by two of its standard
    errors, and it never counts a cluster as less than one row of average size.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.engine.clusters import effective_count
    >>> values = np.random.default_rng(0).normal(size=300)
    >>> effective_count(values, None), round(effective_count(np.repeat(values, 5), np.repeat(np.arange(300), 5)))
    (300.0, 300)
    """
    if clusters is None:
        return float(len(values))
    sizes = np.bincount(clusters)
    sizes = sizes[sizes > 0]
    fewest = len(values) ** 2 / float(np.square(sizes).sum())  # if the rows of a cluster are copies
    residuals = values - values.mean()
    total = float(residuals @ residuals)
    if len(sizes) < _FEWEST_CLUSTERS or not total > 0.0:
        return fewest
    effect = float(np.square(cluster_sums(residuals, clusters)).sum()) / total
    effect *= 1.0 + 2.0 * np.sqrt(2.0 / len(sizes))
    return float(np.clip(len(values) / effect, fewest, len(values)))


def _large_first(sizes: Rows, rng: np.random.Generator) -> Rows:
    """Return the clusters in random order, larger ones first, so that small ones can even out the
    sizes.
    """
    shuffled = rng.permutation(len(sizes))
    return shuffled[np.argsort(-sizes[shuffled], kind="stable")]


def near_duplicates(values: ArrayLike, wrong: NDArray[np.bool_]) -> int:
    """Return the approximate number of rows that are near-copies of another row; 0 if chance
    explains the resemblance.

    Nearly equal rows alone prove nothing: with two classes and many samples, independent rows are
    close, too. But copies are right or wrong together, and independent rows are not.

    Parameters
    ----------
    values : array-like of shape (n_samples, n_columns)
        Logits, or log-probabilities.
    wrong : array of bool, shape (n_samples,)
        Which predictions are wrong.
    """
    rows = np.asarray(values, dtype=np.float64)
    n = len(rows)
    scale = float(rows.std())
    if n < 2 or not scale > 0:
        return 0
    rng = np.random.default_rng(0)
    places = rows @ rng.normal(size=(rows.shape[1], _PROJECTIONS)) / np.sqrt(rows.shape[1])
    spread = places.std(axis=0)
    cells = np.floor(
        places / np.where(spread > 0, _CELL * _NEAR * spread, 1.0) + rng.random(_PROJECTIONS)
    )
    order = np.lexsort((places[:, 0], *cells.T))
    first, second = order[:-1], order[1:]
    near = np.zeros(n - 1, np.bool_)
    same_cell = np.flatnonzero((cells[first] == cells[second]).all(axis=1))
    apart = np.abs(rows[first[same_cell]] - rows[second[same_cell]]).max(axis=1)
    near[same_cell] = apart <= _NEAR * scale
    _drop_frequent(near, n)
    involved = np.zeros(n, np.bool_)
    involved[first[near]] = involved[second[near]] = True
    rate = float(wrong[involved].mean()) if involved.any() else 0.0
    expected = 2 * rate * (1 - rate) * int(near.sum())
    disagree = int((wrong[first] != wrong[second])[near].sum())
    if expected < _FEWEST_EXPECTED or disagree > _DISAGREE * expected:
        return 0
    return int(involved.sum())


def _drop_frequent(near: NDArray[np.bool_], n: int) -> None:
    """Clear long chains of equal rows."""
    ends = np.flatnonzero(~near)
    starts = np.r_[0, ends + 1]
    for start, stop in zip(starts, np.r_[ends, len(near)]):
        if stop - start > _MOST_COPIES * n:
            near[start:stop] = False
