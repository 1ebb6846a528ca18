"""Made-up classification problems: logits of a noisy, over-confident model and of its reaction to lossy views."""

from __future__ import annotations

import numpy as np


def problem(n_samples, n_classes, n_views=4, sharpness=3.0, seed=0, dtype=np.float32):
    """Return (logits, views, labels). Larger `sharpness` saturates the confidences."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n_samples)
    evidence = rng.normal(0, 1, (n_samples, n_classes))
    evidence[np.arange(n_samples), y] += 1.0 + np.log(n_classes) * 0.7
    views = [
        evidence * keep + rng.normal(0, 0.7, evidence.shape) * (1 - keep) for keep in np.linspace(0.4, 0.95, n_views)
    ]
    # A few wrong labels keep groups from being separable, where no temperature is best.
    wrong = rng.random(n_samples) < 0.15
    y[wrong] = rng.integers(0, n_classes, wrong.sum())
    return (sharpness * evidence).astype(dtype), [(sharpness * view).astype(dtype) for view in views], y
