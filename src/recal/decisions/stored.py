"""What a file may hold besides calibrators and plans: dataclasses of plain values that check their own fields."""

from __future__ import annotations

from typing import Any

from recal.decisions.rule import DecisionRule

STORED: tuple[type[Any], ...] = (DecisionRule,)
