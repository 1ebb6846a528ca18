"""What calibrated confidence is for: which predictions to accept, which classes to keep, when to stop trusting a model.

Start with `decide`: it finds the threshold above which predictions can be accepted. `DecisionRule` is all that a
runtime needs of it. Names load on first use, so reading a rule from a file does not load the code that finds one.
`__init__.pyi` tells type checkers the same.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Each public name, and the module that defines it.
_HOMES = {
    "Costs": "decision",
    "Decision": "decision",
    "GroupRisk": "decision",
    "Part": "decision",
    "risk_by_group": "decision",
    "decide": "guarantee",
    "decide_crossfitted": "guarantee",
    "Decisions": "curves",
    "Gain": "curves",
    "Promise": "curves",
    "RiskCurve": "curves",
    "decide_each": "curves",
    "more_labels": "curves",
    "risk_curve": "curves",
    "DecisionRule": "rule",
    "PredictionSets": "sets",
    "SetReport": "sets",
    "evaluate_sets": "sets",
    "prediction_sets": "sets",
    "ClassMix": "watching.class_mix",
    "adapt_to_class_mix": "watching.class_mix",
    "class_mix": "watching.class_mix",
    "Profile": "watching.profile",
    "profile": "watching.profile",
    "Finding": "watching.result",
    "WatchResult": "watching.result",
    "accept_followed": "watching.result",
    "to_the_power": "watching.result",
    "StreamWatch": "watching.shift",
    "watch": "watching.shift",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
