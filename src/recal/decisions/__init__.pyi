"""The room's public names."""

from .decision import Costs as Costs, Decision as Decision, Part as Part, decide as decide
from .labels import Promise as Promise, more_labels as more_labels
from .profiles import Profile as Profile, profile as profile
from .rule import DecisionRule as DecisionRule
from .sets import PredictionSets as PredictionSets, SetReport as SetReport
from .sets import evaluate_sets as evaluate_sets, prediction_sets as prediction_sets
from .side_by_side import Decisions as Decisions, Gain as Gain, RiskCurve as RiskCurve
from .side_by_side import decide_each as decide_each, risk_curve as risk_curve
from .stream import StreamWatch as StreamWatch
from .watching import Finding as Finding, Watched as Watched
from .watching import estimate_accuracy as estimate_accuracy, retemper as retemper, watch as watch
