"""Each kind of method has its own file; code that several methods share is in `solvers`.

`CALIBRATORS` is the family that the command line, the loader and the contract tests read, in the
order listed here. A new method is one file, one line here and one in `__init__.pyi`, which lists
the same names for type checkers. `find_method` and `name_of` translate the short names of the
command line and of tables, such as `svs (kept)`.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

from recal.calibrators.base import Calibrator
from recal.errors import InputError

# Each method with its short name, known before its code is loaded, and the module of this folder
# that defines it.
_HOMES = {
    "AutoCalibration": ("auto", "auto"),
    "BayesianBinning": ("bbq", "binning"),
    "BetaCalibration": ("beta", "logistic"),
    "CalibrationEnsemble": ("ensemble", "ensemble"),
    "DirichletCalibration": ("dir-odir", "scaling"),
    "EnsembleTemperatureScaling": ("ets", "temperature"),
    "GaussianProcessCalibration": ("gp", "gaussian_process"),
    "HistogramBinning": ("histogram", "binning"),
    "IsotonicCalibration": ("isotonic", "isotonic"),
    "IsotonicMulticlass": ("irm", "isotonic"),
    "IsotonicOneVsAll": ("irova-ts", "isotonic"),
    "MatrixScaling": ("ms-odir", "scaling"),
    "MutualInformationBinning": ("imax", "binning"),
    "OrderPreserving": ("iop", "order_preserving"),
    "PlattScaling": ("platt", "logistic"),
    "ReCal": ("recal", "recal"),
    "SplineCalibration": ("spline", "isotonic"),
    "StructuredMatrixScaling": ("sms", "scaling"),
    "StructuredVectorScaling": ("svs", "scaling"),
    "TemperatureScaling": ("ts", "temperature"),
    "VectorScaling": ("vs", "scaling"),
    "VennAbers": ("venn-abers", "isotonic"),
    "ViewAveraging": ("tta", "stacking"),
    "ViewStacking": ("stack", "stacking"),
}
# Reads signals of answers, not logits: it is saved like the others, but does not belong to
# `CALIBRATORS`.
_OF_SIGNALS = {"SignalCalibration": "signals", "PanelCalibration": "panel"}
__all__ = ["CALIBRATORS", "Calibrator", "calibrator_named", *_HOMES, *_OF_SIGNALS]

CALIBRATORS: tuple[type[Calibrator], ...]


def calibrator_named(name: str) -> type[Calibrator] | None:
    """Return one method of the family by its class's name, without loading the others."""
    home = _HOMES[name][1] if name in _HOMES else _OF_SIGNALS.get(name)
    return None if home is None else getattr(import_module(f"{__name__}.{home}"), name)


def short_names() -> dict[str, str]:
    """Return each method's short name with the name of its class."""
    return {short: name for name, (short, _) in _HOMES.items()}


def find_method(name: str) -> tuple[type[Calibrator], dict[str, Any]]:
    """Return the class that a name stands for, and the options that are part of the name.

    ``svs (kept)``, or ``svs:kept`` without brackets, is ``svs`` with ``answers="kept"``.

    Examples
    --------
    >>> from recal.calibrators import find_method
    >>> find_method("svs (kept)")
    (<class 'recal.calibrators.scaling.StructuredVectorScaling'>, {'answers': 'kept'})
    """
    by_name = short_names()
    match = re.fullmatch(r"\s*([^\s(:]+)\s*(?:\(\s*(\w+)\s*\)|:(\w+))?\s*", name)
    plain, answers = (match[1], match[2] or match[3]) if match else (name, None)
    if plain not in by_name:
        raise InputError(f"There is no method {name!r}; the methods are {', '.join(by_name)}.")
    method = calibrator_named(by_name[plain])
    if answers is None:
        return method, {}
    if answers not in ("kept", "free") or "answers" not in inspect.signature(method).parameters:
        raise InputError(
            f"{name!r} is no method: answers are 'kept' or 'free', and some methods never change them."
        )
    return method, {"answers": answers}


def name_of(calibrator: Calibrator) -> str:
    """Return a calibrator's name in tables: `svs`, or `svs (kept)` if that is not its default.

    Examples
    --------
    >>> from recal.calibrators import StructuredVectorScaling, name_of
    >>> name_of(StructuredVectorScaling(answers="kept"))
    'svs (kept)'
    """
    usual = inspect.signature(type(calibrator)).parameters.get("answers")
    answers = getattr(calibrator, "answers", None)
    short = calibrator.short_name
    return short if usual is None or answers == usual.default else f"{short} ({answers})"


def __getattr__(name: str) -> Any:
    if name == "CALIBRATORS":
        return tuple(calibrator_named(method) for method in _HOMES)
    if method := calibrator_named(name):
        return method
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
