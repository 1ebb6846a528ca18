"""Calibrators on the same data, with paired differences: which is best, and is the difference real?

The folder is not called `compare`, since a module of that name would hide the function
`recal.compare`.
"""

from __future__ import annotations

from recal.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
