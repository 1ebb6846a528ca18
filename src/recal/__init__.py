"""Calibrated confidence for trained classifiers.

Start with `Views` (what a fit reads), `ReCal` (the method) and `Plan` (what a fit produces).
Every public name is listed here and loads on first use, so that `import recal` stays light.
`__init__.pyi` says the same to type checkers; a test holds the two equal.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any
from warnings import warn

__version__ = "1.0.0rc1"

# Each public name with the module that defines it.
_HOMES = {
    "Views": "views",
    "read_views": "files.views",
    "pool": "transforms.pool",
    "collect": "collecting.local",
    "Group": "engine.grouping",
    "group": "engine.grouping",
    "Blend": "plan",
    "Plan": "plan",
    "Step": "plan",
    "AutoCalibration": "calibrators.auto",
    "ReCal": "calibrators.recal",
    "SignalCalibration": "calibrators.signals",
    "TemperatureScaling": "calibrators.temperature",
    "ViewStacking": "calibrators.stacking",
    "evaluate": "metrics.evaluation",
    "decide": "decisions.guarantee",
    "DecisionRule": "decisions.rule",
    "prediction_sets": "decisions.sets",
    "profile": "decisions.watching.profile",
    "watch": "decisions.watching.shift",
    "compare": "comparison.run",
    "report": "reporting.page",
    "reliability_diagram": "reporting.plots",
    "CalibratedClassifier": "collecting.classifier",
    "CalibratedModule": "export.torch_module",
    "export_onnx": "export.onnx_file",
    "docs_dir": "documentation",
    "load": "saving.saved",
    "save": "saving.saved",
}
_MODULES = ("answers", "calibrators", "collecting", "decisions", "errors", "metrics", "transforms")
__all__ = [*_HOMES, *_MODULES]

# Public names of 1.0.0rc1 that are no longer here; they work until 1.1.
_MOVED = {
    "calibrators": "LearnedAggregation BayesianBinning BetaCalibration ConsistencyCalibration DirichletCalibration "
    "EnsembleTemperatureScaling GaussianProcessCalibration HistogramBinning IsotonicCalibration IsotonicMulticlass "
    "IsotonicOneVsAll MatrixScaling MutualInformationBinning MATTA OrderPreserving PlattScaling SplineCalibration "
    "StructuredMatrixScaling StructuredVectorScaling VATTA VectorScaling ViewAveraging",
    "comparison": "Comparison",
    "decisions": "Decision PredictionSets",
    "errors": "ConvergenceWarning DoubtfulLabelsWarning FewSamplesWarning FileError InputError MissingExtraError "
    "NotFittedError RecalError",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name in _MODULES:
        found = import_module(f"{__name__}.{name}")
    else:
        return _moved(name)
    globals()[name] = found
    return found


def _moved(name: str) -> Any:
    for room, names in _MOVED.items():
        if name in names.split():
            moved = f"recal.{name} has moved: write `from recal.{room} import {name}`."
            told = f"{moved} The old name will be removed in version 1.1."
            warn(told, DeprecationWarning, stacklevel=3)
            return getattr(import_module(f"{__name__}.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
