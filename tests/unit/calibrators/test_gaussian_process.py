"""Calibration by a latent Gaussian process: what it learns, and what it refuses."""

from __future__ import annotations

import numpy as np
from scipy.special import log_softmax, softmax

from recal.calibrators import GaussianProcessCalibration


def draw(n, seed, bend=0.0):
    """Logits whose calibrated answer is softmax(x + bend * sin(x)), x being the log-probability."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2.5, size=(n, 4))
    x = log_softmax(logits, axis=1)
    calibrated = x + bend * np.sin(x)
    return (
        logits,
        (calibrated + rng.gumbel(size=calibrated.shape)).argmax(axis=1),
        softmax(calibrated, axis=1),
    )


def test_it_learns_a_bend_that_no_temperature_can_mend():
    logits, labels, _ = draw(4000, 0, bend=0.9)
    fresh, _, truth = draw(1000, 1, bend=0.9)
    model = GaussianProcessCalibration(random_state=0).fit(logits, labels)
    error = np.abs(model.predict_proba(fresh) - truth).mean()
    before = np.abs(softmax(model.map_.beta * fresh, axis=1) - truth).mean()
    assert error < 0.4 * before, (error, before)


def test_calibrated_logits_are_left_nearly_alone():
    logits, labels, truth = draw(4000, 0)
    model = GaussianProcessCalibration(random_state=0).fit(logits, labels)
    assert np.abs(model.predict_proba(logits) - truth).mean() < 0.01
