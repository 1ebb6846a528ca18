"""Metrics are functions (probs, y) -> number.

A 1-D `probs` is the confidence of each answer, and `y` then says which answers are right.
`METRICS` lists them all; `LABELS` holds the names that `evaluate` and every table show.
"""

from __future__ import annotations

from recal.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
