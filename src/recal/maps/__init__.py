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
    "AdaptiveMixture": "aggregation",
    "Affine": "scaling",
    "BetaCurves": "curves",
    "Bins": "curves",
    "Brackets": "curves",
    "GapNetwork": "order",
    "InformativeBins": "curves",
    "LatentFunction": "scaling",
    "Linear": "scaling",
    "LinearSignals": "signals",
    "Lines": "curves",
    "LogisticCurves": "curves",
    "Mixture": "aggregation",
    "RisingCurve": "order",
    "SharedLine": "curves",
    "SignalMap": "signals",
    "SignalScale": "signals",
    "SplineSignals": "signals",
    "Steps": "curves",
    "StructuredAffine": "scaling",
    "StructuredLinear": "scaling",
    "Temperature": "scaling",
    "TemperatureMixture": "scaling",
    "TopLine": "curves",
    "TreeSignals": "signals",
    "ViewMean": "aggregation",
    "ViewSum": "aggregation",
    "Votes": "aggregation",
}


def map_named(name: str) -> type[Map] | None:
    """Return a map's class by its name, without loading the others; None if there is no such map."""
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name) if name in _HOMES else None
