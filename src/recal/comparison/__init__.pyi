"""What type checkers and editors see: the names of `__init__.py`, each from its home."""

from .recommendation import (
    Judgement as Judgement,
    Recommendation as Recommendation,
    judge as judge,
    recommend as recommend,
)
from .results import Comparison as Comparison, Row as Row
from .run import compare as compare, compare_probs as compare_probs
