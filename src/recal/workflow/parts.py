"""The parts of labelled rows: to fit, to decide and to check on; and how later rows join them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.clusters import count_of_clusters, split_by_cluster
from recal.errors import InputError

# Fitting needs the most inputs, the guarantee needs hundreds, and the final check needs the fewest.
SHARES = (0.5, 0.3, 0.2)
Parts = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]


def split(
    n_samples: int,
    random_state: int,
    clusters: NDArray[Any] | None = None,
    cross_fit: bool = False,
    *,
    fewest: int = 20,
) -> Parts:
    """Return the rows to fit, to decide and to check on: random parts of 50, 30 and 20 %; clusters
    stay whole.

    With `cross_fit`, the first two results are the same rows: those of both parts. With fewer than
    `fewest` rows in a part, its figures would be meaningless.
    """
    needed = int(np.ceil(fewest / min(SHARES)))
    if n_samples < needed:
        raise InputError(
            f"At least {needed} labelled inputs are needed, to fit, to decide and to check on; got "
            f"{n_samples}. A few thousand are better."
        )
    rng = np.random.default_rng([random_state, 2])
    if clusters is None:
        cuts = np.round(np.cumsum(SHARES[:2]) * n_samples).astype(int)
        first, second, third = (
            np.sort(rows) for rows in np.split(rng.permutation(n_samples), cuts)
        )
    else:
        first, second, third = split_by_cluster(clusters, SHARES, rng)
        if not (len(first) and len(second) and len(third)):
            raise InputError(
                f"There are {len(np.unique(clusters))} clusters, too few for three parts that "
                "share none",
                argument="clusters",
            )
    if cross_fit:
        first = second = np.sort(np.concatenate([first, second]))
    return first, second, third


def extend(
    sizes: Sequence[int],
    n_new: int,
    random_state: int,
    clusters: NDArray[Any] | None = None,
    cross_fit: bool = False,
) -> Parts:
    """Return the parts of old rows and new ones behind them.

    Old rows, which are in the order fit, decide, check, keep their part, so that no row that was
    fitted on ever decides or checks. A new row of a known cluster joins its part; others are split
    at random.

    Examples
    --------
    >>> [len(rows) for rows in extend((50, 30, 20), 10, random_state=0)]
    [55, 33, 22]
    """
    old = np.repeat([0, 2] if cross_fit else [0, 1, 2], list(sizes[1:] if cross_fit else sizes))
    rng = np.random.default_rng([random_state, 3, len(old)])
    names = np.arange(len(old) + n_new) if clusters is None else np.asarray(clusters)
    part_of = dict(zip(names[: len(old)].tolist(), old.tolist()))
    unknown = [name for name in dict.fromkeys(names[len(old) :].tolist()) if name not in part_of]
    cuts = np.round(np.cumsum(SHARES[:2]) * len(unknown)).astype(int)
    drawn = np.searchsorted(cuts, np.arange(len(unknown)), side="right")
    if cross_fit:
        drawn[drawn == 1] = 0
    part_of |= dict(zip(unknown, rng.permutation(drawn).tolist()))
    part = np.concatenate([old, [part_of[name] for name in names[len(old) :].tolist()]])
    first, second, third = (np.flatnonzero(part == number) for number in range(3))
    return (first, first, third) if cross_fit else (first, second, third)


def split_words(parts: Parts, clusters: NDArray[Any] | None, cross_fit: bool) -> str:
    """Return a sentence about the sizes of the parts."""
    fit, decide, check = map(len, parts)
    by = "" if clusters is None else f" in {count_of_clusters(len(np.unique(clusters)))}"
    words = f"{fit:,} to fit, {decide:,} to decide"
    if cross_fit:
        words, decide = f"{fit:,} to fit and to decide", 0
    return f"Split {fit + decide + check:,} labelled inputs{by}: {words}, {check:,} to check."
