"""Logits with one scale per row, and their confidences as the scales change.

The logits are never copied or changed: rescaling a sample is one multiplication. They are also
seldom read: near a scale at which a row was read, a short series gives its log-odds. The row is
read again only if the series is too inaccurate.

The log-odds against the likeliest class at the scale s are x(s) = log sum_j exp(s d_j) over all
other classes, where d_j = z_j - max z. Around a scale at which the row was read, x(s + t) = x(s) +
t m + log E exp(t (d - m)), with m the mean of d under weights exp(s d). The exponential's series up
to the eighth power, whose terms are central moments, is accurate for steps of several per cent, and
Taylor's remainder bounds the error. numpy applies this arithmetic to arrays, and kernels apply it
to numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import factorial
from typing import Any

import numpy as np

from recal.checks import Floats, Indices, Vector
from recal.engine import SMALL, over_rows, row_blocks
from recal.engine import rows as kernels

# Returns an array that contains the requested rows, perhaps among others, and their positions in
# it.
ReadRows = Callable[[Indices], tuple[Floats, Indices]]
# No sequence of betas takes a scale out of this range, so nothing over- or underflows to inf or 0.
SCALE_RANGE = (1e-100, 1e100)
# A view's confidence rose if it exceeds the original's by more than this: the distance from 1 to
# the float32 before it, which is as much as most models can tell apart.
RISE = 2.0**-24
# Probabilities stay within these bounds: a probability of exactly 0 for the true class is an
# infinite loss.
ABOVE_ZERO, BELOW_ONE = float(np.finfo(np.float64).tiny), 1.0 - 2.0**-53
# How many logits are read at a time: logits on disk need not fit in memory.
_PIECE = 16_000_000

DEGREE = 8
# The terms of a row: the scale, x and m at this scale, E (d - m)**k / k! for k = 2..8, and the
# largest |d - m|.
AT, REACH, TERMS = 0, 10, 11
# Additional numbers for reading a row: the scale, the largest logit, and how far the smallest lies
# below it.
SCALE, TOP, LOWEST, NUMBERS = 11, 12, 13, 14
# The error of the slope is at most this many times the error of x divided by t.
SHARPER = 9.0
_FACTORIALS = tuple(float(factorial(k)) for k in range(DEGREE + 1))


class ScaledRows:
    """Rows of logits, each multiplied by its own scale. The rows are read when needed and not kept.

    Parameters
    ----------
    read : function
        Returns an array that contains the requested rows, perhaps among others, and their positions
        in it.
    shape : (n_samples, n_classes)
    tolerance : float
        The largest error of s x'(s) before a row is read again. With 0, every new scale reads the
        row.

    Attributes
    ----------
    scales : (n_samples,) float64
    maxima, columns : each row's largest logit and its column; a positive scale changes neither
    """

    def __init__(self, read: ReadRows, shape: tuple[int, int], tolerance: float = 0.0) -> None:
        self._read, self.shape, self._tolerance = read, shape, tolerance
        self._is_small = shape[0] * shape[1] < SMALL
        self.scales = np.ones(shape[0])
        self.columns = np.empty(shape[0], dtype=np.intp)
        self.maxima, self._lowest = np.empty((2, shape[0]))
        for part, block in self.blocks():
            self.columns[part] = block.argmax(axis=1)
            self.maxima[part] = block[np.arange(len(block)), self.columns[part]]
            self._lowest[part] = block.min(axis=1)
        self._lowest -= self.maxima
        self._x: Vector | None = None
        self._drops: Vector | None = None
        # The terms of each row near its current scale, and near another scale that was only
        # evaluated.
        self._here, self._there = np.zeros((2, TERMS, self.shape[0]))
        self._here[REACH] = self._there[REACH] = np.inf  # nothing is known

    def blocks(self) -> Iterator[tuple[Indices, Floats]]:
        """Yield all rows a piece at a time: their indices and their logits."""
        for part, array, where in self._pieces(np.arange(self.shape[0])):
            together = where[-1] - where[0] == len(where) - 1 and bool((np.diff(where) == 1).all())
            yield part, array[where[0] : where[-1] + 1] if together else array[where]

    def _pieces(self, chosen: Indices) -> Iterator[tuple[Indices, Floats, Indices]]:
        for rows in row_blocks(len(chosen), self.shape[1], _PIECE):
            part = chosen[rows]
            array, where = _readable(*self._read(part))
            yield part, array, where

    def rescale(self, factors: Vector | float) -> None:
        """Multiply every row's scale by its factor."""
        self._x = None
        self.scales = np.clip(self.scales * factors, *SCALE_RANGE)

    def log_odds(self, n_bins: int = 0) -> Vector:
        """Return x, the log-odds against each row's largest class, at the current scales.

        Confidences that may lie on either side of an edge of `n_bins` bins are computed in full.
        """
        if self._x is None:
            self._x, _, _, self._error = self._near_here()
            if len(near := _near_an_edge(self._x, n_bins, self._error)):
                self._x[near], self._error[near] = self.look(near), 0.0
        return self._x

    def _near_here(self) -> Vector:
        out = self._expand(self._here, self.scales)
        far = np.flatnonzero(np.isnan(out[0]))
        if len(far):
            self.look(far)
            out[:, far] = self._expand(np.take(self._here, far, axis=1), self.scales[far])
        return out

    def bounded_log_odds(self) -> tuple[Vector, Vector]:
        """Return x from the last reading of each row, and a bound on its error of at most 1/2; rows
        with a larger bound are read now.
        """
        if self._x is not None:
            return self._x, self._error
        x, _, _, error = self._expand(self._here, self.scales, tolerance=1e200)
        if len(unknown := np.flatnonzero(error > 0.5)):
            x[unknown], error[unknown] = self.look(unknown), 0.0
        return x, error

    def look(self, chosen: Indices) -> Vector:
        """Read some rows at their current scales, and return their x."""
        self._here[:, chosen] = terms = self._look(chosen, self.scales[chosen])
        return terms[1]

    def log_partition(self) -> Vector:
        """Return log sum_j exp(s (z_j - max z)) of each row: minus the log of its confidence."""
        return np.logaddexp(0.0, self.log_odds())

    def log_partition_at(self, factors: Vector | float, n_bins: int = 0) -> Vector:
        """Return `log_partition` as after `rescale(factors)`; `n_bins` as in `log_odds`."""
        wanted = self.scales * factors
        x, _, _, error = self._evaluate(wanted)
        if len(near := _near_an_edge(x, n_bins, error)):
            x[near] = self._look(near, wanted[near])[1]
        return np.logaddexp(0.0, x)

    def slopes(self, factors: Vector | float) -> tuple[Vector, Vector]:
        """Return the first two derivatives of the log-partition in the scale, at scales * factors.

        Rows whose factor is 0 are left out and get 0.
        """
        wanted = self.scales * factors
        if self._is_small and self.shape[1] <= 64:
            return self._slopes_of_all(wanted)
        out = self._evaluate(wanted)
        return out[1], out[2]

    def _slopes_of_all(self, wanted: Vector) -> tuple[Vector, Vector]:
        """Return the slopes from all logits; for a few short rows this is cheaper than evaluating
        the series.
        """
        if self._drops is None:
            self._drops = (
                np.concatenate([block for _, block in self.blocks()]) - self.maxima[:, None]
            )
        drops, chosen = self._drops, slice(None) if wanted.all() else wanted > 0.0
        drops, scales = drops[chosen], wanted[chosen]
        weights = np.exp(scales[:, None] * drops)
        totals = weights.sum(axis=1)
        weights *= drops
        first, second = np.zeros((2, len(wanted)))
        first[chosen] = mean = weights.sum(axis=1) / totals
        second[chosen] = np.maximum(
            np.einsum("ij,ij->i", weights, drops) / totals - mean * mean, 0.0
        )
        return first, second

    def _evaluate(self, wanted: Vector) -> Vector:
        """Return x, two derivatives and the error at these scales, (4, n_samples); 0 where a scale
        is 0.
        """
        out = self._expand(self._here, wanted)
        far = np.flatnonzero(np.isnan(out[0]))
        if len(far):
            values = self._expand(np.take(self._there, far, axis=1), wanted[far])
            unread = far[np.isnan(values[0])]
            if len(unread):
                self._there[:, unread] = self._look(unread, wanted[unread])
                values = self._expand(np.take(self._there, far, axis=1), wanted[far])
            out[:, far] = values
        return out

    def _expand(self, terms: Vector, wanted: Vector, tolerance: float | None = None) -> Vector:
        """Return what `engine.rows.fill_expansion` fills, (4, n_samples)."""
        tolerance = self._tolerance if tolerance is None else tolerance
        out = np.zeros((4, len(wanted)))
        if not self._is_small:
            over_rows(kernels.fill_expansion, wanted, terms, tolerance, out, size=16 * len(wanted))
            return out
        rows = wanted > 0.0
        scales, terms = wanted[rows], terms[:, rows]
        t = scales - terms[AT]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            error = remainder(t, terms[REACH - 1], terms[REACH])
            above = rise(t, terms[3:REACH])
            values = np.array([*expand(t, terms[1:REACH], above), error])
            far = ~(error * SHARPER * scales <= tolerance * np.abs(t))
        values[0, far], values[3, far] = np.nan, np.inf
        out[:, rows] = values
        return out

    def _look(self, chosen: Indices, scales: Vector) -> Vector:
        """Read some rows at these scales and return their terms, (TERMS, n_rows)."""
        numbers, begin = np.empty((NUMBERS, len(chosen))), 0
        numbers[SCALE], numbers[TOP] = scales, self.maxima[chosen]
        numbers[LOWEST] = self._lowest[chosen]
        for part, array, where in self._pieces(chosen):
            piece = slice(begin, begin := begin + len(part))
            if self._is_small:
                _read_rows(array[where], self.columns[part], numbers[:, piece])
            else:
                work = len(part) * self.shape[1]
                pieces = array, self.columns[part], numbers[:, piece]
                over_rows(kernels.read_rows, where, *pieces, size=work)
        return numbers[:TERMS]

    def drop_at(self, columns: Indices) -> Vector:
        """Return how far the logit at each row's column lies below the row's largest, unscaled; at
        most 0.
        """
        picked = [block[np.arange(len(part)), columns[part]] for part, block in self.blocks()]
        return np.concatenate(picked).astype(np.float64) - self.maxima

    def runner_up_drop(self) -> Vector:
        """Return how far each row's second logit lies below its largest, unscaled; at most 0."""
        second = np.empty(self.shape[0])
        for part, block in self.blocks():
            others = np.array(block)
            others[np.arange(len(part)), self.columns[part]] = -np.inf
            second[part] = others.max(axis=1)
        return second - self.maxima


