"""Graded answers of any system: logs of language models, tables of signals, endpoints.

Names load on first use: an endpoint needs the package `openai`. `__init__.pyi` lists them.
"""

from __future__ import annotations

from recal.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
