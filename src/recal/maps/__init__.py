"""What a fitted calibrator computes: frozen values with one pure function on arrays of any library.

`base.py` says what a map is, `arrays.py` holds the functions that several maps share, and `guard.py` keeps predictions.
A new map is one class and one line here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recal.maps.base import Map

# Each map that a file may hold, with the module that defines it.
_HOMES = {
    "Affine": "scaling",
    "LinearSignals": "signals",
    "SignalMap": "signals",
    "SignalScale": "signals",
    "SplineSignals": "signals",
    "Temperature": "scaling",
    "TreeSignals": "signals",
}


def map_named(name: str) -> type[Map] | None:
    """Return a map's class by its name, without loading the others; None if there is no such map."""
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name) if name in _HOMES else None