class ScaledLogits(ScaledRows):
    """Scaled rows of logits that are in one array."""

    def __init__(self, logits: Floats, tolerance: float = 0.0) -> None:
        self.logits = as_rows(logits)
        n_samples, n_classes = self.logits.shape
        super().__init__(lambda rows: (self.logits, rows), (n_samples, n_classes), tolerance)


def as_rows(logits: Floats) -> Floats:
    """Return logits as the kernels read them: row by row in memory, float32 or float64."""
    dtype = np.float32 if logits.dtype == np.float16 else logits.dtype
    return np.ascontiguousarray(logits, dtype=dtype)


def _readable(logits: Floats, rows: Indices) -> tuple[Floats, Indices]:
    """Return an array that kernels can read, the given one or a copy of the rows, and the rows'
    indices in it.
    """
    if logits.dtype != np.float16 and logits.flags.c_contiguous:
        return logits, rows
    return as_rows(logits[rows]), np.arange(len(rows))


def _read_rows(block: Floats, columns: Indices, numbers: Vector) -> None:
    """Do what `engine.rows.read_rows` does, without a compiler."""
    drops = block.astype(np.float64) - numbers[TOP, :, None]
    weights = np.exp(numbers[SCALE, :, None] * drops)
    weights[np.arange(len(block)), columns] = 0.0
    for k in range(DEGREE + 1):
        numbers[1 + k] = weights.sum(axis=1)
        weights *= drops
    fill_terms(numbers)


