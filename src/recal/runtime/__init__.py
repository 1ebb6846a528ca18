"""What runs after a fit: probabilities from a plan, and the files that carry one from place to place."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Loaded on first use, so that one runtime does not pay for another's packages.
_HOME = {
    "CalibratedClassifier": "recal.runtime.classifier",
    "save": "recal.runtime.files",
    "load": "recal.runtime.files",
}

__all__ = ["CalibratedClassifier", "load", "save"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'recal.runtime' has no attribute {name!r}.")
    return getattr(import_module(_HOME[name]), name)
