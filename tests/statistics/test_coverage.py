"""How often intervals hold the truth, where the truth is known; `benchmarks/coverage.py` prints the
whole table.
"""

from __future__ import annotations

import pytest

from benchmarks.coverage import (
    PAIRS,
    SETTINGS,
    coverage,
    coverage_of_clusters,
    coverage_of_differences,
)

# Smooth ECE and KS error of 50 rows hold the truth in about 88 % of samples.
EXCEPTIONS = {"sharp, n=50": ("smooth_ece", "ks_error")}


@pytest.mark.parametrize(
    "name", ["rare, n=200", "unrelated, n=1,000", "99:1, n=200", "confident, n=50"]
)
def test_intervals_hold_the_truth_with_few_mistakes(name):
    """Bootstrap intervals held it in 26 % of samples with an error rate of 0.15 % and 200 rows."""
    for metric, (held, refused) in coverage(
        SETTINGS[name], 40, draws=100, population=200_000
    ).items():
        assert held >= 0.85, metric
        assert refused == 0 or metric == "auroc", metric


def test_differences_of_calibration_errors_hold_the_truth():
    """Noise raises the error of a calibrated model more than that of an overconfident one."""
    result = coverage_of_differences(
        "calibrated and sharp, n=200", 40, draws=80, population=200_000
    )
    assert result["ece"].held >= 0.82
    assert result["nll"].held >= 0.82


@pytest.mark.parametrize("unequal", [False, True])
def test_intervals_of_few_clusters_hold_the_truth(unequal):
    for metric, one in coverage_of_clusters(40, 30, unequal=unequal, draws=100).items():
        assert one.held >= 0.82, metric


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_intervals_hold_the_truth_in_every_setting(name):
    repeats = 200
    limit = 0.90 - 2.5 * (0.9 * 0.1 / repeats) ** 0.5
    for metric, (held, refused) in coverage(SETTINGS[name], repeats).items():
        assert held >= (0.78 if metric in EXCEPTIONS.get(name, ()) else limit), metric
        assert refused == 0 or metric == "auroc", metric


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_differences_hold_the_truth_in_every_setting(name):
    repeats = 200
    limit = 0.90 - 2.5 * (0.9 * 0.1 / repeats) ** 0.5
    for metric, (held, _) in coverage_of_differences(name, repeats).items():
        assert held >= limit, metric