def _near_an_edge(x: Vector, n_bins: int, error: Vector) -> Indices:
    """Return the rows whose confidence is so near an edge of equally wide bins that the error of x
    may cross it.
    """
    place = n_bins / (1.0 + np.exp(np.minimum(x, 700.0)))
    return np.flatnonzero(np.abs(place - np.round(place)) < n_bins * error)


def fill_terms(numbers: Any) -> None:
    """Turn the sums of w d**k, k = 0..8, in numbers[1:10] into the terms of one row or of many."""
    total = np.maximum(numbers[1], 1e-300)
    mean = numbers[2] / total
    for k in range(1, DEGREE + 1):
        numbers[1 + k] = numbers[1 + k] / total
    numbers[1] = 1.0
    # Each round turns d**(k - done + 1) into (d - m) d**(k - done).
    for done in range(1, DEGREE + 1):
        for k in range(DEGREE, done - 1, -1):
            numbers[1 + k] = numbers[1 + k] - mean * numbers[k]
    for k in range(2, DEGREE + 1):
        numbers[1 + k] = numbers[1 + k] / _FACTORIALS[k]
    numbers[AT], numbers[1], numbers[2] = numbers[SCALE], np.log(total), mean
    numbers[REACH] = np.maximum(-mean, mean - numbers[LOWEST])


