"""Uses of calibrated confidence: which predictions to accept, which classes to keep, when to stop
trusting a model.

Start with `decide`: it finds the threshold above which predictions can be accepted. Its
`DecisionRule` is all that a runtime needs. Names load on first use, so reading a rule from a file
does not load the code that finds one. `__init__.pyi` lists them.
"""

from __future__ import annotations

from recal.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
