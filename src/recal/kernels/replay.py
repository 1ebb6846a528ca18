"""Replay a plan row by row: all steps of one sample before the next, so its views stay in the nearest cache."""

from __future__ import annotations

import numpy as np
from numba import njit

from recal.kernels.exponential import exp32
from recal.kernels.fast import row_slopes
from recal.kernels.grouping import CLOSE, WORK, confidence32, log_odds
from recal.kernels.screening import AT, CURVATURE, SLOPE, VALUE, lower_bound_of_row, upper_bound_of_row

_ROSE, _FELL, _UNDECIDED = 0, 1, -1
# Rows that are first looked at together, one in each lane of the processor's vectors, where classes are few.
_LANES = 16
_FEW_CLASSES = 64


@njit(cache=True, nogil=True)
def _look(row, top, scale, last):  # type: ignore[no-untyped-def]
    """Remember F(s) and its derivatives at the present scale."""
    last[VALUE], last[SLOPE], last[CURVATURE] = row_slopes(row, top, np.float32(scale))
    last[AT] = scale


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


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _lane_sums(drops, scale, sums):  # type: ignore[no-untyped-def]
    """Fill sum w, sum w d and sum w d**2 of each lane, w = exp(s d)."""
    total, first, second = sums[0], sums[1], sums[2]
    sums[:] = np.float32(0.0)
    for j in range(len(drops)):
        lane_drops = drops[j]
        for lane in range(_LANES):
            drop = lane_drops[lane]
            weight = exp32(scale * drop)
            pull = weight * drop
            total[lane] += weight
            first[lane] += pull
            second[lane] += pull * drop


@njit(cache=True, nogil=True)
def _first_look(block, scale, drops, sums, tops, columns, ranges, last):  # type: ignore[no-untyped-def]
    """Look at up to _LANES rows of one view at once."""
    count, n_classes = block.shape
    for lane in range(count):
        tops[lane], columns[lane], ranges[lane] = _extremes(block[lane])
    if n_classes > _FEW_CLASSES:
        for lane in range(count):
            _look(block[lane], tops[lane], scale, last[lane])
        return
    for lane in range(count):
        for j in range(n_classes):
            drops[j, lane] = np.float32(block[lane, j] - tops[lane])
    _lane_sums(drops, np.float32(scale), sums)
    for lane in range(count):
        total = np.float64(sums[0, lane])
        mean = np.float64(sums[1, lane]) / total
        last[lane, AT] = scale
        last[lane, VALUE] = np.log(total)
        last[lane, SLOPE] = mean
        last[lane, CURVATURE] = max(np.float64(sums[2, lane]) / total - mean * mean, 0.0)


@njit(cache=True, nogil=True)
def _compare(own_last, reach, scale, last, gap, view_reach, view_scale, log_classes, exact):  # type: ignore[no-untyped-def]
    """Say how the original's confidence compares to the view's, where the bounds of the last looks decide it."""
    upper = upper_bound_of_row(own_last, 0.0, scale)
    if exact and upper > -CLOSE:  # in log-odds a saturated pair may differ although its logarithms do not
        return _UNDECIDED
    view_upper = upper_bound_of_row(last, gap, view_scale)
    if upper > view_upper:
        if lower_bound_of_row(own_last, 0.0, reach, log_classes, scale) > view_upper + CLOSE:
            return _FELL
    elif upper < lower_bound_of_row(last, gap, view_reach, log_classes, view_scale) - CLOSE:
        return _ROSE
    return _UNDECIDED


@njit(cache=True, nogil=True)
def replay_rows(  # type: ignore[no-untyped-def]
    logits, start, stop, views, step_views, betas, begin, own, exact, order, least, largest, scales,
):  # fmt: skip
    """Fill the scale that the plan gives each row of `logits`.

    `views` is (n_views, n_samples, n_classes); step l looks at view step_views[l] and multiplies by betas[l, group].
    Confidences are compared by the bounds of the last look; then by a new look at the original, then at the view; and
    where they are too close to call, by the rule for ties in full. Each is certain, so none changes the answer.
    """
    n_views, _, n_classes = views.shape
    log_classes = np.log(n_classes)
    buffer = np.empty(WORK + n_classes, dtype=np.float32)
    drops = np.zeros((n_classes if n_classes <= _FEW_CLASSES else 1, _LANES), dtype=np.float32)
    sums = np.empty((3, _LANES), dtype=np.float32)
    # Of each view (the last one is the original itself) and lane: the last look, maximum, its column, range.
    last = np.empty((n_views + 1, _LANES, 4))
    tops = np.empty((n_views + 1, _LANES), dtype=views.dtype)
    columns = np.empty((n_views + 1, _LANES), dtype=np.int64)
    ranges = np.empty((n_views + 1, _LANES))
    view_scales, gaps = np.empty(n_views), np.empty(n_views)
    for tile in range(start, stop, _LANES):
        end = min(tile + _LANES, stop)
        for v in range(n_views):
            _first_look(views[v, tile:end], begin, drops, sums, tops[v], columns[v], ranges[v], last[v])
        _first_look(
            logits[tile:end], begin, drops, sums, tops[n_views], columns[n_views], ranges[n_views], last[n_views]
        )
        for lane in range(end - tile):
            i = tile + lane
            own_last = last[n_views, lane]
            top, column, reach = tops[n_views, lane], columns[n_views, lane], ranges[n_views, lane]
            scale = begin
            for v in range(n_views):
                view_scales[v] = begin
                at = columns[v, lane] if own else column
                gaps[v] = np.float64(views[v, i, at]) - np.float64(tops[v, lane])
            for step in range(len(step_views)):
                v = step_views[step]
                verdict = _UNDECIDED
                for attempt in range(3):
                    verdict = _compare(
                        own_last, reach, scale, last[v, lane], gaps[v], ranges[v, lane], view_scales[v], log_classes,
                        exact,
                    )  # fmt: skip
                    if verdict != _UNDECIDED or attempt == 2:
                        break
                    if attempt == 0:
                        _look(logits[i], top, scale, own_last)
                    else:
                        _look(views[v, i], tops[v, lane], view_scales[v], last[v, lane])
                if verdict == _UNDECIDED:
                    at = columns[v, lane] if own else column
                    if exact:
                        verdict = log_odds(logits[i], scale, column) >= log_odds(views[v, i], view_scales[v], at)
                    else:
                        own_value = confidence32(logits[i], np.float64(top), scale, column, order, buffer)
                        verdict = own_value >= confidence32(
                            views[v, i], np.float64(tops[v, lane]), view_scales[v], at, order, buffer
                        )
                beta = betas[step, 2 * (columns[v, lane] == column) + verdict]
                scale = min(max(scale * beta, least), largest)
                view_scales[v] = min(max(view_scales[v] * beta, least), largest)
            scales[i] = scale
