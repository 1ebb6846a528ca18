"""How good probabilities are: every metric is a function (probs, y) -> number.

`METRICS` is the one list of them, which the tests read; `LABELS` names those that `evaluate` and every table show.
"""

from __future__ import annotations

from recal.metrics.binned import BinTable, adaptive_ece, bin_table, classwise_ece, debiased_ece, ece, mce
from recal.metrics.consistency import CalibrationTest, calibration_test
from recal.metrics.decomposition import Decomposition, decompose
from recal.metrics.evaluation import LABELS, Evaluation, evaluate
from recal.metrics.proper import brier, error_rate, nll
from recal.metrics.ranked import aurc, auroc, ks_error
from recal.metrics.smooth import smooth_ece
from recal.metrics.streaming import StreamingMetrics

METRICS = (
    ece,
    mce,
    adaptive_ece,
    classwise_ece,
    debiased_ece,
    smooth_ece,
    ks_error,
    brier,
    nll,
    error_rate,
    aurc,
    auroc,
)

__all__ = [
    "LABELS",
    "METRICS",
    "BinTable",
    "CalibrationTest",
    "Decomposition",
    "Evaluation",
    "StreamingMetrics",
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
