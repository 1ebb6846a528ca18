import numpy as np
import pytest


@pytest.fixture
def problem():
    """Over-confident probabilities with their labels: 600 rows, 4 classes, some ties."""
    return make_problem(600, 4, seed=3)


def make_problem(n, k, seed, sharpness=2.0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * 1.5
    truth = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    y = (truth.cumsum(1) > rng.random((n, 1))).argmax(1)
    probs = np.exp(sharpness * logits)
    return probs / probs.sum(1, keepdims=True), y
