"""What a fitted calibrator computes: frozen values with one pure function on arrays of any library.

`base.py` defines a map, `arrays.py` has the functions that several maps share, and `guard.py` keeps
predictions. A new map is one class in one of the modules below.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recal.maps.base import Map

# The modules that define maps that a file may contain.
_HOMES = ("scaling", "curves", "blend", "signals")


def map_named(name: str) -> type[Map] | None:
    """Return a map's class by its name; None if there is no such map."""
    for home in _HOMES:
        module = import_module(f"{__name__}.{home}")
        family = vars(module).get(name)
        if (
            isinstance(family, type)
            and issubclass(family, module.Map)
            and family.__module__ == module.__name__
        ):
            return family
    return None
