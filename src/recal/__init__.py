"""Calibrated confidence for trained classifiers.

Start with `Views` (what a fit reads), `ReCal` (the method) and `Plan` (what a fit produces).
Every public name is listed here and loads on first use, so that `import recal` stays light.
`__init__.pyi` lists the same names for type checkers; a test compares the two.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "2.0.0"

# Each public name with the module that defines it.
_HOMES = {
    "Views": "views",
    "read_views": "files.views",
    "pool": "transforms.pool",
    "collect": "collecting.local",
    "Group": "engine.grouping",
    "group": "engine.grouping",
    "Blend": "maps.blend",
    "Plan": "maps.steps",
    "Step": "maps.steps",
    "AutoCalibration": "calibrators.auto",
    "ReCal": "calibrators.recal",
    "PanelCalibration": "calibrators.panel",
    "SignalCalibration": "calibrators.signals",
    "TemperatureScaling": "calibrators.temperature",
    "ViewStacking": "calibrators.stacking",
    "evaluate": "metrics.evaluation",
    "decide": "decisions.guarantee",
    "Audit": "decisions.audit",
    "DecisionRule": "decisions.rule",
    "plan_cascade": "decisions.cascade",
    "prediction_sets": "decisions.sets",
    "profile": "decisions.profiles",
    "watch": "decisions.shift",
    "compare": "comparison.run",
    "report": "reporting.page",
    "reliability_diagram": "reporting.charts",
    "CalibratedClassifier": "collecting.classifier",
    "CalibratedModule": "export.torch_module",
    "export_onnx": "export.onnx_file",
    "docs_dir": "files.paths",
    "load": "files.saved",
    "save": "files.saved",
}
_MODULES = ("answers", "calibrators", "collecting", "decisions", "errors", "metrics", "transforms")
__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
