"""Stratified folds. A class with fewer samples than folds is absent from some of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.engine.clusters import cluster_folds
from recal.engine.same_rows import row_hashes

# A row that occurs more often than this is an answer that the model gives to many inputs, not a copy.
_MOST_COPIES = 0.05


def copies_of(logits: Floats, labels: Labels) -> NDArray[np.intp] | None:
    """Return a number for each sample that its copies share, counted from 0; None if there are no copies.

    Equal rows are not copies if their labels differ or if one of them is very frequent: the model then gives the same
    answer to many inputs.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.arange(50.0).reshape(-1, 1)
    >>> numbers = copies_of(np.vstack([rows, rows[:2]]), np.zeros(52, dtype=int))
    >>> bool((numbers[-2:] == numbers[:2]).all()), copies_of(rows, np.zeros(50, dtype=int)) is None
    (True, True)
    """
    _, first, number, counts = np.unique(row_hashes(logits), return_index=True, return_inverse=True, return_counts=True)
    if len(first) == len(labels) or counts.max() > max(1.0, _MOST_COPIES * len(labels)):
        return None
    return number if (labels[first][number] == labels).all() else None


def stratified_folds(
    labels: Labels,
    n_folds: int,
    rng: np.random.Generator,
    copies: NDArray[np.intp] | None = None,
    clusters: NDArray[np.intp] | None = None,
) -> NDArray[np.intp]:
    """Return the fold of each sample, 0..n_folds-1. Sizes differ by at most one, in all and within each class.

    Samples with the same number in `copies` share a fold, so that no sample is predicted by a fit to its own copy. So
    do samples of one cluster; their folds are as even as the clusters allow, and there are at most as many folds as
    clusters. Copies are not looked at if there are clusters.

    Examples
    --------
    >>> import numpy as np
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
