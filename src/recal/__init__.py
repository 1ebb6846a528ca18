"""Calibrated confidence for trained classifiers.

Start with `Views` (what a fit reads), `ReCal` (the method) and `Plan` (what a fit produces).
Public names load on first use, so that `import recal` stays light; `__init__.pyi` lists them.
"""

from __future__ import annotations

from recal.lazy import lazy_names

__version__ = "2.0.0"
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
