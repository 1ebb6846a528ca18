"""Metrics are functions (probs, y) -> number.

A 1-D `probs` is the confidence of each answer, and `y` then says which answers are right.
`METRICS` lists them all for the tests; `LABELS` holds the names that `evaluate` and every table
show.
"""

from __future__ import annotations

from recal.metrics.calibration_error import BinTable as BinTable
from recal.metrics.calibration_error import adaptive_ece as adaptive_ece
from recal.metrics.calibration_error import bin_table as bin_table
from recal.metrics.calibration_error import classwise_ece as classwise_ece
from recal.metrics.calibration_error import debiased_ece as debiased_ece
from recal.metrics.calibration_error import ece as ece
from recal.metrics.calibration_error import mce as mce
from recal.metrics.calibration_error import smooth_ece as smooth_ece
from recal.metrics.evaluation import LABELS as LABELS
from recal.metrics.evaluation import CalibrationTest as CalibrationTest
from recal.metrics.evaluation import Evaluation as Evaluation
from recal.metrics.evaluation import calibration_test as calibration_test
from recal.metrics.evaluation import evaluate as evaluate
from recal.metrics.row_scores import aurc as aurc
from recal.metrics.row_scores import auroc as auroc
from recal.metrics.row_scores import brier as brier
from recal.metrics.row_scores import error_rate as error_rate
from recal.metrics.row_scores import ks_error as ks_error
from recal.metrics.row_scores import nll as nll

METRICS = tuple(globals()[name] for name in LABELS)
