"""Kernels over rows: softmax, series of log-odds, the sums that a fit of stacking needs, and the
scores that metrics read.

Kernels take arrays and fill arrays for the rows `start` to `stop`. Rows do not affect each other,
so a row's result has the same bits in every batch. `recal.engine.over_rows` runs kernels on all
cores. Loops use indices because recent numba versions compile `for value in row` without vector
instructions, five times slower.
"""

from __future__ import annotations

import numpy as np

from recal.engine import FAST, kernel, part_of_kernel, series
from recal.engine.series import (
    ABOVE_ZERO,
    AT,
    BELOW_ONE,
    LOWEST,
    NUMBERS,
    REACH,
    RISE,
    SCALE,
    SCALE_RANGE,
    SHARPER,
    TOP,
)

# Rounding may make a weight above this as large as the largest weight.
CLOSE_TO_ONE = 1.0 - 1e-9
# Adding 1.5 * 2**52 leaves the nearest integer in the low bits of a float64: this way of rounding
# vectorises.
_ROUND = 6755399441055744.0
# ln 2 in two parts, the first with trailing zeros, so that k times it is exact.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# How many rows of a stack are summed together.
CHUNK = 1024
# How many rows take a step of ReCal together; their numbers stay in the first cache.
BLOCK = 64
# For rows of at most this many classes, all logits cost less than a series. numpy's overhead per
# row exceeds the time to read them, too.
SHORT = 32


@part_of_kernel(fastmath={"contract"})
def fast_exp(x):  # type: ignore[no-untyped-def]
    """Return e**x for x up to a few hundred, to one unit in the last place; exp(0) is exactly 1,
    and 0 below -708.

    Computed as 2**k e**r, with k the integer nearest to x / ln 2 and e**r a polynomial. numba's own
    exp is one call per value, which no compiler can vectorise.
    """
    bounded = x if x >= -708.0 else -708.0
    shifted = np.float64(bounded * 1.4426950408889634 + _ROUND)
    k = shifted - _ROUND
    r = bounded - k * _LN2_HIGH - k * _LN2_LOW
    p = r * (1.0 / 479001600.0) + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    bits = np.float64(p).view(np.int64) + (
        shifted.view(np.int64) << 52
    )  # k is added to the exponent
    power = np.int64(bits).view(np.float64)
    return power if x >= -708.0 else 0.0


_remainder, _rise = part_of_kernel(series.remainder), part_of_kernel(series.rise)
_expand, _fill_terms = part_of_kernel(series.expand), part_of_kernel(series.fill_terms)


@part_of_kernel(fastmath=FAST)
def read(row, column, numbers):  # type: ignore[no-untyped-def]
    """Read a row at its scale: fill the sums of w d**k, k = 0..8, over all classes but the
    likeliest, as terms.

    d = z - max z and w = exp(scale * d). The likeliest class is left out by a weight of 0 instead
    of splitting the loop: short loops are not vectorised.
    """
    top, scale = numbers[TOP], numbers[SCALE]
    m0 = m1 = m2 = m3 = m4 = m5 = m6 = m7 = m8 = 0.0
    for j in range(len(row)):
        drop = np.float64(row[j]) - top
        w = 0.0 if j == column else fast_exp(scale * drop)
        w1 = w * drop
        square = drop * drop
        w2, w3 = w * square, w1 * square
        w4, w5 = w2 * square, w3 * square
        w6, w7 = w4 * square, w5 * square
        m0 += w
        m1 += w1
        m2 += w2
        m3 += w3
        m4 += w4
        m5 += w5
        m6 += w6
        m7 += w7
        m8 += w6 * square
    numbers[1], numbers[2], numbers[3], numbers[4], numbers[5] = m0, m1, m2, m3, m4
    numbers[6], numbers[7], numbers[8], numbers[9] = m5, m6, m7, m8
    _fill_terms(numbers)


@kernel()
def read_rows(where, start, stop, logits, columns, numbers):  # type: ignore[no-untyped-def]
    """Fill numbers[:TERMS, k] with the terms of row where[k] at the scale numbers[SCALE, k]."""
    for k in range(start, stop):
        read(logits[where[k]], columns[k], numbers[:, k])


