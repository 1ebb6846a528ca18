"""The estimators of the literature, checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy_estimators import AccuracyEstimators
from recal import TemperatureScaling


def test_the_estimators_by_hand() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 1500)
    logits = 1.5 * (
        np.where(np.arange(1500) < 1000, 3.0, 2.0)[:, None] * np.eye(4)[y]
        + rng.normal(size=(1500, 4))
    )
    fit, new = logits[:1000], logits[1000:]
    calibrator = TemperatureScaling().fit(fit, y[:1000])
    before, after = (calibrator.predict_proba(one).max(axis=1) for one in (fit, new))
    right = (fit.argmax(axis=1) == y[:1000]).mean()
    estimates = AccuracyEstimators(fit, y[:1000])(new)
    assert estimates["average confidence"] == pytest.approx(after.mean())
    assert estimates["difference of confidences"] == pytest.approx(
        right + after.mean() - before.mean()
    )
    assert estimates["ATC"] == pytest.approx((after > np.quantile(before, 1 - right)).mean())
