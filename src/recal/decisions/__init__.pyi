"""What type checkers and editors see: the names of `__init__.py`, each from its home."""

from .crossfit import decide_crossfitted as decide_crossfitted
from .deciding import decide as decide
from .decision import Costs as Costs, Decision as Decision, Part as Part
from .labels import Promise as Promise, more_labels as more_labels
from .following.class_mix import (
    ClassMix as ClassMix,
    adapt_to_class_mix as adapt_to_class_mix,
    class_mix as class_mix,
)
from .following.condition import Condition as Condition
from .following.powers import accept_followed as accept_followed, to_the_power as to_the_power
from .profiles import Profile as Profile, profile as profile
from .rule import DecisionRule as DecisionRule
from .sets import (
    PredictionSets as PredictionSets,
    SetReport as SetReport,
    evaluate_sets as evaluate_sets,
    prediction_sets as prediction_sets,
)
from .side_by_side import (
    Decisions as Decisions,
    Gain as Gain,
    RiskCurve as RiskCurve,
    decide_each as decide_each,
    risk_curve as risk_curve,
)
from .stream import StreamWatch as StreamWatch
from .watching import (
    Finding as Finding,
    WatchResult as WatchResult,
    estimate_accuracy as estimate_accuracy,
    watch as watch,
)
