"""Uses of calibrated confidence: which predictions to accept, which classes to keep, when to stop
trusting a model.

Start with `decide`: it finds the threshold above which predictions can be accepted. Its
`DecisionRule` is all that a runtime needs. Names load on first use, so reading a rule from a file
does not load the code that finds one. `__init__.pyi` lists the same names for type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The public names of each module.
_MODULES = {
    "audit": "Audit Check",
    "decision": "Decision",
    "outcome": "Costs Option Part",
    "group_risk": "GroupRisk risk_by_group",
    "guarantee": "decide",
    "crossfit": "decide_crossfitted",
    "cascade": "CascadeOutcome CascadeRule plan_cascade",
    "curves": "Decisions Gain Promise RiskCurve decide_each more_labels risk_curve",
    "rule": "DecisionRule",
    "sets": "PredictionSets SetReport evaluate_sets prediction_sets",
    "class_shares": "ClassMix adapt_to_class_mix class_mix",
    "profiles": "Profile profile",
    "follow": "Finding WatchResult accept_followed to_the_power",
    "shift": "watch",
    "stream": "StreamWatch",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
