"""From any model to Views: adapters for models, sources of inputs, engines, and the store.

Names load on first use: some need Pillow, a calibrator, or a package that is not always installed.
`__init__.pyi` lists them.
"""

from __future__ import annotations

from recal.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
