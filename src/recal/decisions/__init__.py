"""What honest confidence is for: which answers to accept, which classes to keep in play, when to stop trusting.

`decide` finds the threshold above which answers may be accepted; `DecisionRule` is what a runtime needs of it.
"""

from __future__ import annotations

from typing import Any

from recal.decisions.rule import DecisionRule

# What a file may hold besides calibrators and plans: dataclasses that check their own fields.
STORED: tuple[type[Any], ...] = (DecisionRule,)

__all__ = ["STORED", "DecisionRule"]
