"""Estimators of accuracy without labels from the literature, to compare with the estimate of
`recal.watch`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal import TemperatureScaling
from recal.decisions.class_shares import class_shares

Vector = NDArray[np.float64]

# The recall of each class is smoothed with this many samples of the overall accuracy.
_PRIOR_SAMPLES = 5.0


class AccuracyEstimators:
    """Average confidence, difference of confidences, ATC (Garg et al., 2022) and prior shift.

    "prior shift" holds if nothing but the class shares has changed. The others treat any change as
    damage.
    """

    def __init__(self, logits: Vector, labels: NDArray[np.intp]) -> None:
        self._calibrator = TemperatureScaling().fit(logits, labels)
        confidence = self._calibrator.predict_proba(logits).max(axis=1)
        right = logits.argmax(axis=1) == labels
        self._accuracy, self._confidence = float(right.mean()), float(confidence.mean())
        self._cut = float(np.quantile(confidence, 1 - self._accuracy))
        counts = np.bincount(labels, minlength=logits.shape[1])
        hits = np.bincount(labels, right, minlength=logits.shape[1])
        self._shares = counts / len(labels)
        self._recalls = (hits + _PRIOR_SAMPLES * self._accuracy) / (counts + _PRIOR_SAMPLES)

    def __call__(self, logits: Vector) -> dict[str, float]:
        """Return the estimates by name."""
        probs = self._calibrator.predict_proba(logits)
        confidence = probs.max(axis=1)
        moved = self._accuracy + confidence.mean() - self._confidence
        return {
            "average confidence": float(confidence.mean()),
            "difference of confidences": float(np.clip(moved, 0.0, 1.0)),
            "ATC": float((confidence > self._cut).mean()),
            "prior shift": float(class_shares(probs, self._shares) @ self._recalls),
        }
