"""Replay a plan row by row: all steps of one sample before the next, so its views stay in the nearest cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from recal.engine.kernels.compiled import FAST, kernel, part_of_kernel
from recal.engine.kernels.exponential import exp32
from recal.engine.kernels.fast import row_slopes
from recal.engine.kernels.grouping import CLOSE, confidence32, log_odds
from recal.engine.kernels.instructions import Lane, Number, is_fields
from recal.engine.kernels.screening import AT, CURVATURE, GAP, RANGE, SLOPE, VALUE, lower_bound, upper_bound

_ROSE, _FELL, _UNDECIDED = 0.0, 1.0, -1.0
# What is known of a row besides its last look, range and gap: its present scale.
SCALE, _FIELDS = 6, 7
# Rows that are first looked at together, one in each lane of the processor's vectors, where classes are few.
_LANES = 16
_FEW_CLASSES = 64
# So few rows are looked at one by one: most lanes would be empty.
_FEW_ROWS = 4


@part_of_kernel()
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


@part_of_kernel()
def _look(row, top, known, lane):  # type: ignore[no-untyped-def]
    """Remember F(s) and its derivatives at the present scale."""
    scale = known[SCALE, lane]
    value, slope, curvature = row_slopes(row, top, np.float32(scale))
    known[AT, lane], known[VALUE, lane], known[SLOPE, lane], known[CURVATURE, lane] = scale, value, slope, curvature


@part_of_kernel()
def _lane_extremes(values, tops, bottoms, columns):  # type: ignore[no-untyped-def]
    """Fill the largest value, its first column and the smallest value of each lane."""
    for lane in range(_LANES):
        tops[lane] = values[0, lane]
        bottoms[lane] = values[0, lane]
        columns[lane] = 0
    for j in range(1, len(values)):
        for lane in range(_LANES):
            value = values[j, lane]
            columns[lane] = j if value > tops[lane] else columns[lane]
            tops[lane] = value if value > tops[lane] else tops[lane]
            bottoms[lane] = value if value < bottoms[lane] else bottoms[lane]


@part_of_kernel(fastmath=FAST)
def _lane_sums(values, tops, scale, sums):  # type: ignore[no-untyped-def]
    """Fill sum w, sum w d and sum w d**2 of each lane, w = exp(s d), d the distance from the largest value."""
    for lane in range(_LANES):
        sums[0, lane] = np.float32(0.0)
        sums[1, lane] = np.float32(0.0)
        sums[2, lane] = np.float32(0.0)
    for j in range(len(values)):
        for lane in range(_LANES):
            drop = np.float32(values[j, lane] - tops[lane])
            weight = exp32(scale * drop)
            pull = weight * drop
            sums[0, lane] += weight
            sums[1, lane] += pull
            sums[2, lane] += pull * drop


@part_of_kernel()
def _first_look(block, values, bottoms, sums, tops, columns, known):  # type: ignore[no-untyped-def]
    """Look at up to _LANES rows of one view at once."""
    count, n_classes = block.shape
    if n_classes > _FEW_CLASSES or count < _FEW_ROWS:
        for lane in range(count):
            tops[lane], columns[lane], known[RANGE, lane] = _extremes(block[lane])
            _look(block[lane], tops[lane], known, lane)
        return
    for lane in range(count):
        for j in range(n_classes):
            values[j, lane] = block[lane, j]
    _lane_extremes(values, tops, bottoms, columns)
    _lane_sums(values, tops, np.float32(known[SCALE, 0]), sums)
    for lane in range(count):
        known[RANGE, lane] = np.float64(tops[lane]) - np.float64(bottoms[lane])
        total = np.float64(sums[0, lane])
        mean = np.float64(sums[1, lane]) / total
        known[AT, lane] = known[SCALE, lane]
        known[VALUE, lane] = np.log(total)
        known[SLOPE, lane] = mean
        known[CURVATURE, lane] = max(np.float64(sums[2, lane]) / total - mean * mean, 0.0)


@intrinsic
def _verdict(typing_context: Any, own: Any, view: Any, lane: Any, log_classes: Any, saturated: Any) -> Any:
    """Say how the original's confidence compares to the view's, where the last looks' bounds decide it.

    Above `saturated` they are not asked.
    """
    if not is_fields(own, view):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = (Lane(context, builder, signature.args[k], arguments[k], arguments[2], _LANES) for k in range(2))
        log_classes, saturated = (Number(builder, value) for value in arguments[3:])
        (own_lower, own_upper), (lower, upper) = (_bounds(*of) for of in zip(lanes, (True, False), [log_classes] * 2))
        undecided = lower * 0.0 + _UNDECIDED
        verdict = (undecided * 0.0 + _ROSE).where(own_upper + CLOSE < lower, undecided)
        verdict = (undecided * 0.0 + _FELL).where(upper + CLOSE < own_lower, verdict)
        return verdict.where(own_upper <= saturated, undecided).value

    return types.float64(own, view, types.intp, types.float64, types.float64), generate


def _bounds(known: Lane, is_own: bool, log_classes: Number) -> tuple[Number, Number]:
    at, value, slope, curvature, reach, gap, scale = (known[field] for field in range(_FIELDS))
    at_prediction: Number | float = 0.0 if is_own else gap
    lower = lower_bound(at, value, slope, curvature, at_prediction, reach, log_classes, scale)
    return lower, upper_bound(at, value, slope, at_prediction, scale)


@part_of_kernel()
def _decide(own_row, row, lane, own_top, top, own_at, at, own, view, exact, order, buffer):  # type: ignore[no-untyped-def]
    """Say how two confidences compare from a new look at both rows, or by the rule for ties."""
    _look(own_row, own_top, own, lane)
    _look(row, top, view, lane)
    own_scale, scale = own[SCALE, lane], view[SCALE, lane]
    rise = scale * view[GAP, lane] - view[VALUE, lane] + own[VALUE, lane]
    if abs(rise) > CLOSE and not (exact and own[VALUE, lane] < CLOSE):
        return _ROSE if rise > 0.0 else _FELL
    if exact:
        return _ROSE if log_odds(own_row, own_scale, own_at) < log_odds(row, scale, at) else _FELL
    own_value = confidence32(own_row, np.float64(own_top), own_scale, own_at, order, buffer)
    return _ROSE if own_value < confidence32(row, np.float64(top), scale, at, order, buffer) else _FELL


@kernel()
def replay_rows(  # type: ignore[no-untyped-def]
    out, start, stop, views, step_views, betas, begin, at_own_prediction, exact, order, least, largest
):
    """Fill the scale that the plan gives each sample.

    `views` is (n_views + 1, n_samples, n_classes), the original last; step l looks at view step_views[l] and multiplies
    by betas[l, group]. Confidences are compared by the bounds of the last look, in all lanes at once; where these do
    not decide it, by a new look at both; and where they are too close to call, by the rule for ties in full. Each is
    certain, so none changes the answer.
    """
    n_views, _, n_classes = views.shape
    own = n_views - 1
    log_classes = np.log(n_classes)
    # In log-odds a saturated pair may differ although its logarithms do not.
    saturated = -CLOSE if exact else np.inf
    buffer = np.empty(n_classes, dtype=np.float32)
    values = np.empty((n_classes if n_classes <= _FEW_CLASSES else 1, _LANES), dtype=views.dtype)
    bottoms = np.empty(_LANES, dtype=views.dtype)
    sums = np.empty((3, _LANES), dtype=np.float32)
    verdicts = np.empty(_LANES)
    # Of each view and lane: what is known, the largest value, its column, and the column at which confidence is read.
    known = np.empty((n_views, _FIELDS, _LANES))
    tops = np.empty((n_views, _LANES), dtype=views.dtype)
    columns = np.empty((n_views, _LANES), dtype=np.int64)
    read_at = np.empty((n_views, _LANES), dtype=np.int64)
    for tile in range(start, stop, _LANES):
        count = min(_LANES, stop - tile)
        for v in range(n_views):
            for lane in range(_LANES):
                known[v, SCALE, lane] = begin
            _first_look(views[v, tile : tile + count], values, bottoms, sums, tops[v], columns[v], known[v])
        for v in range(n_views):
            for lane in range(count):
                at = columns[v if at_own_prediction else own, lane]
                read_at[v, lane] = at
                known[v, GAP, lane] = np.float64(views[v, tile + lane, at]) - np.float64(tops[v, lane])
        for step in range(len(step_views)):
            v = step_views[step]
            present, other = known[own], known[v]
            for lane in range(_LANES):
                verdicts[lane] = _verdict(present, other, lane, log_classes, saturated)
            for lane in range(count):
                if verdicts[lane] == _UNDECIDED:
                    i = tile + lane
                    verdicts[lane] = _decide(
                        views[own, i], views[v, i], lane, tops[own, lane], tops[v, lane], read_at[own, lane],
                        read_at[v, lane], present, other, exact, order, buffer,
                    )  # fmt: skip
                beta = betas[step, 2 * (columns[v, lane] == columns[own, lane]) + int(verdicts[lane])]
                known[own, SCALE, lane] = min(max(known[own, SCALE, lane] * beta, least), largest)
                known[v, SCALE, lane] = min(max(known[v, SCALE, lane] * beta, least), largest)
        for lane in range(count):
            out[tile + lane] = known[own, SCALE, lane]
