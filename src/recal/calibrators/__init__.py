"""One method, one file; what several methods share is in `machinery`.

`CALIBRATORS` is the family that the command line, the loader and the contract tests read: every class that
`recal/__init__.pyi` lists from a module in this folder, in that order. It loads on first use.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from recal.calibrators.base import Calibrator

__all__ = ["CALIBRATORS", "Calibrator"]

CALIBRATORS: tuple[type[Calibrator], ...]


@cache
def _homes() -> dict[str, str]:
    """Return each public method's module."""
    listed = ast.parse((Path(__file__).parents[1] / "__init__.pyi").read_text(encoding="utf-8"))
    return {
        alias.name: f"recal.{node.module}"
        for node in listed.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("calibrators.")
        for alias in node.names
    }


def calibrator_named(name: str) -> type[Calibrator] | None:
    """Return one method of the family by its class's name, without loading the others."""
    home = _homes().get(name)
    return None if home is None else getattr(import_module(home), name)


def __getattr__(name: str) -> Any:
    if name == "CALIBRATORS":
        return tuple(calibrator_named(method) for method in _homes())
    if method := calibrator_named(name):
        return method
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
