"""ReCal's steps on arrays of any library.

`recal.engine.grouping` replays small numpy arrays. Compiled loops replay large ones and leave ties
to numpy. Arrays of other libraries go through the same arithmetic here, written against the array
API; in numpy it would take ten times as long.

Arithmetic is float64. Only the rule for ties compares float32 confidences, and the last bit of a
float32 sum depends on its order. numpy halves a row until a block has at most 128 values. It adds
each block in eight lanes, then the lanes in pairs, the remaining values of the last block one by
one, and finally the blocks along the tree of halves. Sums here follow that order, so that all
samples fall into the same groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.engine import rows as kernels
from recal.engine.compiled import SMALL, over_rows
from recal.engine.grouping import Program, Rows, Rule, group_indices, groups, replay
from recal.engine.scaled import SCALE_RANGE, ScaledLogits, Vector, as_rows
from recal.maps.arrays import repeated, softmax, take_along
from recal.maps.base import Array, Views, indices, like, namespace

# How many rows compiled loops process at a time: a dozen numbers of each row and of its views stay
# in the cache. Not a power of 2, because its multiples would share cache lines.
_ROWS = 8_000
# In numpy, a step takes about ten passes over its rows. Above this number of values times steps,
# use compiled loops.
_SMALL_STEPS = 4_000_000
# Up to this many classes, a row's exponentials cost less than its series.
_SHORT_STEPS = 64
# The accuracy of the series of longer rows; a row is read again if its group depends on a smaller
# difference.
_TOLERANCE = 1e-4
BLOCK, LANES = 128, 8
# Eight lanes are added in pairs, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). In this order each
# level adds two halves.
_PAIRED = [0, 4, 2, 6, 1, 5, 3, 7]


def step_probs(
    program: Program, start: float, finish: float, rule: Rule, z: Array, views: Views
) -> Array:
    """Return the probabilities after all steps, (n_samples, n_classes).

    Parameters
    ----------
    program : the view of each step, (n_steps,), and its four betas, (n_steps, 4)
    start, finish : the factor of all logits before the steps, and of the original's logits after
    them
    """
    if isinstance(z, np.ndarray):
        rows = replay(program, start, finish, rule, z, views)
        return softmax(rows.drops, rows.scales[:, None])
    if rule.floor is not None:
        return softmax(_floored_rows(program, start, finish, rule, z, views))
    return softmax(z, _scales(program, start, finish, rule, z, views))


def _scales(
    program: Program, start: float, finish: float, rule: Rule, z: Array, views: Views
) -> Array:
    """Return each sample's scale after all steps, (n_samples, 1)."""
    xp, first = namespace(z), min(max(start, SCALE_RANGE[0]), SCALE_RANGE[1])
    if not len(program[0]):
        return like(z, np.clip(first * finish, *SCALE_RANGE).reshape(1, 1))
    rows = _Stack(z, views, program, rule)
    # Steps only multiply rows by scales, so rows are laid out once, and the loop carries the
    # scales, (1 + m, 1, n).
    laid = rows.lay_out(rows.drops, rows.read)
    begun = xp.zeros_like(laid[:, :1, :]) + first

    def step(number: Array, scales: Array) -> Array:
        pair = rows.pair(number)
        factors = rows.factors(number, xp.take(scales, pair, axis=0) * xp.take(laid, pair, axis=0))
        return xp.where(rows.touches(pair), xp.clip(scales * factors, *SCALE_RANGE), scales)

    scales = repeated(z, len(program[0]), step, begun)[0, 0, :]
    return xp.expand_dims(xp.clip(scales * finish, *SCALE_RANGE), axis=1)


def _floored_rows(
    program: Program, start: float, finish: float, rule: Rule, z: Array, views: Views
) -> Array:
    """Return the originals' log-probabilities after all steps, none below log(floor); the largest
    of a row is 0.
    """
    xp, rows, least = namespace(z), _Stack(z, views, program, rule), math.log(rule.floor or 1.0)

    def rescaled(state: Array, factors: Array | float) -> Array:
        scaled = state * factors
        logs = scaled - xp.log(xp.sum(xp.exp(scaled), axis=2, keepdims=True))
        logs = xp.maximum(logs, least)
        return logs - xp.max(logs, axis=2, keepdims=True)

    def step(number: Array, state: Array) -> Array:
        pair = rows.pair(number)
        laid = rows.lay_out(xp.take(state, pair, axis=0), xp.take(rows.read, pair, axis=0))
        factors = xp.permute_dims(rows.factors(number, laid), (0, 2, 1))
        return xp.where(rows.touches(pair), rescaled(state, factors), state)

    state = rescaled(rescaled(rows.drops, 1.0), start)
    return rescaled(repeated(z, len(program[0]), step, state), finish)[0, :, :]


