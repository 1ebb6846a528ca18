"""The beta = 1/T of temperature scaling, for methods that begin with one."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

from recal.calibrators.probabilities import log_softmax
from recal.checks import Floats, Labels


def fit_beta(logits: Floats, labels: Labels) -> float:
    """Return the beta in [1e-3, 100] that minimises the negative log-likelihood of the labels."""
    rows = np.arange(len(labels))

    def loss(log_beta: float) -> float:
        return float(-log_softmax(logits, float(np.exp(log_beta)))[rows, labels].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(np.log(1e-3), np.log(100.0)), method="bounded").x))
