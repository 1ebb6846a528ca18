"""Other libraries' calibrators with one interface: fit(logits, labels) returns a function from
logits to probabilities.

A library that is not installed, or has changed, is left out, and the reason is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import recal

Predict = Callable[[np.ndarray], Any]
Fit = Callable[[np.ndarray, np.ndarray], Predict]


def float32_softmax(logits: np.ndarray, beta: float = 1.0) -> np.ndarray:
    """The least that anybody does: a softmax of scaled logits in numpy, nothing checked."""
    probs = logits * np.float32(beta)
    probs -= probs.max(axis=1, keepdims=True)
    np.exp(probs, out=probs)
    probs /= probs.sum(axis=1, keepdims=True)
    return probs


def ours(calibrator: recal.calibrators.Calibrator) -> Fit:
    return lambda logits, labels: calibrator.fit(logits, labels).predict_proba


def of_numpy(logits: np.ndarray, labels: np.ndarray) -> Predict:
    beta = recal.TemperatureScaling().fit(logits, labels).beta_
    return lambda given: float32_softmax(given, beta)


def of_sklearn() -> Fit:
    from sklearn.calibration import _TemperatureScaling

    return lambda logits, labels: _TemperatureScaling().fit(logits, labels).predict


def of_probmetrics(name: str) -> Fit:
    import torch
    from probmetrics import calibrators
    from probmetrics.distributions import CategoricalLogits

    def fit(logits: np.ndarray, labels: np.ndarray) -> Predict:
        model = getattr(calibrators, name)()
        model.fit_torch(CategoricalLogits(torch.as_tensor(logits)), torch.as_tensor(labels))
        return lambda given: (
            model.predict_proba_torch(CategoricalLogits(torch.as_tensor(given))).get_probs().numpy()
        )

    return fit


def of_netcal() -> Fit:
    from netcal.binning import HistogramBinning

    def fit(logits: np.ndarray, labels: np.ndarray) -> Predict:
        model = HistogramBinning()
        model.fit(float32_softmax(logits), labels)
        return lambda given: model.transform(float32_softmax(given))

    return fit


def installed(builders: dict[str, Callable[[], Fit]]) -> dict[str, Fit]:
    """Return those that can be built."""
    found = {}
    for name, build in builders.items():
        try:
            found[name] = build()
        except Exception as error:  # a peer that is missing or has changed must not stop the others
            print(f"{name} is left out: {type(error).__name__}: {error}", file=sys.stderr)
    return found
