"""What people look at: tables of numbers, figures as values, and the report as one HTML page."""

from __future__ import annotations

from recal.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