def remainder(t: Any, last: Any, reach: Any) -> Any:
    """Return a bound on the error of the sum: the next term is at most c8 t**8 q / 9, and later
    ones add less.

    This holds as long as q, the largest |t (d - m)|, is below 4.
    """
    square = t * t
    fourth = square * square
    q = np.abs(t) * reach
    return np.abs(last) * fourth * fourth * q * 0.25 + 1e300 * (q > 4.0)


def rise(t: Any, c: Any) -> Any:
    """Return E exp(t (d - m)) - 1 by the series; `c` holds its terms from the second power on."""
    high = c[3] + t * (c[4] + t * (c[5] + t * c[6]))
    return t * t * (c[0] + t * (c[1] + t * (c[2] + t * high)))


def expand(t: Any, terms: Any, above: Any) -> Any:
    """Return x, and the first two derivatives of the log-partition log(1 + e**x), at a step t from
    the scale; `above` is what `rise` returns.
    """
    x, mean, c = terms[0], terms[1], terms[2:]
    high = 5 * c[3] + t * (6 * c[4] + t * (7 * c[5] + t * (8 * c[6])))
    once = t * (2 * c[0] + t * (3 * c[1] + t * (4 * c[2] + t * high)))
    high = 20 * c[3] + t * (30 * c[4] + t * (42 * c[5] + t * (56 * c[6])))
    twice = 2 * c[0] + t * (6 * c[1] + t * (12 * c[2] + t * high))
    first, second = once / (1.0 + above), twice / (1.0 + above)
    odds = x + t * mean + np.log1p(above)
    against = 1.0 / (1.0 + np.exp(-np.maximum(odds, -700.0)))
    slope = mean + first
    bend = np.maximum(second - first * first, 0.0)
    return odds, against * slope, against * (bend + (1.0 - against) * slope * slope)
