"""Transformations: small immutable values that are called on a batch of inputs and have a text form, the spec."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

from recal.errors import InputError
from recal.schema import Kind, ListOf, Number, Sizes, field_kinds


@runtime_checkable
class Transform(Protocol):
    """A change to an input that keeps its label. `str(transform)` is its spec, such as `zoom:0.37`.

    Equal specs mean equal results, so the spec is the key under which a view's logits are stored.
    """

    def __call__(self, inputs: Any, /) -> Any: ...

    def __hash__(self) -> int: ...


def format_strength(value: float) -> str:
    """Write a number so that it reads back as the same number, and without a '+', which joins specs."""
    number = tidy(value)
    short = format(number, ".12g")
    return (short if float(short) == number else repr(number)).replace("e+", "e")


def shown(transform: object) -> str:
    """Return a spec for people, without the numbers for each column of a table that `median` and others have.

    Examples
    --------
    >>> from recal.transforms.base import shown
    >>> shown("median:0.35:medians=0.71;3;2;61.8;2458;5.72"), shown("zoom:0.8:layout=NHWC")
    ('median:0.35', 'zoom:0.8:layout=NHWC')
    """
    return ":".join(part for part in str(transform).split(":") if ";" not in part)


def tidy(value: float) -> float:
    """Return a number without rounding errors in its last digits: 0.3 for 0.1 + 0.2, but 2/3 unchanged."""
    number = float(value) + 0.0  # turns -0.0 into 0.0
    short = float(format(number, ".12g"))
    return short if abs(short - number) <= 4 * math.ulp(number) else number


class BuiltIn(ABC):
    """The base of the transformations that come with recal.

    A new one is a frozen dataclass and one line in `TRANSFORMS`. Its first field is the strength; the other fields are
    options with defaults, and their annotations say what is allowed (`recal.schema`). It sets the class variables below
    and defines `__call__`. The spec is ``kind:strength[:option=value]...``, without options at their defaults and
    without the `usual` strength.
    """

    __slots__ = ()

    kind: ClassVar[str]
    modality: ClassVar[str]
    """The kind of input: image, video, series, audio, text or tabular."""
    assumes: ClassVar[str]
    """What must be true of a task so that the label is kept, for people who choose a pool."""
    keeps_information: ClassVar[bool] = False
    """Whether the result has as much information as the original, as a mirrored image has; otherwise detail is lost.

    ReCal measures how a sample reacts to lost detail and never draws such kinds by itself; stacking prefers them."""
    has_strength: ClassVar[bool] = True
    """Whether the first field is a strength; a kind without a strength has only one form."""
    usual: ClassVar[float | None] = None
    """The strength of a spec that gives none, such as `shift`; None if a spec must give one."""
    identity: ClassVar[float]
    """The strength that changes nothing."""
    strengths: ClassVar[tuple[float, float]]
    """The useful range, from the weakest to the strongest."""
    domain: ClassVar[tuple[float, float]]
    """The accepted range, both ends included; the lower end is excluded if `positive` is set."""
    positive: ClassVar[bool] = False
    step: ClassVar[float] = 0.01
    """The grid from which pools draw. A step of 1 means whole numbers only."""
    traceable: ClassVar[bool] = True
    """Whether it uses tensor operations only, so it runs on any device and can be exported."""

    @classmethod
    def options_from(cls, data: Any) -> dict[str, Any]:
        """Return the options that are learned from inputs; most kinds have none."""
        return {}

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Return the options' names and defaults."""
        return {own.name: own.default for own in fields(cls)[cls.has_strength :]}  # type: ignore[arg-type]

    def full_scale(self, dtype: str) -> float | None:
        """Return the largest value that inputs of this dtype may have; None if there is no limit."""
        return None

    @property
    def strength(self) -> float:
        """The first field, by the name that all transformations share; 1 for a kind without a strength."""
        return float(getattr(self, fields(self)[0].name)) if self.has_strength else 1.0  # type: ignore[arg-type]

    @property
    def is_identity(self) -> bool:
        return self.strength == self.identity

    @abstractmethod
    def __call__(self, inputs: Any, /) -> Any:
        """Return a transformed copy of a batch with the same shape and dtype; the inputs do not change."""

    def __str__(self) -> str:
        strength = [] if self.strength == self.usual else [format_strength(self.strength)]
        values = [(name, getattr(self, name), default) for name, default in self.options().items()]
        options = [f"{name}={_format_option(value)}" for name, value, default in values if value != default]
        return ":".join([self.kind, *strength, *options])

    def __post_init__(self) -> None:
        family: Any = type(self)
        kinds = field_kinds(family)
        for place, own in enumerate(fields(self)):  # type: ignore[arg-type]
            is_strength, value = place < self.has_strength, getattr(self, own.name)
            kind = self._strength_kind() if is_strength else kinds[own.name]
            try:
                number = kind.read(_as_whole(value, kind), {})
            except ValueError:
                hint = f"; {self.identity:g} changes nothing" if is_strength else ""
                raise InputError(f"{self.kind}'s {own.name} must be {kind.rule}, got {value!r}{hint}.") from None
            # Round as the spec does, so that transformations with equal specs are equal.
            object.__setattr__(self, own.name, _rounded(float(number) if is_strength else number, kind))

    @classmethod
    def _strength_kind(cls) -> Kind:
        low, high = cls.domain
        return Number(low, high, ends="(]" if cls.positive else "[]", whole=cls.step == 1)


def _as_whole(value: Any, kind: Kind) -> Any:
    """Return 3 for 3.0 if the kind takes whole numbers only: specs are read as floats."""
    whole = isinstance(kind, Number) and kind.whole and isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


def _rounded(value: Any, kind: Kind) -> Any:
    if isinstance(kind, ListOf):
        return tuple(float(format(number, ".9g")) + 0.0 for number in value)
    return tidy(value) if isinstance(value, float) else value


class Word(Kind):
    """Text that can stand in a spec."""

    rule = "a word without any of + , : = ;"

    def read(self, value: Any, sizes: Sizes) -> str:
        if not isinstance(value, str) or not value or set(value) & set("+,:=;\n"):
            raise ValueError
        return value


def _format_option(value: Any) -> str:
    if isinstance(value, tuple):
        return ";".join(format(v, ".9g").replace("e+", "e") for v in value)
    return format_strength(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Named:
    """A user's own transformation: any callable under a name.

    Files store the name but never the code. After loading, pass the callable again to apply the transformation. Two
    are equal if their names are equal.

    Examples
    --------
    >>> from recal.transforms import Named
    >>> turned = Named("turned", lambda images: images[..., ::-1, ::-1])
    >>> turned == Named("turned")
    True
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
