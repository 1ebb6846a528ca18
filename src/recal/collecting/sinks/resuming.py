"""Whether a store that is there can be resumed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

# How far two machines' answers may lie apart, in units of the last place of the largest logit: sums of a few thousand
# products in another order differ by this much, and no two models agree so well.
_ROUNDING_UNITS = 64


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def differ_by_rounding(old: NDArray[Any], new: NDArray[Any]) -> bool:
    """Whether two answers may come from one model on two machines: they agree but for the last bits."""
    if not old.size:
        return True
    unit = float(np.finfo(old.dtype).eps) * max(float(np.abs(old).max()), float(np.finfo(old.dtype).tiny))
    return bool(np.abs(old.astype(np.float64) - new.astype(np.float64)).max() <= _ROUNDING_UNITS * unit)
