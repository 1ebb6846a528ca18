"""What people look at: the numbers behind each figure, the figures, and the report."""

from __future__ import annotations

from recal.report.groups import GroupStudy, group_study
from recal.report.html import write_comparison, write_evaluation

__all__ = ["GroupStudy", "group_study", "write_comparison", "write_evaluation"]
