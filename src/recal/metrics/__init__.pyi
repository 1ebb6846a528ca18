"""What type checkers and editors see: the names of `__init__.py`, each from its home."""

from .calibration_error import (
    BinTable as BinTable,
    adaptive_ece as adaptive_ece,
    bin_table as bin_table,
    classwise_ece as classwise_ece,
    debiased_ece as debiased_ece,
    ece as ece,
    mce as mce,
    smooth_ece as smooth_ece,
)
from .evaluation import (
    LABELS as LABELS,
    METRICS as METRICS,
    CalibrationTest as CalibrationTest,
    Evaluation as Evaluation,
    calibration_test as calibration_test,
    evaluate as evaluate,
)
from .row_scores import (
    aurc as aurc,
    auroc as auroc,
    brier as brier,
    error_rate as error_rate,
    ks_error as ks_error,
    nll as nll,
)
