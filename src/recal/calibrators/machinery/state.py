"""What fitted state must be: shapes that belong together, numbers that a prediction can use.

A file may hold anything. Each method's `_check_state` says with these what its own parts must be, so that what was
read is known to answer with probabilities before it is used, and reading it runs no prediction.
"""

from __future__ import annotations

import inspect
import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.plan import Plan
from recal.transforms import Transform

# Products of two such numbers, and their sums, are still floats.
LARGEST = 1e100
SMALLEST = 1e-100
_KINDS: dict[str, tuple[type, ...]] = {"int": (int, np.integer), "float": (float, int, np.number), "bool": (bool,)}


def check_kinds(calibrator: Any) -> None:
    """Refuse values of another kind than the class's annotations say, and views that are no list of specs."""
    for family in type(calibrator).__mro__:
        for name, hint in inspect.get_annotations(family).items():
            kinds, value = _KINDS.get(str(hint)), vars(calibrator).get(name)
            if kinds is not None and name in vars(calibrator) and not _is(value, kinds):
                raise InputError(f"must be a {hint}", argument=name, came=f"got {type(value).__name__}")
    named = any("transforms_" in inspect.get_annotations(family) for family in type(calibrator).__mro__)
    specs = getattr(calibrator, "transforms_", None if named else [])
    if not isinstance(specs, list | tuple) or not all(isinstance(spec, str | Transform) for spec in specs):
        raise InputError("must be a list of transformations", argument="transforms_")
    if len({str(spec) for spec in specs}) != len(specs):
        raise InputError("names a transformation twice", argument="transforms_")


def check_plan(calibrator: Any, n_classes: int) -> None:
    """Refuse a plan of other classes, one whose betas together are beyond any float, and a beta that contradicts it."""
    plan = getattr(calibrator, "plan_", None)
    if not isinstance(plan, Plan):
        raise InputError("must be a plan", argument="plan_", came=f"got {type(plan).__name__}")
    beta = getattr(calibrator, "beta_", plan.start)
    if not _is(beta, _KINDS["float"]) or beta != plan.start:
        raise InputError(f"is {beta!r}, and `plan_` begins with {plan.start!r}", argument="beta_")
    widest = math.log(plan.start) + math.log(plan.finish) + sum(math.log(max(step.betas)) for step in plan.steps)
    blend = plan.blend
    numbers = [] if blend is None else [blend.own, blend.gated_own, blend.mixture, blend.gated_mixture]
    numbers += [] if blend is None else [weight for _, weight in blend.weights]
    numbers += [] if blend is None else [*blend.offsets, *blend.gated_offsets]
    if widest > math.log(LARGEST) or plan.start > LARGEST or any(abs(value) > LARGEST for value in numbers):
        raise InputError(f"holds numbers that together exceed {LARGEST:g}", argument="plan_")
    if blend is not None and blend.n_classes not in (None, n_classes):
        raise InputError(
            f"has offsets for {blend.n_classes} classes, and `classes_` names {n_classes}", argument="plan_"
        )


def part(
    calibrator: Any,
    name: str,
    shape: tuple[int | None, ...],
    low: float = -LARGEST,
    high: float = LARGEST,
    *,
    rising: bool = False,
) -> NDArray[np.float64]:
    """Return a fitted array of floats once its shape (None for any length from 1 on) and its numbers are right."""
    value = vars(calibrator).get(name)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        raise InputError("must be an array of floats", argument=name, came=f"got {type(value).__name__}")
    if len(value.shape) != len(shape) or any(
        have != want if want is not None else have < 1 for have, want in zip(value.shape, shape)
    ):
        wanted = ", ".join("n" if size is None else str(size) for size in shape)
        raise InputError(f"must have the shape ({wanted})", argument=name, came=f"got {value.shape}")
    if value.size and not low <= value.min() <= value.max() <= high:  # false for NaN, too
        raise InputError(
            f"must hold numbers from {low:g} to {high:g}", argument=name, came=f"got {value.min():g} to {value.max():g}"
        )
    if rising:
        check_rising(value, name)
    return value


def check_rising(value: NDArray[Any], name: str) -> None:
    if (value[..., 1:] < value[..., :-1]).any():
        raise InputError("must not fall", argument=name)


def number(calibrator: Any, name: str, low: float = SMALLEST, high: float = LARGEST) -> float:
    """Return a fitted number that lies where it must."""
    value = vars(calibrator).get(name)
    if not _is(value, _KINDS["float"]) or not low <= value <= high:
        raise InputError(f"must be a number from {low:g} to {high:g}", argument=name, came=f"got {value!r}")
    return float(value)


def curves(calibrator: Any, inputs: str, n_curves: int, prefix: str = "") -> list[slice]:
    """Return where each of the curves lies, which are packed end to end: inputs that rise, and shares of 0 to 1."""
    offsets = vars(calibrator).get(f"{prefix}offsets_")
    if not isinstance(offsets, np.ndarray) or offsets.dtype.kind not in "iu" or offsets.shape != (n_curves + 1,):
        raise InputError(f"must hold {n_curves + 1} whole numbers", argument=f"{prefix}offsets_")
    # Files may hold infinite edges: the last step has no end.
    places = part(calibrator, f"{prefix}{inputs}", (None,), -np.inf, np.inf)
    values = part(calibrator, f"{prefix}values_", (len(places),), 0.0, 1.0)
    if offsets[0] != 0 or offsets[-1] != len(values) or not (offsets[1:] > offsets[:-1]).all():
        raise InputError(f"must rise from 0 to {len(values)}", argument="offsets_", came=f"got {offsets.tolist()[:4]}")
    found = [slice(int(first), int(last)) for first, last in pairwise(offsets)]
    for place in found:
        check_rising(places[place], inputs)
    return found


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool | np.bool_))
