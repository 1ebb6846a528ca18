"""Numerical work on logits: compiled loops, and the numpy code that uses them.

Kernel modules import numba, which takes longer than a command that reads a file and predicts.
Therefore ``from recal.engine import rows`` gives a stand-in that imports the module when one of its
kernels is first used. Other modules refer to a kernel through its module, as ``rows.fill_softmax``;
kernels import each other by name.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Module:
    """A module that is imported when one of its names is first used."""

    def __init__(self, name: str) -> None:
        self.__name__ = f"{__name__}.{name}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)  # later accesses skip __getattr__
        return value


def __getattr__(name: str) -> Any:
    if name not in ("images", "rows"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _Module(name)
