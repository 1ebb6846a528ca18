"""What people look at: tables of numbers, figures as values, and the report as one HTML page."""

from __future__ import annotations

from recal.reporting.figure_data import GroupStudy, group_study
from recal.reporting.page import report

__all__ = ["GroupStudy", "group_study", "report"]