@kernel()
def fill_expansion(scales, start, stop, terms, tolerance, out):  # type: ignore[no-untyped-def]
    """Fill x, the first two derivatives of the log-partition, and a bound on the error of x, at
    these scales.

    Rows with a scale of 0 are skipped. If the slope may be wrong by more than the tolerance, x
    becomes NaN.
    """
    for i in range(start, stop):
        if scales[i] == 0.0:
            continue
        t = scales[i] - terms[AT, i]
        error = _remainder(t, terms[REACH - 1, i], terms[REACH, i])
        if not error * SHARPER * scales[i] <= tolerance * abs(t):
            out[0, i] = np.nan
            out[3, i] = np.inf
            continue
        above = _rise(t, terms[3:REACH, i])
        out[0, i], out[1, i], out[2, i] = _expand(t, terms[1:REACH, i], above)
        out[3, i] = error


@part_of_kernel()
def extremes(row):  # type: ignore[no-untyped-def]
    """Return the place of the largest value, the largest and the smallest value."""
    place, top, low = 0, row[0], row[0]
    for j in range(1, len(row)):
        value = row[j]
        place = j if value > top else place
        top = value if value > top else top
        low = value if value < low else low
    return place, np.float64(top), np.float64(low)


@kernel(fastmath=FAST)
def fill_softmax(logits, start, stop, columns, find, scales, probs, confidences, close):  # type: ignore[no-untyped-def]
    """Fill softmax(s * z), never exactly 0 or 1, and the probability at each row's largest logit.

    If `find` is set, the columns of the largest logits are filled too: for short rows numpy is
    slower. `close` marks rows in which rounding may have made another class equally probable.
    """
    for i in range(start, stop):
        row, out = logits[i], probs[i]
        if find:
            columns[i] = extremes(row)[0]
        top, scale = np.float64(row[columns[i]]), scales[i]
        total = rivals = 0.0
        for j in range(len(row)):
            weight = fast_exp(scale * (np.float64(row[j]) - top))
            out[j] = weight
            total += weight
            rivals += 1.0 if weight > CLOSE_TO_ONE else 0.0
        share = 1.0 / total
        for j in range(len(row)):
            prob = out[j] * share
            out[j] = prob if prob > ABOVE_ZERO else ABOVE_ZERO
        out[columns[i]] = confidences[i] = min(share, BELOW_ONE)
        close[i] = rivals > 1.0


@part_of_kernel()
def fill_exactly(drops, scales, gaps, values):  # type: ignore[no-untyped-def]
    """Fill the confidences of short rows at their scales; `drops` is (n_classes, n_rows)."""
    for r in range(len(values)):
        values[r] = 0.0
    for j in range(len(drops)):
        row = drops[j]
        for r in range(len(values)):
            values[r] += fast_exp(scales[r] * row[r])
    for r in range(len(values)):
        values[r] = fast_exp(scales[r] * gaps[r]) / values[r]


@part_of_kernel()
def fill_confidences(numbers, gaps, values, errors):  # type: ignore[no-untyped-def]
    """Fill the confidences of a block of rows at their current scales by the series, and bounds on
    their errors.

    The k-th number of row r is at ``numbers[k * BLOCK + r]``. Only with constant distances and a
    constant number of rows does the compiler use vector instructions.
    """
    n = numbers
    for r in range(BLOCK):
        scale = n[SCALE * BLOCK + r]
        t = scale - n[AT * BLOCK + r]
        c = (
            n[3 * BLOCK + r], n[4 * BLOCK + r], n[5 * BLOCK + r], n[6 * BLOCK + r],
            n[7 * BLOCK + r], n[8 * BLOCK + r], n[9 * BLOCK + r],
        )  # fmt: skip
        error = _remainder(t, c[6], n[REACH * BLOCK + r])
        # NaN, or a bound beyond 1/2, says nothing.
        error = error if error < 0.5 else 1e300
        power = fast_exp(min(n[BLOCK + r] + t * n[2 * BLOCK + r], 700.0))
        odds = power * (1.0 + _rise(t, c))
        share = 1.0 / (1.0 + odds)
        value = fast_exp(scale * gaps[r]) * share
        values[r] = value
        errors[r] = 2.0 * error * abs(value * odds * share)


