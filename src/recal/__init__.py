"""Honest confidence for trained classifiers.

Start with `Views` (what a fit reads), `ReCal` (the method) and `Plan` (what a fit produces).
Every public name is listed once, in `__init__.pyi`, and loads on first use, so that `import recal` stays light.
"""

from __future__ import annotations

import lazy_loader

__version__ = "1.0.0rc1"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