class _Stack:
    """The originals and their views as one array, (1 + m, n, K), and the parts of it that each step
    reads.
    """

    def __init__(self, z: Array, views: Views, program: Program, rule: Rule) -> None:
        xp = namespace(z)
        self.xp, self.rule, self.n_classes, self.count = xp, rule, int(z.shape[1]), 1 + len(views)
        stack = xp.stack([z, *views], axis=0)
        self.drops = stack - xp.max(stack, axis=2, keepdims=True)
        self.columns = xp.argmax(stack, axis=2)
        at = self.columns
        if rule.confidence_at == "original":
            at = xp.take(at, indices(z, [0] * self.count), axis=0)
        self.read = xp.expand_dims(at, axis=2)
        numbers, betas = program
        self.pairs = indices(z, np.stack([np.zeros_like(numbers), numbers + 1], axis=1))
        self.betas = like(z, betas.reshape(-1))
        self.places = indices(z, np.arange(self.count).reshape(-1, 1, 1))

    def pair(self, number: Array) -> Array:
        """Return the indices of the original and of a step's view in the stack, (2,)."""
        return self.xp.reshape(self.xp.take(self.pairs, number, axis=0), (2,))

    def touches(self, pair: Array) -> Array:
        """Return whether a step rescales each layer of the stack, (1 + m, 1, 1)."""
        return (self.places == 0) | (self.places == self.xp.reshape(pair[1:], (1, 1, 1)))

    def lay_out(self, rows: Array, read: Array) -> Array:
        """Return rows, (..., n, K), as (..., classes, n) in the order of summation, followed by the
        value to read.
        """
        xp = self.xp
        value = take_along(rows, read, axis=2)
        if self.rule.ties == "exact":
            here = indices(rows, np.arange(self.n_classes).reshape(1, 1, -1)) == read
            rows = xp.where(here, -math.inf, rows)
        else:
            layout = _layout(self.n_classes)
            if self.n_classes in layout:  # gaps contribute exp(-inf) = 0
                rows = xp.concat([rows, xp.zeros_like(value) - math.inf], axis=2)
            if layout != tuple(range(self.n_classes)):
                rows = xp.take(rows, indices(rows, np.array(layout)), axis=2)
        return xp.permute_dims(xp.concat([rows, value], axis=2), (0, 2, 1))

    def factors(self, number: Array, laid: Array) -> Array:
        """Return each sample's factor in a step, (1, 1, n), from the current rows of its pair."""
        xp = self.xp
        confidences = self._comparable(laid)
        fell = confidences[:1, :, :] >= confidences[1:, :, :]
        columns = xp.take(self.columns, self.pair(number), axis=0)
        kept = xp.expand_dims(columns[:1, :] == columns[1:, :], axis=1)
        group = 2 * xp.astype(kept, xp.int64) + xp.astype(fell, xp.int64) + 4 * number
        return xp.reshape(xp.take(self.betas, xp.reshape(group, (-1,)), axis=0), (1, 1, -1))

    def _comparable(self, laid: Array) -> Array:
        """Return the values that the rule for ties compares, (2, 1, n); see
        `recal.engine.grouping.comparable`.
        """
        xp = self.xp
        if self.rule.ties == "exact":
            others, value = _parts(laid, [self.n_classes, 1])
            rival = xp.max(others, axis=1, keepdims=True)
            return value - rival - xp.log(xp.sum(xp.exp(others - rival), axis=1, keepdims=True))
        value, total = _sum32(xp.astype(xp.exp(laid), xp.float32), self.n_classes)
        return value / total


def _parts(x: Array, sizes: Sequence[int]) -> list[Array]:
    """Return parts of these sizes along axis 1."""
    xp = namespace(x)
    if hasattr(xp, "parts"):
        return list(xp.parts(x, sizes, axis=1))
    ends = np.cumsum(sizes)
    return [x[:, end - size : end, :] for size, end in zip(sizes, ends.tolist())]


def _sum32(values: Array, count: int) -> tuple[Array, Array]:
    """Return the value to read, and the sum of float32 values in numpy's order, (2, 1, n) each."""
    if count < LANES:
        *parts, value = _parts(values, [1] * (count + 1))
        return value, _in_turn(parts)
    blocks, rows = lanes_shape(count)
    half, rest = LANES // 2 * blocks, count % LANES
    *parts, value = _parts(values, [2 * half] * rows + [1] * (rest + 1))
    total = _in_turn(parts[:rows])
    for size in (4, 2, 1):
        first, second = _parts(total, [size * blocks] * 2)
        total = first + second
    sums = _parts(total, [1] * blocks) if blocks > 1 else [total]
    sums[-1] = _in_turn([sums[-1], *parts[rows:]])
    return value, _in_pairs(sums, count)


