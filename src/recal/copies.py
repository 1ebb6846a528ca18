"""Find rows that are copies of others: rows of the fit, and equal or nearly equal rows of one set.

A guarantee, a prediction set or a metric that is computed on the rows of the fit is too optimistic.
A calibrator therefore keeps a bounded number of hashes of its rows' logits and probabilities.
Nothing is stored outside the calibrator, so only functions that receive the calibrator can check.
Files of probabilities written by `recal apply` hold the number of fitted rows.

Rows of two samples can be equal by chance if a model or a binning calibrator gives few different
outputs. Therefore the number of rows that occur once in both sets is compared with the number that
occur twice in one of them: in independent draws of equal size, the two numbers are about equal. Two
sets that contain the same rows equally often are the same set.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Labels
from recal.engine import row_blocks
from recal.errors import DependentRowsWarning, InputError, SameRowsWarning

Hashes = NDArray[np.uint64]

# How many hashes of logits a calibrator keeps: the smallest ones, which are a random sample of the
# rows.
MOST_HASHES = 8192
# How many hashes of probabilities it keeps, of the rows with the smallest hashes.
MOST_PROB_HASHES = 1024
# The step from one state of SplitMix64 to the next.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# A row that makes up more than this share of all rows is an output that the model gives to many
# inputs, not a copy.
_MOST_COPIES = 0.05


def row_hashes(rows: ArrayLike) -> Hashes:
    """Return a hash of each row, (n_samples,) uint64, of its first 64 numbers as float32.

    The hash is the sum of the numbers' bits times odd factors, modulo 2**64, mixed once more. Rows
    that differ in one number never share a hash; other rows share one with a probability below
    2**-40.

    Examples
    --------
    >>> from recal.copies import row_hashes
    >>> first, second, again = row_hashes([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    >>> bool(first == again), bool(first == second)
    (True, False)
    """
    array = np.asarray(rows)
    width = min(array.shape[1], 64)
    factors = mix(np.arange(1, width + 1, dtype=np.uint64)) | np.uint64(1)
    hashes = np.empty(len(array), np.uint64)
    for part in row_blocks(len(array), width):
        with np.errstate(over="ignore"):  # values beyond float32 become inf
            block = np.ascontiguousarray(array[part, :width], dtype=np.float32)
            block = block + np.float32(0.0)  # -0 becomes 0
        hashes[part] = mix(np.einsum("ij,j->i", block.view(np.uint32), factors))
    return hashes


def mix(values: Hashes) -> Hashes:
    """Spread every bit over all 64: one number of SplitMix64, whose state is `values`."""
    mixed = values + GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def kept_hashes(logits: ArrayLike) -> Hashes:
    """Return the hashes that a calibrator keeps of the rows of its fit: the smallest ones if there
    are many.
    """
    return np.sort(row_hashes(logits))[:MOST_HASHES]


def sampled_rows(hashes: Hashes) -> NDArray[np.intp]:
    """Return the rows of a fit whose probabilities are hashed: those with the smallest hashes of
    logits.
    """
    if len(hashes) <= MOST_PROB_HASHES:
        return np.arange(len(hashes))
    return np.sort(np.argpartition(hashes, MOST_PROB_HASHES)[:MOST_PROB_HASHES])


def count_fitted(rows: ArrayLike, kept: Hashes, n_fitted: int) -> int:
    """Return the approximate number of rows that were in a fit; 0 if chance explains all equal
    rows.

    `kept` are all hashes of the fit, or a random sample of them; `n_fitted` is the number of rows
    of the fit.
    """
    n = len(np.asarray(rows))
    if n < 20 or not len(kept):
        return 0
    n_there = len(kept)
    if n_there in (MOST_HASHES, MOST_PROB_HASHES):
        n_there = max(n_fitted, n_there)
    share_kept = len(kept) / n_there
    here, counts = np.unique(row_hashes(rows), return_counts=True)
    there, times = np.unique(kept, return_counts=True)
    # Independent draws from five or more distinct rows almost never hold each equally often.
    is_whole = share_kept == 1.0 and len(here) >= 5
    if is_whole and np.array_equal(here, there) and np.array_equal(counts, times):
        return n
    alone = counts == 1
    single = int((alone & np.isin(here, there[times == 1], assume_unique=True)).sum())
    # By chance, there are as many equal rows between the sets as pairs within them; fewer if one
    # set is smaller.
    doubles = share_kept * int((counts == 2).sum()) + int((times == 2).sum())
    by_chance = doubles * 2.0 * n * n_there / (n**2 + n_there**2)
    # Both numbers vary, so their difference has twice the variance of one.
    if single <= by_chance + 3.0 * np.sqrt(2.0 * max(by_chance, share_kept)):
        return 0
    return min(round(single / (share_kept * int(alone.sum())) * n), n)


def matters(count: int, n_samples: int) -> bool:
    """Whether this many rows of the fit affect the result; a blank image in both sets does not."""
    return count >= max(1.0, 0.01 * n_samples)


def rows_of_fit(calibrator: Any, probs: Floats, what: str, remedy: str) -> int:
    """Return about how many of these rows a calibrator was fitted on, and warn of them; 0 if there
    is no calibrator.
    """
    if calibrator is None:
        return 0
    if not hasattr(calibrator, "fitted_rows"):
        rule = f"must be a fitted calibrator, got {type(calibrator).__name__}"
        leave_out = "Others keep no record of their rows: leave it out"
        raise InputError(rule, argument="calibrator", remedy=leave_out)
    count = int(calibrator.fitted_rows(probs))
    warn_of_fitted(count, len(probs), what, remedy, stacklevel=3)
    return count if matters(count, len(probs)) else 0


def warn_of_fitted(count: int, n_samples: int, what: str, remedy: str, stacklevel: int = 2) -> None:
    """Warn if rows were used in the fit: `what` says what does not hold, `remedy` what to do."""
    if matters(count, n_samples):
        about = "all" if count >= n_samples else f"about {count:,}"
        warnings.warn(
            f"The calibration was fitted on {about} of these {n_samples:,} samples, so {what}. "
            f"{remedy}",
            SameRowsWarning,
            stacklevel=stacklevel + 1,
        )


def refuse_known(new: ArrayLike, old: ArrayLike, holder: object) -> None:
    """Refuse rows that `holder` has already: they would count twice as evidence."""
    n_new = len(np.asarray(new))
    count = count_fitted(new, row_hashes(old), len(np.asarray(old)))
    if matters(count, n_new):
        about = "all" if count >= n_new else f"about {count:,}"
        raise InputError(
            f"{holder} already holds {about} of these {n_new:,} rows, which would count twice",
            remedy="Leave them out of the new file, or put all rows into one file and calibrate "
            "again: recal calibrate FILE --out FOLDER",
        )


def copies_of(logits: Floats, labels: Labels) -> NDArray[np.intp] | None:
    """Return a number for each sample, counted from 0, that its copies share; None if there are no
    copies.

    Equal rows are not copies if their labels differ or if one of them is very frequent: the model
    then gives the same output for many inputs.

    Examples
    --------
    >>> from recal.copies import copies_of
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


def warn_of_copies(values: ArrayLike, wrong: NDArray[np.bool_], stacklevel: int = 2) -> int:
    """Warn if rows are near-copies of each other, and return how many `near_duplicates` counts."""
    count = near_duplicates(values, wrong)
    if count:
        warnings.warn(
            f"{count:,} of {len(wrong):,} rows are near-copies of another row, such as frames of "
            "one video. They are not independent and count as one. Pass clusters=, one name for "
            "all rows that belong together (--cluster COLUMN).",
            DependentRowsWarning,
            stacklevel=stacklevel + 1,
        )
    return count


def near_duplicates(values: ArrayLike, wrong: NDArray[np.bool_]) -> int:
    """Return the approximate number of rows that are near-copies of another row; 0 if chance
    explains the resemblance.

    Nearly equal rows alone prove nothing: with two classes and many samples, independent rows are
    close, too. But copies are right or wrong together, and independent rows are not.

    Parameters
    ----------
    values : array-like of shape (n_samples, n_columns) or (n_samples,)
        Logits, log-probabilities, signals, or one confidence per row.
    wrong : array of bool, shape (n_samples,)
        Which predictions are wrong.
    """
    rows = np.asarray(values, dtype=np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    n = len(rows)
    scale = float(rows.std())
    if n < 2 or not scale > 0:
        return 0
    # Rows are compared within cells of four random projections, four times as wide as the largest
    # difference between nearly equal rows.
    near = 0.01
    rng = np.random.default_rng(0)
    places = rows @ rng.normal(size=(rows.shape[1], 4)) / np.sqrt(rows.shape[1])
    spread = places.std(axis=0)
    cells = np.floor(places / np.where(spread > 0, 4.0 * near * spread, 1.0) + rng.random(4))
    order = np.lexsort((places[:, 0], *cells.T))
    first, second = order[:-1], order[1:]
    same_cell = np.flatnonzero((cells[first] == cells[second]).all(axis=1))
    apart = np.abs(rows[first[same_cell]] - rows[second[same_cell]]).max(axis=1)
    # Exact copies come first: in one column, independent rows are near each other, too.
    return max(
        _right_together(same_cell[apart <= reach], first, second, wrong)
        for reach in (0.0, near * scale)
    )


def _right_together(
    pairs: NDArray[np.intp],
    first: NDArray[np.intp],
    second: NDArray[np.intp],
    wrong: NDArray[np.bool_],
) -> int:
    """Return how many rows are in these pairs of neighbours; 0 if they are not right or wrong
    together.
    """
    n = len(wrong)
    near = np.zeros(n - 1, np.bool_)
    near[pairs] = True
    _drop_frequent(near, n)
    involved = np.zeros(n, np.bool_)
    involved[first[near]] = involved[second[near]] = True
    rate = float(wrong[involved].mean()) if involved.any() else 0.0
    expected = 2 * rate * (1 - rate) * int(near.sum())
    disagree = int((wrong[first] != wrong[second])[near].sum())
    if expected < 5.0 or disagree > 0.25 * expected:
        return 0
    return int(involved.sum())


def _drop_frequent(near: NDArray[np.bool_], n: int) -> None:
    """Clear long chains of equal rows."""
    ends = np.flatnonzero(~near)
    starts = np.r_[0, ends + 1]
    stops = np.r_[ends, len(near)]
    for chain in np.flatnonzero(stops - starts > _MOST_COPIES * n):
        near[starts[chain] : stops[chain]] = False
