"""Functions on arrays that several maps share, written against the array API.

Arrays are (n_samples, n_classes) float64. Everything works row by row, so that a row gets the same
result alone and in a batch. Numpy arrays of at least `SMALL` values go to compiled loops if these
are clearly faster; fewer values are not worth the start of a compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from recal.engine import one_thread
from recal.engine.series import ABOVE_ZERO
from recal.maps.base import Array, indices, like, namespace, wide

# Scores with a smaller relative difference count as equal. Libraries round the last bit of a
# logarithm differently; a sample whose score equals an edge, or a score of the fit, must not change
# sides because of that.
TIE = 1e-12


def row_max(z: Array) -> Array:
    """Return the largest value of each row, (n_samples, 1)."""
    # For a single row, numpy's own `max` and `sum` take twice as long as the ufuncs they call.
    if isinstance(z, np.ndarray):
        return np.maximum.reduce(z, axis=1, keepdims=True)
    return namespace(z).max(z, axis=1, keepdims=True)


def row_sum(z: Array) -> Array:
    """Return the sum of each row, (n_samples, 1)."""
    if isinstance(z, np.ndarray):
        return np.add.reduce(z, axis=1, keepdims=True)
    return namespace(z).sum(z, axis=1, keepdims=True)


def softmax(z: Array, beta: float | Array = 1.0) -> Array:
    """Return softmax(beta * z), with one beta for all rows or one for each, (n_samples, 1).

    Classes far below the largest may underflow to 0.
    """
    xp, z = namespace(z), wide(z)
    drops = (z - row_max(z)) * beta
    if xp is not np and hasattr(xp, "softmax"):  # one operation of torch, and one node of a graph
        return xp.softmax(drops, 1)
    weights = xp.exp(drops)
    return weights / row_sum(weights)


def log_softmax(z: Array, beta: float = 1.0) -> Array:
    """Return the logarithm of softmax(beta * z); large and negative, not -inf."""
    xp, z = namespace(z), wide(z)
    drops = (z - row_max(z)) * beta
    return drops - xp.log(row_sum(xp.exp(drops)))


def softplus(x: Array) -> Array:
    """Return log(1 + e**x) without overflow."""
    xp = namespace(x)
    return xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + e**-x) without overflow."""
    xp = namespace(x)
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0.0, 1.0, small) / (1.0 + small)


def clip(x: Array, low: float, high: float) -> Array:
    """Return values cut off at both ends."""
    return namespace(x).clip(x, low, high)


def safe_log(probs: Array) -> Array:
    """Return logarithms of probabilities; 0 is replaced by the smallest normal float."""
    xp = namespace(probs)
    return xp.log(xp.maximum(probs, ABOVE_ZERO))


def soft_log_probs(z: Array, beta: float, epsilon: float) -> Array:
    """Return log((1 - epsilon) softmax(beta z) + epsilon / K), at least log(epsilon / K)."""
    xp = namespace(z)
    return xp.log(softmax(z, beta) * (1.0 - epsilon) + epsilon / z.shape[1])


def top_column(z: Array) -> Array:
    """Return the column of each row's largest value, (n_samples, 1)."""
    xp = namespace(z)
    return xp.expand_dims(xp.argmax(z, axis=1), axis=1)


def at(z: Array, columns: Array) -> Array:
    """Return the values at some columns of each row, both (n_samples, count)."""
    return take_along(z, columns, axis=1)


def take_along(x: Array, places: Array, axis: int) -> Array:
    """Return take_along_axis(x, places); torch's own version would fix the number of rows of an
    exported program.
    """
    if hasattr(x, "gather"):
        return x.gather(axis, places)
    return namespace(x).take_along_axis(x, places, axis=axis)


def repeated(z: Array, count: int, step: Callable[[Array, Array], Array], state: Array) -> Array:
    """Apply state = step(number, state) for each number, an array of shape (1,); a tracer writes it
    as one loop.
    """
    xp = namespace(z)
    if xp is not np and hasattr(xp, "repeated"):
        return xp.repeated(count, step, state)
    for number in range(count):
        state = step(indices(z, [number]), state)
    return state


