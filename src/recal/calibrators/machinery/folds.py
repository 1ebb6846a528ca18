"""Stratified folds that never fail: a class with fewer samples than folds is simply absent from some of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.checks import Labels


def stratified_folds(labels: Labels, n_folds: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the fold of each sample, 0..n_folds-1. Sizes differ by at most one, in all and within each class.

    Examples
    --------
    >>> import numpy as np
    >>> fold = stratified_folds(np.array([0, 0, 0, 0, 1, 2]), 2, np.random.default_rng(0))
    >>> np.bincount(fold), np.bincount(fold[:4])
    (array([3, 3]), array([2, 2]))
    """
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(len(labels), dtype=np.intp)
    # Dealing out like cards, class after class: neighbours in `by_class` never share a fold.
    fold[by_class] = np.arange(len(labels)) % n_folds
    return fold
