"""Compiled loops: arrays in, arrays out; no classes, no checks, no files, no randomness.

``from recal.engine.kernels import bins`` gives a stand-in that imports the module, and numba with it, when one of its
kernels is first used: a command that only reads a file and answers costs a third without. Modules above this room
therefore take kernels by their module, as ``bins.some_kernel``; the kernels themselves import each other's names.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Below as many values nothing is compiled: numpy answers before a compiler has been loaded.
SMALL = 100_000


class _Module:
    """A module of kernels that is imported when it is first asked for a name."""

    def __init__(self, name: str) -> None:
        self.__name__ = f"{__name__}.{name}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = import_module(self.__name__)
        value = getattr(module, name)
        setattr(self, name, value)  # found at once the next time
        return value


def __getattr__(name: str) -> Any:
    from importlib.util import find_spec

    if name.startswith("__") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _Module(name)
