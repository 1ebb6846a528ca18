"""What type checkers and editors see: the names of `__init__.py`, each from its home."""

from .figure_data import GroupStudy as GroupStudy, group_study as group_study
from .page import report as report
