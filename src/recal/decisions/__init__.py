"""What honest confidence is for: which answers to accept, which classes to keep in play, when to stop trusting.

Begin with `decide`: the threshold above which answers may be accepted. `DecisionRule` is what a runtime needs of it.
Names are listed in `__init__.pyi` and load on first use: a file of a rule is read without what finds one.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
