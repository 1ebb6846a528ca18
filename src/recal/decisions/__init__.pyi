"""The names of `__init__.py` for type checkers and editors."""

from .audit import Audit as Audit, Check as Check
from .decision import Costs as Costs, Decision as Decision, Option as Option, Part as Part
from .crossfit import decide_crossfitted as decide_crossfitted
from .guarantee import RiskCurve as RiskCurve, decide as decide, risk_curve as risk_curve
from .cascade import (
    CascadeOutcome as CascadeOutcome,
    CascadeRule as CascadeRule,
    plan_cascade as plan_cascade,
)
from .rule import DecisionRule as DecisionRule
from .sets import PredictionSets as PredictionSets, prediction_sets as prediction_sets
from .profiles import Profile as Profile, profile as profile, watch as watch
from .following import (
    Finding as Finding,
    WatchResult as WatchResult,
    accept_followed as accept_followed,
    to_the_power as to_the_power,
)