def _in_turn(parts: Sequence[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _in_pairs(sums: list[Any], count: int) -> Any:
    """Add up the sums of blocks along the tree of halves; removes its blocks from the front of the
    list.
    """
    if count <= BLOCK:
        return sums.pop(0)
    left = _in_pairs(sums, half_of(count))
    return left + _in_pairs(sums, count - half_of(count))


def half_of(count: int) -> int:
    """Return how many of `count` values belong to the left half."""
    return count // 2 - count // 2 % LANES


def block_sizes(count: int) -> list[int]:
    """Return the sizes of the blocks, from left to right."""
    return (
        [count]
        if count <= BLOCK
        else block_sizes(half_of(count)) + block_sizes(count - half_of(count))
    )


def lanes_shape(count: int) -> tuple[int, int]:
    """Return the number of blocks, and the number of rows of eight lanes in the largest block."""
    sizes = block_sizes(count)
    return len(sizes), max(sizes) // LANES


@lru_cache(maxsize=32)
def _layout(n_classes: int) -> tuple[int, ...]:
    """Return the order of the classes: the rows of eight lanes of all blocks, lane by lane, then
    the remaining classes.

    `n_classes` itself marks a gap. The numbers are plain, because torch.compile would treat numpy's
    as tensors.
    """
    if n_classes < LANES:
        return tuple(range(n_classes))
    starts, sizes = [0], block_sizes(n_classes)
    for size in sizes[:-1]:
        starts.append(starts[-1] + size)
    places = [
        start + row * LANES + lane if row < size // LANES else n_classes
        for row in range(max(sizes) // LANES)
        for lane in _PAIRED
        for start, size in zip(starts, sizes)
    ]
    return (*places, *range(n_classes - n_classes % LANES, n_classes))


def compiled_scales(
    program: Program, start: float, finish: float, rule: Rule, z: Floats, views: Views
) -> Vector:
    """Return each sample's scale after all steps, (n_samples,), by compiled loops; the rule must
    have no floor.
    """
    scales = np.empty(len(z))
    replayed = _short_scales if z.shape[1] <= _SHORT_STEPS else _long_scales
    for begin in range(0, len(z), _ROWS):
        part = slice(begin, begin + _ROWS)
        scales[part] = replayed(program, start, rule, z[part], [view[part] for view in views])
    return np.clip(scales * finish, *SCALE_RANGE)


def _long_scales(
    program: Program, start: float, rule: Rule, z: Floats, views: Sequence[Floats]
) -> Vector:
    """Return the scales after all steps as a fit computes them: a row is read only if its series
    cannot decide.
    """
    rows = [ScaledLogits(each, tolerance=_TOLERANCE) for each in (z, *views)]
    for each in rows:
        each.rescale(start)
    original, others = rows[0], rows[1:]
    drops = [view.drop_at(original.columns) for view in others]
    for number, betas in zip(*program):
        factors = betas[group_indices(original, others[number], drops[number], rule)]
        original.rescale(factors)
        others[number].rescale(factors)
    return original.scales


def _short_scales(
    program: Program, start: float, rule: Rule, z: Floats, views: Sequence[Floats]
) -> Vector:
    """Return the same scales by reading all rows at every step; ties are left to the reference."""
    original, others = _ShortRows(z, start), [_ShortRows(view, start) for view in views]
    gaps = [
        view.drop_at(view.columns if rule.confidence_at == "own" else original.columns)
        for view in others
    ]
    tied = np.empty(len(z), dtype=np.bool_)
    for number, betas in zip(*program):
        view = others[number]
        over_rows(
            kernels.short_step, tied, original.drops, view.drops, original.columns == view.columns, original.scales,
            view.scales, gaps[number], betas, rule.ties == "exact", size=2 * z.size,
        )  # fmt: skip
        rows = np.flatnonzero(tied)
        if len(rows):
            factors = betas[groups(original.as_rows(rows), view.as_rows(rows), rule)]
            for each in (original, view):
                each.scales[rows] = np.clip(each.scales[rows] * factors, *SCALE_RANGE)
    return original.scales


class _ShortRows:
    """Rows with one scale each, in the layout of the kernel: classes are the first axis of `drops`."""

    def __init__(self, logits: Floats, start: float) -> None:
        self.logits = as_rows(logits)
        self.columns = np.empty(len(logits), np.intp)
        self.drops = np.empty(logits.shape[::-1], self.logits.dtype)
        self.scales = np.clip(np.full(len(logits), start), *SCALE_RANGE)
        over_rows(kernels.transpose, self.logits, self.columns, self.drops)

    def drop_at(self, columns: NDArray[np.intp]) -> Vector:
        """Return how far the logit at each row's column lies below the row's largest."""
        every = np.arange(len(columns))
        return self.logits[every, columns].astype(np.float64) - self.logits[every, self.columns]

    def as_rows(self, rows: NDArray[np.intp]) -> Rows:
        """Return some rows in the form of the reference."""
        state = Rows(self.logits[rows])
        state.scales = self.scales[rows]
        return state


def is_small(program: Program, z: Floats) -> bool:
    """Whether numpy replays the steps in less time than it takes to load a compiler."""
    return z.size < SMALL and z.size * len(program[0]) < _SMALL_STEPS
