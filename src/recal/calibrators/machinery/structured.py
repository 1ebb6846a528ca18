"""What structured vector and matrix scaling share: robust features, and strengths that follow the data's size."""

from __future__ import annotations

import numpy as np

from recal.calibrators.machinery.probabilities import softmax


def robust_log_probs(logits: np.ndarray, beta: float, n_fitted: int) -> np.ndarray:
    """Return log-probabilities at the fitted temperature, mixed with 1 part in n + 1 of the uniform answer.

    The mixture bounds them by -log((n + 1) K): no outlier can pull on the weights harder than that.
    """
    probs = softmax(np.multiply(logits, beta, dtype=np.float64))
    share = 1.0 / (n_fitted + 1.0)
    probs *= 1.0 - share
    probs += share / probs.shape[1]
    return np.log(probs, out=probs)
