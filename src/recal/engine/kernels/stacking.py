"""Passes over stacked log-probabilities: what a fit of their weights needs to know, each in one reading of the rows.

Features are (n_views, n_samples, n_classes) float32; sums are in float64. Sums over samples are kept per chunk of rows
and added up by the caller, so that they do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np

from recal.engine.kernels.compiled import FAST, kernel
from recal.engine.kernels.rows import exp

CHUNK = 1024


@kernel(fastmath=FAST)
def stacked_probs(probs, start, stop, features, used, weights, offsets, labels, losses):  # type: ignore[no-untyped-def]
    """Fill softmax(sum of weight * feature + offsets) and each row's loss, minus the log of the truth's probability."""
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
            value = exp(scores[j] - top)
            scores[j] = value
            total += value
        losses[i] = np.log(total) - at_truth
        scale = 1.0 / total
        for j in range(n_classes):
            probs[i, j] = scores[j] * scale


@kernel(fastmath=FAST)
def moments(by_views, start, stop, by_classes, probs, features, used, labels, rows):  # type: ignore[no-untyped-def]
    """Fill each chunk's sums of the gradient and of the Hessian's blocks; `rows` are the samples' weights.

    by_views (n_chunks, m, m + 1): the gradient and the weights' block; by_classes (n_chunks, m + 2, n_classes): the
    offsets' gradient, the sum of probabilities, and the block between weights and offsets.
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
                total = 0.0
                for j in range(n_classes):
                    total += np.float64(probs[i, j]) * np.float64(row[j])
                means[v] = total
                by_views[chunk, v, 0] += share * (total - np.float64(row[labels[i]]))
            for v in range(m):
                row = features[used[v], i]
                for u in range(v + 1):
                    other = features[used[u], i]
                    total = 0.0
                    for j in range(n_classes):
                        total += np.float64(probs[i, j]) * np.float64(row[j]) * np.float64(other[j])
                    by_views[chunk, v, u + 1] += share * (total - means[v] * means[u])
                for j in range(n_classes):
                    by_classes[chunk, v + 2, j] += share * np.float64(probs[i, j]) * (np.float64(row[j]) - means[v])
            for j in range(n_classes):
                by_classes[chunk, 1, j] += share * np.float64(probs[i, j])
            by_classes[chunk, 0, labels[i]] -= share
        for j in range(n_classes):
            by_classes[chunk, 0, j] += by_classes[chunk, 1, j]


@kernel(fastmath=FAST)
def first_order(out, start, stop, probs, features, candidates, used, labels, rows):  # type: ignore[no-untyped-def]
    """Fill what each candidate's weight, still 0, would meet: slope, curvature, and the coupling with those in use.

    out (n_chunks, n_candidates, 2 + m).
    """
    n_samples, n_classes = probs.shape
    m = len(used)
    means = np.empty(m)
    for chunk in range(start, stop):
        out[chunk] = 0.0
        for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, n_samples)):
            share = rows[i]
            if share == 0.0:
                continue
            for u in range(m):
                other = features[used[u], i]
                total = 0.0
                for j in range(n_classes):
                    total += np.float64(probs[i, j]) * np.float64(other[j])
                means[u] = total
            for c in range(len(candidates)):
                row = features[candidates[c], i]
                mean = 0.0
                square = 0.0
                for j in range(n_classes):
                    weighted = np.float64(probs[i, j]) * np.float64(row[j])
                    mean += weighted
                    square += weighted * np.float64(row[j])
                out[chunk, c, 0] += share * (mean - np.float64(row[labels[i]]))
                out[chunk, c, 1] += share * (square - mean * mean)
                for u in range(m):
                    other = features[used[u], i]
                    total = 0.0
                    for j in range(n_classes):
                        total += np.float64(probs[i, j]) * np.float64(row[j]) * np.float64(other[j])
                    out[chunk, c, 2 + u] += share * (total - mean * means[u])