def is_at(z: Array, columns: Array) -> Array:
    """Return whether each entry is in its row's given column, (n_samples, n_classes)."""
    return indices(z, np.arange(z.shape[1])[None, :]) == columns


def class_scores(z: Array, beta: float = 1.0) -> Array:
    """Return each class's log-odds at the scale beta: one against the rest.

    They have the order of the probabilities and still differ if probabilities saturate. With two
    classes they are the difference of the logits, however large.
    """
    if z.shape[1] == 2:
        z = wide(z)
        margin = beta * (z[:, 1:] - z[:, :1])
        return namespace(z).concat([-margin, margin], axis=1)
    return class_log_odds(log_softmax(z, beta))


def log_odds(confidence: Array) -> Array:
    """Return log(p / (1 - p)) of confidences, finite even for 0 and 1."""
    inside = clip(confidence, 1e-12, 1.0 - 1e-12)
    xp = namespace(inside)
    return xp.log(inside) - xp.log1p(-inside)


def class_log_odds(log_probs: Array) -> Array:
    """Return log(p / (1 - p)) of each class of rows.

    For the largest class, 1 - p is computed as the sum of the other probabilities; the subtraction
    would lose digits. If the sum underflows, it is computed relative to the largest of them.
    """
    xp = namespace(log_probs)
    probs = xp.exp(log_probs)
    top = top_column(log_probs)
    others = put(probs, top, 0.0)
    rest = row_sum(others)
    log_rest = xp.log(xp.maximum(rest, 1e-290))
    far = rest < 1e-290  # terms of the sum may have underflowed
    if not isinstance(far, np.ndarray) or far.any():
        below = put(log_probs, top, -np.inf)
        second = row_max(below)
        log_rest = xp.where(far, second + xp.log(row_sum(xp.exp(below - second))), log_rest)
    return log_probs - put(xp.log1p(-others), top, log_rest)


def normalise(scores: Array) -> Array:
    """Divide rows of scores >= 0 by their sums; a row of zeros becomes uniform."""
    xp = namespace(scores)
    sums = row_sum(scores)
    some = sums > 0.0
    return xp.where(some, scores / xp.where(some, sums, 1.0), 1.0 / scores.shape[1])


def linear(x: Array, weights: np.ndarray, shift: np.ndarray | float = 0.0) -> Array:
    """Return x @ weights.T + shift; in numpy each row has the same bits in any batch.

    The order of summation in a matrix product may depend on the number of rows. Rows therefore go
    in blocks of one size.
    """
    size = 64
    if not isinstance(x, np.ndarray):
        xp = namespace(x)
        return xp.matmul(x, like(x, np.ascontiguousarray(weights.T))) + like(x, shift)
    mixing = np.ascontiguousarray(weights.T)
    block, scores = np.zeros((size, x.shape[1])), np.empty((len(x), len(weights)))
    with one_thread():
        for first in range(0, len(x), size):
            part = x[first : first + size]
            block[: len(part)] = part
            scores[first : first + size] = (block @ mixing)[: len(part)]
    scores += shift
    return scores


def interpolate(scores: Array, knots: np.ndarray, values: np.ndarray, offsets: np.ndarray) -> Array:
    """Apply a piecewise linear function to each column, constant beyond its ends.

    The knots of all columns are concatenated; those of column k go from offsets[k] to offsets[k +
    1]. If there is only one function, it applies to all columns.
    """
    if isinstance(scores, np.ndarray):
        out = np.empty_like(scores)
        for columns, part in _parts(scores, offsets):
            out[:, columns] = np.interp(scores[:, columns], knots[part], values[part])
        return out
    xp = namespace(scores)
    last, starts = _search(scores, knots, offsets, inclusive=True)
    first = xp.maximum(last, indices(scores, starts))
    second = xp.minimum(first + 1, indices(scores, (offsets[1:] - 1)[None, :]))
    table, heights = like(scores, knots), like(scores, values)
    x0, x1 = values_at(table, first), values_at(table, second)
    y0, y1 = values_at(heights, first), values_at(heights, second)
    width = x1 - x0
    flat = width <= 0.0
    part = xp.where(flat, 0.0, (scores - x0) / xp.where(flat, 1.0, width))
    return y0 + (y1 - y0) * clip(part, 0.0, 1.0)


