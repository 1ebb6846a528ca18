"""Whether rows were fitted on: a calibration keeps hashes of its rows, and what is judged on the same rows says so.

A guarantee, a set or a metric that is made on the rows of the fit is not what it says it is. A calibrator therefore
keeps a hash of each row of logits that it saw, a bounded number of them. Where it answers for such rows, the hashes of
the probabilities are remembered here, for as long as the process lives; `decide`, `prediction_sets` and `evaluate` look
their rows up. Files of probabilities hold the number of such rows.

Rows of two samples may be equal by chance where a model gives few different answers. Rows that appear once in both are
compared with rows that appear twice in one of the two: independent draws make about as many of either.
"""

from __future__ import annotations

import warnings
from collections import deque

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.engine.kernels import SMALL, hashing
from recal.engine.kernels.threads import over_rows
from recal.errors import SameRowsWarning

Hashes = NDArray[np.uint64]

# How many hashes a calibration keeps: the smallest ones, which are a random sample of the rows.
MOST_HASHES = 8192
# How many numbers of a row are hashed: what more classes add is time.
_COLUMNS = 64
# Fewer rows than this are not looked up: a server answers one by one.
LEAST_ROWS = 20
# The share of rows that matters to what is made of all of them.
_LEAST_SHARE = 0.01
_BLOCK = 1_000_000
# Hashes of probabilities given for rows of a fit, with how many rows each stands for; the oldest are forgotten.
_answered: deque[tuple[Hashes, float]] = deque(maxlen=32)


def row_hashes(rows: ArrayLike) -> Hashes:
    """Return a hash of each row, (n_samples,) uint64, of its first 64 numbers as float32.

    A sum of the numbers' bits times odd factors, modulo 2**64, and a last mix: rows that differ in one number never
    share it, others by a chance of less than 2**-40.

    Examples
    --------
    >>> from recal.engine.same_rows import row_hashes
    >>> first, second, again = row_hashes([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    >>> bool(first == again), bool(first == second)
    (True, False)
    """
    array = np.asarray(rows)
    width = min(array.shape[1], _COLUMNS)
    factors = _mixed(np.arange(1, width + 1, dtype=np.uint64)) | np.uint64(1)
    found = np.empty(len(array), np.uint64)
    if array.size >= SMALL and array.dtype in (np.float32, np.float64):
        over_rows(hashing.row_hashes, rows if isinstance(rows, np.ndarray) else array, factors, found)
        return found
    size = max(1, _BLOCK // width)
    for begin in range(0, len(array), size):
        with np.errstate(over="ignore"):  # beyond float32 all is one
            block = np.ascontiguousarray(array[begin : begin + size, :width], dtype=np.float32) + np.float32(0.0)
        found[begin : begin + size] = _mixed((block.view(np.uint32) * factors).sum(axis=1))
    return found


def _mixed(values: Hashes) -> Hashes:
    """Spread every bit over all 64 (the finish of splitmix64)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def kept_hashes(logits: ArrayLike) -> Hashes:
    """Return what a calibration keeps of the rows of its fit: their hashes, the smallest where there are many."""
    return np.sort(row_hashes(logits))[:MOST_HASHES]


def seen_among(logits: ArrayLike, kept: Hashes, n_fitted: int) -> tuple[NDArray[np.bool_], float]:
    """Say of each row whether it is one of those kept, and how many rows each of them stands for.

    All False where there are no more equal rows than chance makes.
    """
    n = len(np.asarray(logits))
    none = np.zeros(n, np.bool_), 1.0
    if n < LEAST_ROWS or not len(kept):
        return none
    hashes = row_hashes(logits)
    if not _any_in(hashes, kept):
        return none
    limit = np.uint64(np.iinfo(np.uint64).max) if len(kept) < MOST_HASHES else kept[-1]
    here, where, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    there, times = np.unique(kept, return_counts=True)
    single = (counts == 1) & np.isin(here, there[times == 1], assume_unique=True)
    by_chance = int(((counts == 2) & (here <= limit)).sum() + (times == 2).sum())
    if single.sum() <= by_chance + 3.0 * np.sqrt(by_chance):
        return none
    return single[where], max(1.0, n_fitted / len(kept)) if len(kept) == MOST_HASHES else 1.0


def _any_in(hashes: Hashes, kept: Hashes) -> bool:
    """Whether any hash is among those kept, which are sorted. Their first 16 bits rule out most at once."""
    possible = np.zeros(1 << 16, np.bool_)
    possible[kept >> np.uint64(48)] = True
    some = hashes[possible[hashes >> np.uint64(48)]]
    return bool((kept[np.minimum(np.searchsorted(kept, some), len(kept) - 1)] == some).any())


def remember(probs: ArrayLike, stands_for: float) -> None:
    """Remember probabilities that were given for rows of a fit."""
    _answered.append((np.unique(row_hashes(probs)), stands_for))


def fitted_rows(probs: ArrayLike) -> int:
    """Return about how many of these rows of probabilities were given for rows that the calibrator was fitted on."""
    array = np.asarray(probs)
    if not _answered or array.ndim != 2 or len(array) < LEAST_ROWS:
        return 0
    hashes = row_hashes(array)
    found = max(int(np.isin(hashes, known).sum()) * stands_for for known, stands_for in tuple(_answered))
    found = min(round(found), len(array))
    return found if found >= max(1.0, _LEAST_SHARE * len(array)) else 0


def warn_of_fitted(count: int, n_samples: int, what: str, remedy: str, stacklevel: int = 3) -> None:
    """Warn where rows were fitted on: `what` does not hold then, and `remedy` says what to do."""
    if count:
        about = "all" if count >= n_samples else f"about {count:,}"
        warnings.warn(
            f"The calibration was fitted on {about} of these {n_samples:,} samples, so {what}. {remedy}",
            SameRowsWarning,
            stacklevel=stacklevel + 1,
        )
