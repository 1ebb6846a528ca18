"""The room's public names."""

from .decide import Costs as Costs
from .decide import Decision as Decision
from .decide import Part as Part
from .decide import decide as decide
from .rule import DecisionRule as DecisionRule