@kernel()
def replay(scales, start, stop, stack, read_own, views, betas):  # type: ignore[no-untyped-def]
    """Take each original through all steps of ReCal, and fill its scale.

    `stack` holds the originals and their views, (1 + m, n, K). The rows of a block take each step
    together. Short rows are evaluated in full at every step. A long row is read when it is first
    compared, and again when its series cannot decide a comparison.
    """
    n_layers, _, n_classes = stack.shape
    short = n_classes <= SHORT
    numbers = np.empty((n_layers, NUMBERS * BLOCK))
    # How far the logits whose confidence is wanted, and all logits of short rows, lie below the
    # largest of their row.
    gaps = np.zeros((n_layers, BLOCK))
    drops = np.zeros((n_layers, n_classes if short else 0, BLOCK))
    columns, kept = np.zeros((n_layers, BLOCK), np.intp), np.zeros((n_layers, BLOCK), np.bool_)
    values, errors = np.zeros((2, BLOCK)), np.zeros((2, BLOCK))
    for first in range(start, stop, BLOCK):
        count = min(BLOCK, stop - first)
        numbers[:] = 0.0
        for layer in range(n_layers):
            for r in range(count):
                row = stack[layer, first + r]
                columns[layer, r], top, low = extremes(row)
                kept[layer, r] = columns[layer, r] == columns[0, r]
                gaps[layer, r] = 0.0 if read_own else np.float64(row[columns[0, r]]) - top
                own = numbers[layer, r::BLOCK]
                own[SCALE], own[TOP], own[LOWEST] = scales[first + r], top, low - top
                own[REACH] = np.inf
                for j in range(drops.shape[1]):
                    drops[layer, j, r] = np.float64(row[j]) - top
        for step in range(len(views)):
            layer = views[step] + 1
            pair = ((0, 0), (1, layer))
            for side, place in pair:
                if short:
                    own = numbers[place, SCALE * BLOCK :]
                    fill_exactly(drops[place], own, gaps[place], values[side, :count])
                else:
                    fill_confidences(numbers[place], gaps[place], values[side], errors[side])
            for r in range(count):
                for _ in range(2):
                    if abs(values[1, r] - values[0, r] - RISE) > errors[0, r] + errors[1, r]:
                        break
                    side, place = (1, layer) if errors[1, r] > errors[0, r] else (0, 0)
                    own = numbers[place, r::BLOCK]
                    read(stack[place, first + r], columns[place, r], own)
                    odds = fast_exp(min(own[1], 700.0))
                    values[side, r] = fast_exp(own[SCALE] * gaps[place, r]) / (1.0 + odds)
                    errors[side, r] = 0.0
            for r in range(count):
                beta = betas[step, 2 * kept[layer, r] + (not values[1, r] - values[0, r] > RISE)]
                for _, place in pair:
                    scale = numbers[place, SCALE * BLOCK + r] * beta
                    scale = min(max(scale, SCALE_RANGE[0]), SCALE_RANGE[1])
                    numbers[place, SCALE * BLOCK + r] = scale
        for r in range(count):  # assigning a slice would take a second longer to compile
            scales[first + r] = numbers[0, SCALE * BLOCK + r]


# Stacked log-probabilities: features are (n_views, n_samples, n_classes) float32, sums are float64.
# Sums over samples are kept per chunk of rows and added up by the caller, so that they do not
# depend on the number of threads.


@kernel(fastmath=FAST)
def stacked_probs(probs, start, stop, features, used, weights, offsets, labels, losses):  # type: ignore[no-untyped-def]
    """Fill softmax(sum of weight * feature + offsets) and each row's loss, minus the log of its
    label's probability.
    """
    n_classes = probs.shape[1]
    scores = np.empty(n_classes)
    for i in range(start, stop):
        for j in range(n_classes):
            scores[j] = offsets[j]
        for v in range(len(used)):
            row = features[used[v], i]
            weight = weights[v]
            for j in range(n_classes):
                scores[j] += weight * np.float64(row[j])
        top = scores[0]
        for j in range(1, n_classes):
            top = max(top, scores[j])
        at_truth = scores[labels[i]] - top
        total = 0.0
        for j in range(n_classes):
            value = fast_exp(scores[j] - top)
            scores[j] = value
            total += value
        losses[i] = np.log(total) - at_truth
        scale = 1.0 / total
        for j in range(n_classes):
            probs[i, j] = scores[j] * scale


