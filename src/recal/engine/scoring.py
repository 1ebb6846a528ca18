"""The compiled pass that scores rows of probabilities; every metric reads its arrays."""

from __future__ import annotations

import numpy as np

from recal.engine.compiled import FAST, kernel


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
        confidence[i] = top
        correct[i] = right
        own[i] = truth
        brier[i] = squares - truth * truth + (1.0 - truth) * (1.0 - truth)
        valid[i] = low >= 0.0 and top <= 1.0 and abs(total - 1.0) <= tolerance
