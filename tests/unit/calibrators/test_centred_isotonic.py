"""Centred isotonic regression against its definition."""

from __future__ import annotations

import numpy as np
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_auc_score

from recal.calibrators import CentredIsotonic, IsotonicCalibration


def test_each_level_of_isotonic_regression_stands_at_the_mean_score_of_its_samples():
    rng = np.random.default_rng(0)
    z = rng.normal(size=400)
    y = (rng.random(400) < 1 / (1 + np.exp(-z))).astype(int)
    level = IsotonicRegression().fit_transform(z, y)
    values = np.unique(level)
    centres = np.array([z[level == value].mean() for value in values])
    if values[0] == 0:
        centres[0] = z[level == 0].max()
    if values[-1] == 1:
        centres[-1] = z[level == 1].min()
    model = CentredIsotonic(penalty=0.0).fit(np.stack([np.zeros(400), z], axis=1), y)
    second = slice(model.offsets_[1], model.offsets_[2])
    np.testing.assert_allclose(model.knots_[second], centres, atol=1e-12)
    np.testing.assert_allclose(model.values_[second], values, atol=1e-12)


def test_the_ranking_suffers_less_than_by_isotonic_regression():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(4000, 1)) * [[0.0, 1.5]]
    y = (rng.random(4000) < 1 / (1 + np.exp(-z[:, 1]))).astype(int)
    fit, test = slice(0, 300), slice(300, None)
    plain, centred = (
        roc_auc_score(y[test], method().fit(z[fit], y[fit]).predict_proba(z[test])[:, 1])
        for method in (IsotonicCalibration, CentredIsotonic)
    )
    assert centred > plain
