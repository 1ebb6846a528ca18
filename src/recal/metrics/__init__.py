"""Metrics are functions (probs, y) -> number.

A 1-D `probs` is the confidence of each answer, and `y` then says which answers are right.
`METRICS` lists them all for the tests; `LABELS` holds the names that `evaluate` and every table
show.
"""

from __future__ import annotations

from recal.metrics.calibration_error import (
    BinTable,
    adaptive_ece,
    bin_table,
    classwise_ece,
    debiased_ece,
    ece,
    mce,
    smooth_ece,
)
from recal.metrics.consistency import CalibrationTest, calibration_test
from recal.metrics.evaluation import LABELS, Evaluation, evaluate
from recal.metrics.scores import (
    Decomposition,
    aurc,
    auroc,
    brier,
    decompose,
    error_rate,
    ks_error,
    nll,
)

METRICS = tuple(globals()[name] for name in LABELS)

__all__ = [
    "LABELS",
    "METRICS",
    "BinTable",
    "CalibrationTest",
    "Decomposition",
    "Evaluation",
    "adaptive_ece",
    "aurc",
    "auroc",
    "bin_table",
    "brier",
    "calibration_test",
    "classwise_ece",
    "debiased_ece",
    "decompose",
    "ece",
    "error_rate",
    "evaluate",
    "ks_error",
    "mce",
    "nll",
    "smooth_ece",
]
