"""Transformations that do the same to inputs of this size, such as zooms to one number of pixels: paid once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from recal.collecting.fingerprint import digest
from recal.transforms import BuiltIn, Transform
from recal.transforms.base import shown


def find_twins(transforms: Sequence[Transform], inputs: Any) -> dict[int, int]:
    """Return, for each transformation that gives what an earlier one gives for all of a batch, the earlier one's place.

    The first sample alone tells which could be twins, at no cost worth speaking of; only those are compared for the
    whole batch. Views are bit for bit what they would be otherwise, since equal inputs have equal answers. Only
    recal's own kinds are asked: a sample alone gets from them what it gets in a batch.
    """
    if len(transforms) < 2 or not isinstance(inputs, list | np.ndarray):
        return {}
    firsts: dict[str, list[int]] = {}
    twins: dict[int, int] = {}
    for place, transform in enumerate(transforms):
        if not isinstance(transform, BuiltIn):
            continue
        alike = firsts.setdefault(digest(transform(inputs[:1])), [])
        for other in alike:
            if _equal(transform(inputs), transforms[other](inputs)):
                twins[place] = other
                break
        else:
            alike.append(place)
    if twins:
        place, other = next(iter(twins.items()))
        warnings.warn(
            f"{len(twins)} of the {len(transforms)} transformations have the same effect as another one on these "
            f"inputs, such as {shown(transforms[place])} and {shown(transforms[other])}. You can drop them.",
            UserWarning,
            stacklevel=2,
        )
    return twins


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(_equal(x, y) if isinstance(x, np.ndarray) else x == y for x, y in zip(a, b))
    if a.dtype == object:
        return _equal(list(a), list(b))
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