def look_up(scores: Array, edges: np.ndarray, values: np.ndarray, offsets: np.ndarray) -> Array:
    """Replace each score by the value of its bin; every column has its own bins, and a bin includes
    its upper edge.

    The bins of all columns are concatenated, as in `interpolate`; each column's last edge is
    infinite.
    """
    # A score that equals an edge up to rounding lies below it.
    scores = scores - TIE * (1.0 + namespace(scores).abs(scores))
    if isinstance(scores, np.ndarray):
        out = np.empty_like(scores)
        for columns, part in _parts(scores, offsets):
            out[:, columns] = values[part][edges[part].searchsorted(scores[:, columns])]
        return out
    last, _ = _search(scores, edges, offsets, inclusive=False)
    return values_at(like(scores, values), last + 1)


def largest_columns(z: Array, count: int) -> Array:
    """Return the columns of each row's largest values, largest first, (n_samples, count); ties keep
    their order.
    """
    if not isinstance(z, np.ndarray):
        xp = namespace(z)
        return xp.argsort(-z, axis=1, stable=True)[:, :count]
    falling = -z
    if count < z.shape[1]:
        some = np.argpartition(falling, count - 1, axis=1)[:, :count]
        some.sort(axis=1)  # so that ties keep the order of the columns
    else:
        some = np.broadcast_to(np.arange(count), z.shape)
    order = np.argsort(np.take_along_axis(falling, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)


def put(z: Array, columns: Array, values: Array | float) -> Array:
    """Return z with each row's values at the given columns, both (n_samples, count), or one number
    at all of them.
    """
    if isinstance(z, np.ndarray):
        out = np.array(z)
        out[np.arange(len(z))[:, None], columns] = values
        return out
    xp = namespace(z)
    for place in range(columns.shape[1]):
        value = values if isinstance(values, float) else values[:, place : place + 1]
        z = xp.where(is_at(z, columns[:, place : place + 1]), value, z)
    return z


def _parts(scores: np.ndarray, offsets: np.ndarray) -> Any:
    """Yield the columns that share a table, and the slice of the table."""
    if len(offsets) == 2:
        yield slice(None), slice(int(offsets[0]), int(offsets[1]))
        return
    for column in range(scores.shape[1]):
        yield column, slice(int(offsets[column]), int(offsets[column + 1]))


def _search(
    scores: Array, edges: np.ndarray, offsets: np.ndarray, *, inclusive: bool
) -> tuple[Array, np.ndarray]:
    """Return the index of the last edge below each score (or equal to it), or one before the first
    if there is none.

    All columns are searched together by bisection: a few operations for each doubling of the
    longest table, for any number of columns.
    """
    xp = namespace(scores)
    starts, ends = offsets[:-1][None, :], offsets[1:][None, :]
    table, end = like(scores, edges), indices(scores, ends)
    place = xp.zeros_like(scores, dtype=xp.int64) + indices(scores, starts - 1)
    step = 1 << max(0, int((ends - starts).max()).bit_length() - 1)
    while step:
        further = place + step
        edge = values_at(table, xp.minimum(further, int(offsets[-1]) - 1))
        passed = edge <= scores if inclusive else edge < scores
        place = xp.where((further < end) & passed, further, place)
        step //= 2
    return place, starts


def values_at(table: Array, places: Array) -> Array:
    """Return the table's values at these indices, (n_samples, n_columns)."""
    xp = namespace(places)
    if hasattr(xp, "repeated"):  # a graph accepts indices of any shape
        return xp.take(table, places, axis=0)
    return xp.reshape(xp.take(table, xp.reshape(places, (-1,)), axis=0), (-1, places.shape[1]))
