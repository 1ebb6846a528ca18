"""Each kind of method has its own file; code that several methods share is in `solvers`.

`METHODS` names the family that the command line, the loader and the contract tests read. A new
method is one file, one line here and one in `__init__.pyi`, from which names load on first use.
`find_method` and `name_of` translate the short names of the command line and of tables, such as
`svs (kept)`.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from recal.errors import InputError
from recal.lazy import lazy_names

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator

_load, __dir__, __all__ = lazy_names(__name__, __file__)
# The class of each method by its short name, known before its code is loaded.
METHODS = {
    "auto": "AutoCalibration",
    "bbq": "BayesianBinning",
    "beta": "BetaCalibration",
    "ensemble": "CalibrationEnsemble",
    "dir-odir": "DirichletCalibration",
    "ets": "EnsembleTemperatureScaling",
    "gp": "GaussianProcessCalibration",
    "histogram": "HistogramBinning",
    "isotonic": "IsotonicCalibration",
    "irm": "IsotonicMulticlass",
    "irova-ts": "IsotonicOneVsAll",
    "ms-odir": "MatrixScaling",
    "imax": "MutualInformationBinning",
    "iop": "OrderPreserving",
    "platt": "PlattScaling",
    "recal": "ReCal",
    "spline": "SplineCalibration",
    "sms": "StructuredMatrixScaling",
    "svs": "StructuredVectorScaling",
    "ts": "TemperatureScaling",
    "vs": "VectorScaling",
    "venn-abers": "VennAbers",
    "tta": "ViewAveraging",
    "stack": "ViewStacking",
}


def find_method(name: str) -> tuple[type[Calibrator], dict[str, Any]]:
    """Return the class that a name stands for, and the options that are part of the name.

    ``svs (kept)``, or ``svs:kept`` without brackets, is ``svs`` with ``answers="kept"``.

    Examples
    --------
    >>> from recal.calibrators import find_method
    >>> find_method("svs (kept)")
    (<class 'recal.calibrators.scaling.StructuredVectorScaling'>, {'answers': 'kept'})
    """
    match = re.fullmatch(r"\s*([^\s(:]+)\s*(?:\(\s*(\w+)\s*\)|:(\w+))?\s*", name)
    plain, answers = (match[1], match[2] or match[3]) if match else (name, None)
    if plain not in METHODS:
        raise InputError(f"There is no method {name!r}; the methods are {', '.join(METHODS)}.")
    method = _load(METHODS[plain])
    if answers is None:
        return method, {}
    if answers not in ("kept", "free") or "answers" not in inspect.signature(method).parameters:
        raise InputError(
            f"{name!r} is no method: answers are 'kept' or 'free', and some methods never change "
            "them."
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
        return tuple(map(_load, METHODS.values()))
    return _load(name)
