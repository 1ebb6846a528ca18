"""Graded answers of any system: logs of language models, tables of signals, endpoints.

Names load on first use: an endpoint needs the package `openai`. `__init__.pyi` gives type checkers
the same names.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Each public name with the module that defines it, relative to this folder.
_HOMES = {
    "Endpoint": "endpoint",
    "endpoint_model": "models",
    "language_model": "models",
    "multiple_choice": "models",
    "read_log": "logs",
    "OptionScores": "scores",
    "join_scores": "scores",
    "read_table": ".files.tables",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
