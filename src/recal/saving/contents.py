"""Whether what a file holds can belong to the calibrator it names."""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from recal.errors import FileError
from recal.maps.plan import Plan
from recal.saving.records import ATTACHED

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator


def check_params(family: type[Calibrator], params: dict[str, Any]) -> None:
    """Refuse parameters that the constructor does not have, or not with such a value."""
    name, known = family.__name__, inspect.signature(family).parameters
    if missing := {key for key, value in known.items() if value.default is value.empty} - set(params):
        raise FileError(f"{name} needs the parameter {sorted(missing)[0]!r}")
    check_types(family, params)


def check_types(family: type, params: dict[str, Any]) -> None:
    """Refuse values that the constructor's annotations rule out."""
    hints = get_type_hints(family.__init__)  # type: ignore[misc]  # a class, not an instance
    for key, value in params.items():
        if key not in inspect.signature(family).parameters:
            raise FileError(f"{family.__name__} has no parameter {key!r}")
        if not fits(value, hints.get(key, Any)):
            raise FileError(f"{family.__name__}.{key} cannot be {_shown(value)}")


def check_state(family: type[Calibrator], state: dict[str, Any]) -> None:
    """Refuse attributes that are no fitted state of this class; what they must be, the calibrator itself checks."""
    known = fitted_names(family)
    for key in state:
        if key not in known:
            raise FileError(f"{family.__name__} has no fitted attribute {key!r}")
    if not isinstance(state.get("plan_", Plan()), Plan):
        raise FileError("`plan_` must be a plan")
    for key, kind in ATTACHED.items():
        if (attached := state.get(key)) is not None:
            if not isinstance(attached, kind):
                raise FileError(f"`{key}` must be a {kind.__name__}")
            if hasattr(attached, "check_classes"):
                attached.check_classes(len(state["classes_"]))


def fitted_names(family: type[Calibrator]) -> set[str]:
    """Return the names that this class's own code or annotations mention and that end in one underscore.

    Read from the code, so that a new calibrator need not repeat them, and nothing else can be set by a file.
    """
    names: set[str] = set()
    for base in family.__mro__:
        names.update(getattr(base, "__annotations__", {}))
        for member in vars(base).values():
            if isinstance(member, types.FunctionType):
                names.update(member.__code__.co_names)
    return {name for name in names if name.endswith("_") and not name.startswith("_") and not hasattr(family, name)}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the annotated kind; what no rule here can tell is let through to the calibrator's own."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if hint is Any:
        return True
    if origin is Annotated:
        return fits(value, get_args(hint)[0])
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(hint))
    if hint is type(None) or hint is None:
        return value is None
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if hint is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str)
    kind = origin or hint
    if isinstance(kind, type) and not getattr(kind, "_is_protocol", False):
        if issubclass(kind, Sequence):
            return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
        return isinstance(value, kind)
    return True


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
