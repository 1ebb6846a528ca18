"""What people look at: the numbers behind each figure, the figures, and the report."""

from __future__ import annotations

from recal.reporting.data.groups import GroupStudy, group_study
from recal.reporting.page.html import write_comparison, write_evaluation

__all__ = ["GroupStudy", "group_study", "write_comparison", "write_evaluation"]
