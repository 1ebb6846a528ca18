"""What people look at: tables of numbers, figures as values, and the report as one HTML page."""

from __future__ import annotations

from recal.reporting.page import report
from recal.reporting.view_studies import GroupStudy, group_study

__all__ = ["GroupStudy", "group_study", "report"]