@part_of_kernel(fastmath=FAST)
def weighted_sum(probs, row):  # type: ignore[no-untyped-def]
    total = 0.0
    for j in range(len(row)):
        total += np.float64(probs[j]) * np.float64(row[j])
    return total


@part_of_kernel(fastmath=FAST)
def weighted_product(probs, row, other):  # type: ignore[no-untyped-def]
    total = 0.0
    for j in range(len(row)):
        total += np.float64(probs[j]) * np.float64(row[j]) * np.float64(other[j])
    return total


@kernel(fastmath=FAST)
def moments(by_views, start, stop, by_classes, probs, features, used, labels, rows):  # type: ignore[no-untyped-def]
    """Fill each chunk's sums of the gradient and of the Hessian's blocks; `rows` are the samples'
    weights.

    by_views (n_chunks, m, m + 1): the gradient and the weights' block; by_classes (n_chunks, m + 2,
    n_classes): the offsets' gradient, the sum of probabilities, and the block between weights and
    offsets.
    """
    n_samples, n_classes = probs.shape
    m = len(used)
    means = np.empty(m)
    for chunk in range(start, stop):
        by_views[chunk] = 0.0
        by_classes[chunk] = 0.0
        for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, n_samples)):
            share = rows[i]
            if share == 0.0:
                continue
            for v in range(m):
                row = features[used[v], i]
                means[v] = weighted_sum(probs[i], row)
                by_views[chunk, v, 0] += share * (means[v] - np.float64(row[labels[i]]))
            for v in range(m):
                row = features[used[v], i]
                for u in range(v + 1):
                    total = weighted_product(probs[i], row, features[used[u], i])
                    by_views[chunk, v, u + 1] += share * (total - means[v] * means[u])
                for j in range(n_classes):
                    by_classes[chunk, v + 2, j] += (
                        share * np.float64(probs[i, j]) * (np.float64(row[j]) - means[v])
                    )
            for j in range(n_classes):
                by_classes[chunk, 1, j] += share * np.float64(probs[i, j])
            by_classes[chunk, 0, labels[i]] -= share
        for j in range(n_classes):
            by_classes[chunk, 0, j] += by_classes[chunk, 1, j]


@kernel(fastmath=FAST)
def first_order(out, start, stop, probs, features, candidates, used, labels, rows):  # type: ignore[no-untyped-def]
    """Fill the slope and curvature of each candidate's weight at 0, and its coupling with the
    weights in use.

    out (n_chunks, n_candidates, 2 + m).
    """
    n_samples, m = len(probs), len(used)
    means = np.empty(m)
    for chunk in range(start, stop):
        out[chunk] = 0.0
        for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, n_samples)):
            share = rows[i]
            if share == 0.0:
                continue
            for u in range(m):
                means[u] = weighted_sum(probs[i], features[used[u], i])
            for c in range(len(candidates)):
                row = features[candidates[c], i]
                mean = weighted_sum(probs[i], row)
                square = weighted_product(probs[i], row, row)
                out[chunk, c, 0] += share * (mean - np.float64(row[labels[i]]))
                out[chunk, c, 1] += share * (square - mean * mean)
                for u in range(m):
                    total = weighted_product(probs[i], row, features[used[u], i])
                    out[chunk, c, 2 + u] += share * (total - mean * means[u])


@kernel(fastmath=FAST)
def score_rows(probs, start, stop, labels, tolerance, confidence, correct, own, brier, valid):  # type: ignore[no-untyped-def]
    """Fill confidence, correctness, the label's probability and the Brier score of each row.

    `valid` says which rows are probabilities: all in [0, 1], and a sum of 1. Comparisons with NaN
    are false, so a row that holds one is not valid.
    """
    for i in range(start, stop):
        row, label = probs[i], labels[i]
        top = low = np.float64(row[0])
        total = squares = 0.0
        for j in range(len(row)):
            value = np.float64(row[j])
            top = value if value > top else top
            low = value if value < low else low
            total += value
            squares += value * value
        truth = np.float64(row[label])
        right = truth == top
        if right:  # among ties, the first class is the prediction
            for j in range(label):
                right = right and row[j] < top
        confidence[i], correct[i], own[i] = top, right, truth
        brier[i] = squares - 2.0 * truth + 1.0
        valid[i] = low >= 0.0 and top <= 1.0 and abs(total - 1.0) <= tolerance
