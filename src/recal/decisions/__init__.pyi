"""The room's public names."""

from .decide import Costs as Costs, Decision as Decision, Part as Part, decide as decide
from .rule import DecisionRule as DecisionRule
from .sets import PredictionSets as PredictionSets, SetReport as SetReport
from .sets import evaluate_sets as evaluate_sets, prediction_sets as prediction_sets
from .side_by_side import Decisions as Decisions, Gain as Gain, RiskCurve as RiskCurve
from .side_by_side import decide_each as decide_each, risk_curve as risk_curve
