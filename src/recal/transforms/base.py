"""What a transformation is: a small immutable value that is called on a batch and named by its spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from recal.errors import InputError


@runtime_checkable
class Transform(Protocol):
    """Keeps the label and loses information. `str(transform)` is its spec, such as `zoom:0.37`.

    Equal specs mean equal results, so the spec is the key under which a view's logits are stored.
    """

    def __call__(self, inputs: Any, /) -> Any: ...

    def __hash__(self) -> int: ...


def format_strength(value: float) -> str:
    """Write a strength so that it reads back as the same number: 0.5, not 0.50."""
    return format(float(value), ".12g")


@dataclass(frozen=True)
class Named:
    """A user's own transformation: any callable under a name.

    The name survives a save and the callable does not, since code is never stored in a file. A loaded one must be
    given its callable again before it can be applied; two are equal when their names are.
    """

    name: str
    function: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.name or any(c in self.name for c in "+,\n"):
            raise InputError(f"A transformation's name must not be empty nor hold '+' or ',', got {self.name!r}.")

    def __str__(self) -> str:
        return self.name

    def __call__(self, inputs: Any) -> Any:
        if self.function is None:
            raise InputError(
                f"The transformation {self.name!r} is known by name only; its code is not stored in files. "
                f"Give it again: transforms={{{self.name!r}: your_function}}."
            )
        return self.function(inputs)
