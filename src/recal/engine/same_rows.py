"""Whether rows were fitted on: a calibration keeps hashes of its rows, and what is judged on the same rows says so.

A guarantee, a set or a metric that is made on the rows of the fit is not what it says it is. A calibrator therefore
keeps a hash of each row of logits that it saw, a bounded number of them. Where it answers for such rows, the hashes of
the probabilities are remembered here, for as long as the process lives; `decide`, `prediction_sets` and `evaluate` look
their rows up. Files of probabilities hold the number of such rows.

Rows of two samples may be equal by chance where a model, or a calibrator that bins, gives few different answers. Rows
that appear once in both are compared with rows that appear twice in one of the two: independent draws of equal size
make about as many of either. Two sets that hold the same rows, each as often, are one.
"""

from __future__ import annotations

import warnings
from collections import deque
from threading import Lock
from typing import Any

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
# Two draws of so many kinds of rows hardly ever hold each kind equally often.
_ENOUGH_KINDS = 5
# Of each call that answered for rows of a fit: which fit, how many rows one of them stands for, the hashes of logits
# and probabilities (m, 2), and how many rows had them. The oldest are forgotten.
_answered: deque[tuple[int, float, Hashes, NDArray[np.intp]]] = deque()
_n_answered = 0  # rows in all of them
_MOST_ANSWERED = 16 * MOST_HASHES
# The fit of each hash of probabilities: looking rows up takes no longer after a thousand fits than after one.
_fit_of: dict[int, int] = {}
_holding = Lock()  # also held while reading: what is looked up must not be forgotten meanwhile
# So many rows are looked up first, by chance: of those that matter, 1 %, about forty are among them.
_LOOKED_UP = 4096


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


def seen_among(logits: ArrayLike, kept: Hashes, n_fitted: int) -> tuple[NDArray[np.bool_], int]:
    """Say of each row whether it is one of those kept, and of about how many rows the fit knew.

    All False, and 0, where there are no more equal rows than chance makes.
    """
    n = len(np.asarray(logits))
    if n < LEAST_ROWS or not len(kept):
        return np.zeros(n, np.bool_), 0
    hashes = row_hashes(logits)
    if not _any_in(hashes, kept):
        return np.zeros(n, np.bool_), 0
    return _overlap(hashes, *np.unique(kept, return_counts=True), n_fitted if len(kept) == MOST_HASHES else len(kept))


def _overlap(hashes: Hashes, there: Hashes, times: NDArray[np.intp], n_there: int) -> tuple[NDArray[np.bool_], int]:
    """Compare rows with distinct ones of another set, so many `times` each, which may be a sample of its `n_there`."""
    n, share_kept = len(hashes), times.sum() / n_there
    here, where, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    if share_kept == 1.0 and len(here) >= _ENOUGH_KINDS and _equal(here, there) and _equal(counts, times):
        return np.ones(n, np.bool_), n
    alone = counts == 1
    single = int((alone & np.isin(here, there[times == 1], assume_unique=True)).sum())
    # As many as pairs within the sets, where both are equally large; fewer where one is smaller than the other.
    doubles = share_kept * int((counts == 2).sum()) + int((times == 2).sum())
    by_chance = doubles * 2.0 * n * n_there / (n**2 + n_there**2)
    # Both numbers vary, so their difference has twice the variance of one.
    if single <= by_chance + 3.0 * np.sqrt(2.0 * max(by_chance, share_kept)):
        return np.zeros(n, np.bool_), 0
    count = min(round(single / (share_kept * int(alone.sum())) * n), n)
    return np.isin(here, there, assume_unique=True)[where], count


def _equal(some: NDArray[Any], others: NDArray[Any]) -> bool:
    return len(some) == len(others) and bool((some == others).all())


def _any_in(hashes: Hashes, kept: Hashes) -> bool:
    """Whether any hash is among those kept, which are sorted. Their first 16 bits rule out most at once."""
    possible = np.zeros(1 << 16, np.bool_)
    possible[kept >> np.uint64(48)] = True
    some = hashes[possible[hashes >> np.uint64(48)]]
    return bool((kept[np.minimum(np.searchsorted(kept, some), len(kept) - 1)] == some).any())


def remember(calibrator: object, kept: Hashes, n_fitted: int, logits: ArrayLike, probs: ArrayLike) -> None:
    """Remember the probabilities that a calibrator gave for rows of its fit, which has these hashes."""
    global _n_answered
    rows, counts = np.unique(np.column_stack([row_hashes(logits), row_hashes(probs)]), axis=0, return_counts=True)
    stands_for = max(1.0, n_fitted / len(kept)) if len(kept) == MOST_HASHES else 1.0
    fit = hash((id(calibrator), kept.tobytes()))
    with _holding:
        _answered.append((fit, stands_for, rows, counts))
        _fit_of.update(dict.fromkeys(rows[:, 1].tolist(), fit))
        _n_answered += len(rows)
        if _n_answered > _MOST_ANSWERED:
            _forget_the_older_half()


def _forget_the_older_half() -> None:
    global _fit_of, _n_answered
    while _n_answered > _MOST_ANSWERED // 2:
        _n_answered -= len(_answered.popleft()[2])
    _fit_of = {key: fit for fit, _, rows, _ in _answered for key in rows[:, 1].tolist()}


def fitted_rows(probs: ArrayLike) -> int:
    """Return about how many of these rows of probabilities were given for rows that the calibrator was fitted on."""
    array = np.asarray(probs)
    if not _fit_of or array.ndim != 2 or len(array) < LEAST_ROWS:
        return 0
    hashes, most = row_hashes(array), 0
    some = hashes if len(hashes) <= _LOOKED_UP else np.random.default_rng(0).choice(hashes, _LOOKED_UP)
    with _holding:
        found = [_given_for(fit) for fit in {_fit_of[key] for key in some.tolist() if key in _fit_of}]
    for there, times, stands_for in found:
        most = max(most, _overlap(hashes, there, times, round(stands_for * times.sum()))[1])
    return most if matters(most, len(array)) else 0


def _given_for(fit: int) -> tuple[Hashes, NDArray[np.intp], float]:
    """Return the distinct rows of probabilities that a fit's rows got, how many got each, and how many one stands for.

    Rows may have been asked for in many calls, and in some of them again.
    """
    calls = [one for one in _answered if one[0] == fit]
    rows, of = np.unique(np.concatenate([one[2] for one in calls]), axis=0, return_inverse=True)
    times = np.zeros(len(rows), np.intp)
    np.maximum.at(times, of.ravel(), np.concatenate([one[3] for one in calls]))
    there, of = np.unique(rows[:, 1], return_inverse=True)
    return there, np.bincount(of.ravel(), weights=times).astype(np.intp), calls[0][1]


def matters(count: int, n_samples: int) -> bool:
    """Whether so many rows of the fit change what is made of all samples: a blank image in both sets does not."""
    return count >= max(1.0, _LEAST_SHARE * n_samples)


def warn_of_fitted(count: int, n_samples: int, what: str, remedy: str, stacklevel: int = 3) -> None:
    """Warn where rows were fitted on: `what` does not hold then, and `remedy` says what to do."""
    if matters(count, n_samples):
        about = "all" if count >= n_samples else f"about {count:,}"
        warnings.warn(
            f"The calibration was fitted on {about} of these {n_samples:,} samples, so {what}. {remedy}",
            SameRowsWarning,
            stacklevel=stacklevel + 1,
        )
