"""What calibrated confidence is for: which answers to accept, which classes to keep, when to stop trusting.

Begin with `decide`: the threshold above which answers may be accepted. `DecisionRule` is what a runtime needs of it.
Names load on first use: a file of a rule is read without what finds one. `__init__.pyi` says the same to type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Each public name with the module of this folder that defines it.
_HOMES = {
    "decide_crossfitted": "crossfit",
    "Costs": "decision",
    "Decision": "decision",
    "Part": "decision",
    "decide": "deciding",
    "Promise": "labels",
    "more_labels": "labels",
    "ClassMix": "following.class_mix",
    "adapt_to_class_mix": "following.class_mix",
    "class_mix": "following.class_mix",
    "Condition": "following.condition",
    "accept_followed": "following.powers",
    "to_the_power": "following.powers",
    "Profile": "profiles",
    "profile": "profiles",
    "DecisionRule": "rule",
    "PredictionSets": "sets",
    "SetReport": "sets",
    "evaluate_sets": "sets",
    "prediction_sets": "sets",
    "Decisions": "side_by_side",
    "Gain": "side_by_side",
    "RiskCurve": "side_by_side",
    "decide_each": "side_by_side",
    "risk_curve": "side_by_side",
    "StreamWatch": "stream",
    "Finding": "watching",
    "WatchResult": "watching",
    "estimate_accuracy": "watching",
    "watch": "watching",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
