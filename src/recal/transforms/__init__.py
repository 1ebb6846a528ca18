"""Transformations that keep the label: most lose information, some show the input otherwise."""

from __future__ import annotations

from recal.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
