"""Honest confidence for trained classifiers.

Start with `Views` (what a fit reads), `ReCal` (the method) and `Plan` (what a fit produces).
Names load on first use, so that `import recal` costs little more than numpy.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

# Public name -> the module that defines it. A new name gets its line here and, for type checkers, in __init__.pyi.
_HOME = {
    "Views": "recal.views",
    "read_views": "recal.view_files",
    "Plan": "recal.plan",
    "Step": "recal.plan",
    "Group": "recal.grouping",
    "group": "recal.grouping",
    "pool": "recal.transforms",
    "collect": "recal.collect",
    "BayesianBinning": "recal.calibrators",
    "BetaCalibration": "recal.calibrators",
    "DirichletCalibration": "recal.calibrators",
    "EnsembleTemperatureScaling": "recal.calibrators",
    "GaussianProcessCalibration": "recal.calibrators",
    "HistogramBinning": "recal.calibrators",
    "IsotonicCalibration": "recal.calibrators",
    "IsotonicMulticlass": "recal.calibrators",
    "IsotonicOneVsAll": "recal.calibrators",
    "MatrixScaling": "recal.calibrators",
    "MutualInformationBinning": "recal.calibrators",
    "OrderPreserving": "recal.calibrators",
    "PlattScaling": "recal.calibrators",
    "ReCal": "recal.calibrators",
    "SplineCalibration": "recal.calibrators",
    "StructuredMatrixScaling": "recal.calibrators",
    "StructuredVectorScaling": "recal.calibrators",
    "TemperatureScaling": "recal.calibrators",
    "VectorScaling": "recal.calibrators",
    "ViewAveraging": "recal.calibrators",
    "RecalError": "recal.errors",
    "InputError": "recal.errors",
    "FileError": "recal.errors",
    "MissingExtraError": "recal.errors",
    "NotFittedError": "recal.errors",
    "ConvergenceWarning": "recal.errors",
    "FewSamplesWarning": "recal.errors",
    "evaluate": "recal.metrics",
    "compare": "recal.comparison",
    "Comparison": "recal.comparison",
    "CalibratedClassifier": "recal.runtime",
    "CalibratedModule": "recal.runtime.torch",
    "save": "recal.runtime",
    "load": "recal.runtime",
}
_MODULES = ("calibrators", "metrics", "transforms")

__all__ = ["__version__", *_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(f"recal.{name}")
    else:
        raise AttributeError(f"module 'recal' has no attribute {name!r}; its public names are {', '.join(__all__)}.")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """`recal.collect` is the function, also after the folder of that name was imported, which would take its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
