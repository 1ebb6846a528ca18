"""One method, one file; what several methods share is in `machinery`.

`CALIBRATORS` is the family that the command line, the loader and the contract tests read, in the order listed here.
A new method is one file, one line here and one in `__init__.pyi`, which says the same to type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from recal.calibrators.base import Calibrator

# Each method with the module of this folder that defines it.
_HOMES = {
    "AffineScaling": "affine",
    "LearnedAggregation": "aggregate",
    "AutoCalibration": "auto",
    "BayesianBinning": "bbq",
    "BetaCalibration": "beta",
    "CalibrationEnsemble": "ensemble.ensemble",
    "CentredIsotonic": "centred_isotonic",
    "ConsistencyCalibration": "consistency",
    "DirichletCalibration": "dirichlet",
    "EnsembleTemperatureScaling": "ets",
    "GaussianProcessCalibration": "gaussian_process.estimator",
    "HistogramBinning": "histogram",
    "IsotonicCalibration": "isotonic",
    "IsotonicMulticlass": "irm",
    "IsotonicOneVsAll": "irova",
    "MatrixScaling": "matrix",
    "MutualInformationBinning": "imax",
    "MATTA": "matta",
    "OrderPreserving": "order_preserving.estimator",
    "PlattScaling": "platt",
    "QuadraticScaling": "quadratic",
    "ReCal": "recal",
    "SplineCalibration": "spline",
    "StructuredMatrixScaling": "structured_matrix",
    "StructuredVectorScaling": "structured_vector",
    "TemperatureScaling": "temperature",
    "VATTA": "vatta",
    "VectorScaling": "vector",
    "VennAbers": "venn_abers",
    "ViewAveraging": "view_averaging",
    "ViewStacking": "stacking.estimator",
}
__all__ = ["CALIBRATORS", "Calibrator", "calibrator_named", *_HOMES]

CALIBRATORS: tuple[type[Calibrator], ...]


def calibrator_named(name: str) -> type[Calibrator] | None:
    """Return one method of the family by its class's name, without loading the others."""
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name) if name in _HOMES else None


def __getattr__(name: str) -> Any:
    if name == "CALIBRATORS":
        return tuple(calibrator_named(method) for method in _HOMES)
    if method := calibrator_named(name):
        return method
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
