"""How often intervals hold the truth, where the truth is known; `benchmarks/coverage.py` prints the whole table."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "coverage.py"


@pytest.mark.slow
@pytest.mark.parametrize("sharpness", [1.0, 1.5])
def test_intervals_hold_the_truth_about_as_often_as_they_say(sharpness):
    spec = importlib.util.spec_from_file_location("coverage_benchmark", SCRIPT)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    held = benchmark.coverage(2000, sharpness, repeats=150, draws=300)
    for name, share in held.items():
        assert share >= 0.85, name
    for name in ("ece", "brier", "error_rate", "aurc", "ks_error"):
        assert share_near(held[name]), name


def share_near(share):
    # 150 repeats know a share of 0.95 to 0.018; honest models are held a little more often than promised.
    return 0.89 <= share <= 1.0
