"""The rules for a method's own parameters. Checked at fit, since scikit-learn's clone wants a bare __init__."""

from __future__ import annotations

from typing import Any

import numpy as np

from recal.errors import InputError


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"`{name}` must be a whole number of at least {least}, got {value!r}.")
    return int(value)


def check_number(name: str, value: Any, least: float = 0.0) -> float:
    """Return `value` as a finite float of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not least <= value < np.inf:
        raise InputError(f"`{name}` must be a finite number of at least {least:g}, got {value!r}.")
    return float(value)


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return `value`, one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"`{name}` must be one of {', '.join(map(repr, choices))}, got {value!r}.")
    return value
