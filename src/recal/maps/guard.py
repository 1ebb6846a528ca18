"""Evaluate a map a few rows at a time, keep probabilities strictly between 0 and 1, and apply the
guard.

A map may give the largest probability to a class other than the model's prediction. If predictions
are kept, the guard moves just enough probability to make the prediction the likeliest class again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, is_single_column
from recal.engine.series import ABOVE_ZERO, BELOW_ONE
from recal.errors import InputError
from recal.maps.arrays import at, clip, is_at, put, row_max, row_sum, top_column
from recal.maps.base import Array, Map, ViewLogits, like, namespace, wide
from recal.transforms import Transform
from recal.views import Views

# The relative distance of a rival below a kept prediction: large enough for float32 to distinguish
# them.
MARGIN = 1e-6
# How many values, and how many rows, are evaluated at a time: enough to make Python's overhead
# negligible.
_PART_VALUES, _PART_ROWS = 131_072, 256
# The same for views on disk, where each read has a cost.
_DISK_VALUES, _DISK_ROWS = 4_000_000, 8_000


def answer_views(
    fitted: Map, views: Views, *, kept: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Call `answer` on a few rows at a time: intermediate arrays stay in the cache, and stored
    views stay on disk.
    """
    n, k = views.n_samples, views.n_classes
    fitted.check_classes(k)
    if not views.in_memory:
        count = max(n * k // _DISK_VALUES, n // _DISK_ROWS)
    else:
        count = min(n * k // _PART_VALUES, n // _PART_ROWS) if fitted.in_parts else 1
    if count < 2 and not fitted.transforms:
        return answer(fitted, views.logits, kept=kept)
    probs, confidence = np.empty((n, k)), np.empty(n)
    for start, stop in pairwise(n * part // max(count, 1) for part in range(max(count, 1) + 1)):
        part = views if count < 2 else views[start:stop]
        for rows, logits, others in by_need(fitted, part):
            probs[start:stop][rows], confidence[start:stop][rows] = answer(
                fitted, logits, others, kept=kept
            )
    return probs, confidence


def by_need(
    fitted: Map, views: Views
) -> Iterator[tuple[slice | NDArray[np.intp], Floats, list[Floats]]]:
    """Yield the rows that need no views, then the others: their indices, their logits and those of
    their views.
    """
    needed = fitted.needs_views(views.logits)
    if needed.all() or not needed.any():
        yield slice(None), views.logits, _view_logits(fitted, views) if needed.any() else []
        return
    for rows in (np.flatnonzero(~needed), np.flatnonzero(needed)):
        part = views[rows]
        yield rows, part.logits, _view_logits(fitted, part) if needed[rows[0]] else []


def _view_logits(fitted: Map, views: Views) -> list[Floats]:
    """Return the logits of the views that the map reads."""
    return [views.transformed(transform) for transform in _held(fitted, views.transforms)]


def _held(fitted: Map, transforms: Collection[Transform]) -> tuple[Transform, ...]:
    """Return the transformations that the map reads; refuse views that lack one of them."""
    held = set(transforms)
    missing = [str(transform) for transform in fitted.transforms if transform not in held]
    if missing:
        raise InputError(
            f"The calibration needs logits of {', '.join(missing)}, which these views do not hold. "
            "Collect them: collect(model, inputs, calibrator.needed_transforms())."
        )
    return fitted.transforms


def answer(fitted: Map, z: Array, views: ViewLogits = (), *, kept: bool) -> tuple[Array, Array]:
    """Return a map's probabilities, (n_samples, n_classes), and its confidence in each prediction,
    (n_samples,).

    If predictions are kept, the confidence is the map's probability of the prediction before the
    guard raises it.
    """
    if fitted.keeps_order and isinstance(z, np.ndarray):
        shortcut = fitted.compiled(z, views)
        if shortcut is not None:
            return shortcut
    own = fitted.probs(wide(z), [wide(view) for view in views])
    return guarded(fitted, own, z, kept=kept)


def guarded(fitted: Map, own: Array, z: Array, *, kept: bool) -> tuple[Array, Array]:
    """Return what `answer` returns, from the map's own probabilities and the logits."""
    if not kept:
        probs = bounded(own)
        return probs, row_max(probs)[:, 0]
    column = top_column(z)
    if fitted.keeps_order:
        probs = lift_answers(bounded(own), column)
        return probs, row_max(probs)[:, 0]
    return lift_answers(bounded(keep_answers(own, column)), column), bounded(at(own, column))[:, 0]


def answer_array(
    fitted: Map, logits: Array, others: Mapping[Any, Array], *, kept: bool, method: str
) -> tuple[Array, Array]:
    """Return the result of `answer` for arrays of another library than numpy, which `check_tensor`
    returned.

    `others` holds the logits of the views by transformation.
    """
    if not fitted.transforms or not bool(namespace(logits).any(fitted.needs_views(logits))):
        return answer(fitted, logits, kept=kept)
    if not others:
        raise InputError(
            f"{method} needs logits of transformed inputs, got an array",
            remedy="Pass Views(logits, {'zoom:0.5': logits of the view, ...})",
        )
    return answer(fitted, logits, [others[key] for key in _held(fitted, others)], kept=kept)


def check_tensor(logits: Array) -> Array:
    """Return logits of another library than numpy, finite and of shape (n_samples, n_classes)."""
    xp = namespace(logits)
    if is_single_column(tuple(logits.shape)):  # log-odds of the second of two classes
        second = xp.reshape(logits, (-1,))
        logits = xp.stack([xp.zeros_like(second), second], axis=1)
    if logits.ndim != 2 or not logits.shape[0]:
        raise InputError(
            f"must have the shape (n_samples, n_classes), got {tuple(logits.shape)}", argument="X"
        )
    if not bool(xp.all(xp.isfinite(logits))):
        raise InputError("must be finite", argument="X", remedy="Remove rows with NaN or inf")
    return logits


def bounded(probs: Array) -> Array:
    """Return probabilities strictly inside (0, 1).

    A probability that underflowed to 0 becomes the smallest normal float (a loss of 708, not
    infinity); one that was rounded to 1 becomes the float before 1.
    """
    if isinstance(probs, np.ndarray):
        return clip(probs, ABOVE_ZERO, BELOW_ONE)
    limits = namespace(probs).finfo(probs.dtype)
    return clip(probs, float(limits.smallest_normal), 1.0 - 0.5 * float(limits.eps))


def keep_answers(probs: Array, columns: Array) -> Array:
    """Return the nearest probabilities in which each row's prediction is the likeliest class: the
    guard.

    If rivals are likelier, the prediction and the rivals above it share their probability equally.
    Sort the rivals by falling probability; the level is the largest of the means over the
    prediction and the first m rivals, m = 0, 1, ... Rivals above the level are lowered to it, and
    the prediction gets what they lose. Other classes do not change. Of all probabilities that keep
    the prediction, these have the lowest expected NLL and the lowest expected Brier score if
    `probs` are true: for every such score, averaging the values that violate an order is optimal.

    Parameters
    ----------
    probs : (n_samples, n_classes)
    columns : (n_samples, 1)
        The model's predictions.

    Examples
    --------
    >>> from recal.maps.guard import keep_answers
    >>> keep_answers(np.array([[0.6, 0.1, 0.3]]), np.array([[2]])).round(3).tolist()
    [[0.45, 0.1, 0.45]]
    """
    if not isinstance(probs, np.ndarray):
        return _levelled(probs, columns)
    # In numpy only the doubtful rows are sorted; the others stay as they are, bit for bit.
    doubtful = (row_max(put(probs, columns, -1.0)) > at(probs, columns) * (1.0 - MARGIN))[
        :, 0
    ].nonzero()[0]
    if len(doubtful):
        probs = np.array(probs)
        probs[doubtful] = _levelled(probs[doubtful], columns[doubtful])
    return probs


def _levelled(probs: Array, columns: Array) -> Array:
    xp = namespace(probs)
    own, here = at(probs, columns), is_at(probs, columns)
    rivals = xp.where(here, 0.0, probs)
    falling = -xp.sort(-rivals, axis=1)
    counts = like(probs, np.arange(2.0, probs.shape[1] + 2.0)[None, :])
    means = (own + xp.cumulative_sum(falling, axis=1)) / counts
    level = xp.maximum(own, row_max(means))
    lowered = xp.minimum(rivals, level * (1.0 - MARGIN))
    return xp.where(here, own + row_sum(rivals - lowered), lowered)


def lift_answers(probs: Array, columns: Array) -> Array:
    """Give each row's prediction the largest probability if rounding gave it to another class or
    made a tie.

    The two values are equal or differ by rounding, and are swapped. If the prediction is still tied
    with an earlier class, it is raised by one unit in the last place.
    """
    if not isinstance(probs, np.ndarray):
        return _lifted(probs, columns)
    rows = (probs.argmax(axis=1) != columns[:, 0]).nonzero()[0]
    if len(rows):
        probs[rows] = _lifted(probs[rows], columns[rows])
    return probs


def _lifted(probs: Array, columns: Array) -> Array:
    xp = namespace(probs)
    best = top_column(probs)
    own, largest = at(probs, columns), at(probs, best)
    swapped = xp.where(is_at(probs, best), own, probs)
    swapped = xp.where(is_at(probs, columns), largest, swapped)
    tied = is_at(probs, columns) & (top_column(swapped) != columns)
    return xp.where(tied, swapped * (1.0 + float(xp.finfo(probs.dtype).eps)), swapped)
