"""The rules for a method's own parameters. Checked at fit, since scikit-learn's clone wants a bare __init__."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from recal.errors import FewSamplesWarning, InputError

# A curve learned from fewer samples, or fewer mistakes, of its class than this follows noise.
_SAMPLES_PER_CLASS = 10


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"must be a whole number of at least {least}", argument=name, came=f"got {value!r}")
    return int(value)


def check_number(name: str, value: Any, least: float = 0.0) -> float:
    """Return `value` as a finite float of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not least <= value < np.inf:
        raise InputError(f"must be a finite number of at least {least:g}", argument=name, came=f"got {value!r}")
    return float(value)


def check_strength(name: str, value: Any) -> float:
    """Return a penalty's strength, which must be positive for the answer to be finite and unique."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0.0 < value < np.inf:
        raise InputError(
            "must be a positive number", argument=name, came=f"got {value!r}", remedy="A tiny one stands for none"
        )
    return float(value)


def check_flag(name: str, value: Any) -> bool:
    """Return `value`, True or False: a word such as "no" would count as True."""
    if not isinstance(value, bool | np.bool_):
        raise InputError("must be True or False", argument=name, came=f"got {value!r}")
    return bool(value)


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return `value`, one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"must be one of {', '.join(map(repr, choices))}", argument=name, came=f"got {value!r}")
    return value


def check_random_state(value: Any) -> np.random.Generator:
    """Return the generator that `value`, a seed or a generator or None, stands for."""
    try:
        return np.random.default_rng(value)
    except (TypeError, ValueError):
        raise InputError(
            "must be a whole number of at least 0, a Generator or None", argument="random_state", came=f"got {value!r}"
        ) from None


def warn_if_few(method: object, n_samples: int, n_classes: int, mistakes: int | None = None) -> None:
    """Say clearly that a method with parameters of its own for every class has too few samples for them.

    `mistakes` is given by methods that were seen to do harm where the model makes few of them.
    """
    enough = _SAMPLES_PER_CLASS * n_classes
    few_mistakes = mistakes is not None and mistakes < enough
    if n_samples < enough or few_mistakes:
        have = f"{mistakes} mistakes among {n_samples} samples" if few_mistakes else f"{n_samples} samples"
        warnings.warn(
            f"{type(method).__name__} learns from each class alone, and {have} of {n_classes} classes are "
            f"fewer than {_SAMPLES_PER_CLASS} per class: expect worse probabilities than the model's own. "
            "Use a method that shares its parameters, such as TemperatureScaling or IsotonicMulticlass.",
            FewSamplesWarning,
            stacklevel=4,
        )
