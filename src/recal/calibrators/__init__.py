"""One method, one file; what several methods share is in `solvers`.

`CALIBRATORS` is the family that the command line, the loader and the contract tests read, in the order listed here.
A new method is one file, one line here and one in `__init__.pyi`, which says the same to type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from recal.calibrators.base import Calibrator

# Each method with its short name, known before its code is loaded, and the module of this folder that defines it.
_HOMES = {
    "AffineScaling": ("affine", "affine"),
    "LearnedAggregation": ("aggregate", "aggregate"),
    "AutoCalibration": ("auto", "auto"),
    "BayesianBinning": ("bbq", "bbq"),
    "BetaCalibration": ("beta", "beta"),
    "CalibrationEnsemble": ("ensemble", "ensemble"),
    "CentredIsotonic": ("centred", "isotonic"),
    "ConsistencyCalibration": ("consistency", "consistency"),
    "DirichletCalibration": ("dir-odir", "matrix"),
    "EnsembleTemperatureScaling": ("ets", "ets"),
    "GaussianProcessCalibration": ("gp", "gaussian_process"),
    "HistogramBinning": ("histogram", "histogram"),
    "IsotonicCalibration": ("isotonic", "isotonic"),
    "IsotonicMulticlass": ("irm", "isotonic"),
    "IsotonicOneVsAll": ("irova-ts", "isotonic"),
    "MatrixScaling": ("ms-odir", "matrix"),
    "MutualInformationBinning": ("imax", "imax"),
    "MATTA": ("matta", "vatta"),
    "OrderPreserving": ("iop", "order_preserving"),
    "PlattScaling": ("platt", "platt"),
    "QuadraticScaling": ("quadratic", "affine"),
    "ReCal": ("recal", "recal"),
    "SplineCalibration": ("spline", "spline"),
    "StructuredMatrixScaling": ("sms", "structured"),
    "StructuredVectorScaling": ("svs", "structured"),
    "TemperatureScaling": ("ts", "temperature"),
    "VATTA": ("vatta", "vatta"),
    "VectorScaling": ("vs", "vector"),
    "VennAbers": ("venn-abers", "venn_abers"),
    "ViewAveraging": ("tta", "view_averaging"),
    "ViewStacking": ("stack", "stacking"),
}
# Reads signals of answers, not logits: it is saved like the others, and is no member of `CALIBRATORS`.
_OF_SIGNALS = {"SignalCalibration": "signals"}
__all__ = ["CALIBRATORS", "Calibrator", "calibrator_named", *_HOMES, *_OF_SIGNALS]

CALIBRATORS: tuple[type[Calibrator], ...]


def calibrator_named(name: str) -> type[Calibrator] | None:
    """Return one method of the family by its class's name, without loading the others."""
    home = _HOMES[name][1] if name in _HOMES else _OF_SIGNALS.get(name)
    return None if home is None else getattr(import_module(f"{__name__}.{home}"), name)


def short_names() -> dict[str, str]:
    """Return each method's short name with the name of its class."""
    return {short: name for name, (short, _) in _HOMES.items()}


def __getattr__(name: str) -> Any:
    if name == "CALIBRATORS":
        return tuple(calibrator_named(method) for method in _HOMES)
    if method := calibrator_named(name):
        return method
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
