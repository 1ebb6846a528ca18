"""Replay a plan row by row: all steps of one sample before the next, so its views stay in the nearest cache."""

from __future__ import annotations

import numpy as np
from numba import njit

from recal.kernels.fast import row_slopes
from recal.kernels.grouping import CLOSE, did_not_rise
from recal.kernels.screening import AT, CURVATURE, SLOPE, VALUE, bounds

_NEVER = -1.0


@njit(cache=True, nogil=True)
def _extremes(row):  # type: ignore[no-untyped-def]
    """Return the largest value, its column and the range of a row."""
    best = row[0]
    worst = row[0]
    column = 0
    for j in range(1, len(row)):
        if row[j] > best:
            best = row[j]
            column = j
        worst = min(worst, row[j])
    return best, column, np.float64(best) - np.float64(worst)


@njit(cache=True, nogil=True)
def _look(row, top, scale, last):  # type: ignore[no-untyped-def]
    """Remember F(s) and its derivatives at the present scale."""
    last[VALUE], last[SLOPE], last[CURVATURE] = row_slopes(row, top, np.float32(scale))
    last[AT] = scale


@njit(cache=True, nogil=True)
def replay_rows(  # type: ignore[no-untyped-def]
    logits, start, stop, views, step_views, betas, begin, own, exact, least, largest, scales,
):  # fmt: skip
    """Fill the scale that the plan gives each row of `logits`.

    `views` is (n_views, n_samples, n_classes); step l looks at view step_views[l] and multiplies by betas[l, group].
    Confidences are compared by the bounds of the last look; then by a new look at the original, then at the view; and
    where they are too close to call, by the rule for ties in full. Each is certain, so none changes the answer.
    """
    n_views, _, n_classes = views.shape
    log_classes = np.log(n_classes)
    buffer = np.empty(n_classes, dtype=np.float32)
    # Of each view of the present row: the last look, the gap of the column that is read, its range, scale, maximum.
    last = np.empty((n_views, 4))
    gaps, ranges, view_scales = np.empty(n_views), np.empty(n_views), np.empty(n_views)
    tops = np.empty(n_views, dtype=views.dtype)
    columns, kept = np.empty(n_views, dtype=np.int64), np.empty(n_views, dtype=np.bool_)
    own_last = np.empty(4)
    for i in range(start, stop):
        row = logits[i]
        top, column, reach = _extremes(row)
        scale = begin
        own_last[AT] = _NEVER
        for v in range(n_views):
            last[v, AT] = _NEVER
        for step in range(len(step_views)):
            v = step_views[step]
            view_row = views[v, i]
            if last[v, AT] == _NEVER:
                tops[v], view_column, ranges[v] = _extremes(view_row)
                columns[v] = view_column if own else column
                kept[v] = view_column == column
                gaps[v] = np.float64(view_row[columns[v]]) - np.float64(tops[v])
                view_scales[v] = begin
                _look(view_row, tops[v], begin, last[v])
            if own_last[AT] == _NEVER:
                _look(row, top, scale, own_last)
            fell = False
            decided = False
            for attempt in range(3):
                lower, upper = bounds(own_last, 0.0, reach, log_classes, scale)
                view_lower, view_upper = bounds(last[v], gaps[v], ranges[v], log_classes, view_scales[v])
                if not (exact and upper > -CLOSE):
                    if lower > view_upper + CLOSE:
                        fell, decided = True, True
                        break
                    if upper < view_lower - CLOSE:
                        decided = True
                        break
                if attempt == 0:
                    _look(row, top, scale, own_last)
                elif attempt == 1:
                    _look(view_row, tops[v], view_scales[v], last[v])
            if not decided:
                fell = did_not_rise(
                    row, np.float64(top), scale, column,
                    view_row, np.float64(tops[v]), view_scales[v], columns[v], exact, buffer,
                )  # fmt: skip
            beta = betas[step, 2 * kept[v] + fell]
            scale = min(max(scale * beta, least), largest)
            view_scales[v] = min(max(view_scales[v] * beta, least), largest)
        scales[i] = scale
