"""Calibrators on the same data, with paired differences: which is best, and is the difference real?

The folder is not called `compare`, since a module of that name would hide the function
`recal.compare`.
"""

from __future__ import annotations

from recal.comparison.recommendation import Judgement, Recommendation, judge, recommend
from recal.comparison.results import Comparison, Row
from recal.comparison.run import compare, compare_probs

__all__ = [
    "Comparison",
    "Judgement",
    "Recommendation",
    "Row",
    "compare",
    "compare_probs",
    "judge",
    "recommend",
]
