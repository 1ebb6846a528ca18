"""Kernels over probabilities: check, find the largest, sum and bin in one pass.

Each kernel returns the first row that does not hold probabilities, or -1. The caller writes the error message.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.engine.compiled import kernel, part_of_kernel

Array = NDArray[Any]

# Rows of probabilities in float16 or float32 do not sum to one exactly.
SUM_TOLERANCE = 1e-3


@part_of_kernel(inline="always")
def find_bin(value: float, edges: Array) -> int:
    """The b with edges[b] < value <= edges[b + 1]; what lies outside belongs to the first or last bin."""
    n_bins = len(edges) - 1
    b = min(max(int(np.ceil(value * n_bins)) - 1, 0), n_bins - 1)
    # The guess rounds; the edges decide.
    while b > 0 and value <= edges[b]:
        b -= 1
    while b < n_bins - 1 and value > edges[b + 1]:
        b += 1
    return b


@kernel()
def bin_top_label(probs: Array, y: Array, edges: Array, counts: Array, confidences: Array, correct: Array) -> int:
    """Add every row's confidence and correctness to its bin."""
    n, k = probs.shape
    for i in range(n):
        total = 0.0
        low = high = probs[i, 0]
        best = 0
        for j in range(k):
            value = probs[i, j]
            total += value
            if value > high:
                high = value
                best = j
            if value < low:
                low = value
        if not (low >= 0.0 and high <= 1.0 and abs(total - 1.0) <= SUM_TOLERANCE):
            return i
        confidence = np.float64(high)
        b = find_bin(confidence, edges)
        counts[b] += 1
        confidences[b] += confidence
        correct[b] += best == y[i]
    return -1


@kernel()
def rank_rows(probs: Array, y: Array, confidence: Array, correct: Array) -> int:
    """Write each row's confidence and correctness."""
    n, k = probs.shape
    for i in range(n):
        total = 0.0
        low = high = probs[i, 0]
        best = 0
        for j in range(k):
            value = probs[i, j]
            total += value
            if value > high:
                high = value
                best = j
            if value < low:
                low = value
        if not (low >= 0.0 and high <= 1.0 and abs(total - 1.0) <= SUM_TOLERANCE):
            return i
        confidence[i] = high
        correct[i] = best == y[i]
    return -1


@kernel()
def truths(probs: Array, y: Array, out: Array) -> int:
    """Write the probability that each row gave the truth."""
    n, k = probs.shape
    for i in range(n):
        total = 0.0
        negative = 0
        for j in range(k):
            value = probs[i, j]
            total += value
            negative += not value >= 0.0
        if negative or not abs(total - 1.0) <= SUM_TOLERANCE:
            return i
        out[i] = probs[i, y[i]]
        if out[i] > 1.0:
            return i
    return -1


@kernel()
def score_rows(probs: Array, y: Array, confidence: Array, correct: Array, brier: Array, truth: Array) -> int:
    """Write each row's confidence, correctness, squared error and probability of the truth."""
    n, k = probs.shape
    for i in range(n):
        total = squares = 0.0
        low = high = probs[i, 0]
        best = 0
        for j in range(k):
            value = probs[i, j]
            total += value
            gap = np.float64(value) - (1.0 if j == y[i] else 0.0)
            squares += gap * gap
            if value > high:
                high = value
                best = j
            if value < low:
                low = value
        if not (low >= 0.0 and high <= 1.0 and abs(total - 1.0) <= SUM_TOLERANCE):
            return i
        confidence[i] = high
        correct[i] = best == y[i]
        brier[i] = squares
        truth[i] = probs[i, y[i]]
    return -1


@kernel()
def risk_coverage_area(sizes: Array, correct: Array) -> float:
    """Return what `metrics.scores.risk_coverage_area` does, from runs of equal confidence, least confident first."""
    seen = errors = area = 0.0
    for run in range(len(sizes) - 1, -1, -1):
        if sizes[run] == 0.0:
            continue
        harmonic = 0.0
        for j in range(int(sizes[run])):
            harmonic += 1.0 / (seen + j + 1.0)
        wrong = sizes[run] - correct[run]
        area += wrong + (errors - wrong / sizes[run] * seen) * harmonic
        seen += sizes[run]
        errors += wrong
    return area / seen


@kernel()
def bin_classwise(probs: Array, y: Array, edges: Array, block: Array, gaps: Array) -> int:
    """Add probability minus outcome to gaps[block[i], class, bin] for each row and class."""
    n, k = probs.shape
    for i in range(n):
        total = 0.0
        row = gaps[block[i]]
        for j in range(k):
            value = np.float64(probs[i, j])
            if not 0.0 <= value <= 1.0:
                return i
            total += value
            row[j, find_bin(value, edges)] += value - (1.0 if j == y[i] else 0.0)
        if not abs(total - 1.0) <= SUM_TOLERANCE:
            return i
    return -1


@kernel()
def look_up(scores, start, stop, edges, values, out):  # type: ignore[no-untyped-def]
    """Fill the value of the bin that each class's score falls into; a bin holds its upper edge.

    All edges are compared: with vector instructions this is faster than a binary search, whose branches cannot be
    predicted.
    """
    for i in range(start, stop):
        for j in range(scores.shape[1]):
            score, place = scores[i, j], 0
            for k in range(edges.shape[1]):
                place += edges[j, k] < score
            out[i, j] = values[j, place]
