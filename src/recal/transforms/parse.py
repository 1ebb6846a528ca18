"""From a spec such as `zoom:0.37` to the value it names."""

from __future__ import annotations

from typing import Any

from recal.errors import InputError
from recal.transforms.base import Named, Transform

# The one list of the built-in kinds, filled by one line per file.
TRANSFORMS: tuple[type, ...] = ()


def as_transform(value: Any) -> Transform:
    """Return the transformation that a spec, a transformation or a named callable stands for."""
    if isinstance(value, str):
        return Named(value)
    if isinstance(value, Transform):
        return value
    raise InputError(f"A transformation is a spec such as 'zoom:0.37' or a callable value, got {value!r}.")
