"""What people look at: the numbers behind each figure, the figures, and the report."""

from __future__ import annotations

from recal.reporting.data.groups import GroupStudy, group_study
from recal.reporting.page.html import report

__all__ = ["GroupStudy", "group_study", "report"]
