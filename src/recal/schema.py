"""Declarations of what a value must be, for constructor parameters, fitted state and the fields of
maps.

A declaration is an annotation. `Literal`, `bool`, `int`, `float`, `None` and unions of them have
their usual meaning; anything narrower is ``Annotated[type, kind]`` with one of the kinds below. The
same declaration checks parameters when a calibrator is fitted, checks the contents of an untrusted
file and reads the options of the command line.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError

# Products of two such numbers, and sums of these products, do not overflow.
LARGEST, SMALLEST = 1e100, 1e-100
# The sizes that the shapes of one object's arrays share, such as {"K": 10}.
Sizes = dict[str, int]


class Kind:
    """What a value may be."""

    rule: str = "any value"
    hint: str = ""

    def read(self, value: Any, sizes: Sizes) -> Any:
        """Return the value as the code uses it, or raise ValueError; new `sizes` are added."""
        return value

    def parse(self, text: str) -> Any:
        """Read a value that was typed on a command line, or raise ValueError."""
        for typed in _meanings(text):
            with suppress(ValueError):
                return self.read(typed, {})
        raise ValueError


def _meanings(text: str) -> Iterator[Any]:
    """Yield what a typed text may stand for, the most specific first."""
    words: dict[str, Any] = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        yield words[text.lower()]
    for number in (int, float):
        with suppress(ValueError):
            yield number(text)
    yield text
    yield [next(_meanings(part.strip())) for part in text.split(",")]


class Number(Kind):
    """A finite number between two bounds; `ends` says which bounds are part of the range, as in
    "(0, 1]".
    """

    def __init__(
        self,
        low: float = -math.inf,
        high: float = math.inf,
        *,
        whole: bool = False,
        ends: str = "[]",
        hint: str = "",
    ) -> None:
        self.low, self.high, self.whole, self.ends, self.hint = low, high, whole, ends, hint
        self.rule = "a whole number" if whole else "a finite number"
        if high < math.inf:
            kind = "a whole number" if whole else "a number"
            self.rule = f"{kind} in {ends[0]}{low:g}, {high:g}{ends[1]}"
        elif (low, ends[0]) == (0.0, "("):
            self.rule = "a positive number"
        elif low > -math.inf:
            self.rule += f" {'above' if ends[0] == '(' else 'of at least'} {low:g}"

    def read(self, value: Any, sizes: Sizes) -> Any:
        allowed = int | np.integer if self.whole else int | float | np.integer | np.floating
        if isinstance(value, bool) or not isinstance(value, allowed):
            raise ValueError
        try:
            number = int(value) if self.whole else float(value)
        except OverflowError:  # an integer beyond all floats
            raise ValueError from None
        above = self.low < number if self.ends[0] == "(" else self.low <= number
        below = number < self.high if self.ends[1] == ")" else number <= self.high
        if not (above and below and (self.whole or math.isfinite(number))):
            raise ValueError
        return number


class Flag(Kind):
    """True or False only, because a string such as "no" would count as True."""

    rule = "True or False"

    def read(self, value: Any, sizes: Sizes) -> bool:
        if not isinstance(value, bool | np.bool_):
            raise ValueError
        return bool(value)


class Choice(Kind):
    """One of a few values."""

    def __init__(self, *options: Any) -> None:
        self.options = options
        named = ", ".join(map(repr, options))
        self.rule = f"one of {named}" if len(options) > 1 else named

    def read(self, value: Any, sizes: Sizes) -> Any:
        for option in self.options:
            if type(value) is type(option) and value == option:
                return option
        raise ValueError


class Text(Kind):
    rule = "text"

    def read(self, value: Any, sizes: Sizes) -> str:
        if not isinstance(value, str):
            raise ValueError
        return value


class ListOf(Kind):
    """A list, tuple or array whose items are all of one kind."""

    def __init__(self, item: Kind, *, keep: type | None = None) -> None:
        self.item, self.keep = item, keep
        self.rule = f"a list, each item {item.rule}"

    def read(self, value: Any, sizes: Sizes) -> Any:
        if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
            raise ValueError
        items = [self.item.read(item, sizes) for item in value]
        return value if self.keep is None else self.keep(items)


class Seed(Kind):
    """A value from which numpy makes a random generator."""

    rule = "a whole number of at least 0, a Generator or None"

    def read(self, value: Any, sizes: Sizes) -> Any:
        try:
            np.random.default_rng(value)
        except TypeError:
            raise ValueError from None
        return value


class Instance(Kind):
    """An object of a class.

    The class is given by name if the module that declares the kind cannot import it.
    """

    def __init__(self, family: type | str, *, hint: str = "") -> None:
        self.hint = hint
        self.family, name = family, family if isinstance(family, str) else family.__name__
        self.rule = f"{'an' if name[0] in 'AEIOUaeioun' else 'a'} {name}"

    def read(self, value: Any, sizes: Sizes) -> Any:
        if isinstance(self.family, str):
            matches = any(base.__name__ == self.family for base in type(value).__mro__)
        else:
            matches = isinstance(value, self.family)
        if not matches:
            raise ValueError
        return value


class Either(Kind):
    """The first of several kinds that accepts the value."""

    def __init__(self, *kinds: Kind) -> None:
        self.kinds = kinds
        *others, last = [kind.rule for kind in kinds]
        self.rule = f"{', '.join(others)} or {last}" if others else last
        self.hint = next((kind.hint for kind in kinds if kind.hint), "")

    def read(self, value: Any, sizes: Sizes) -> Any:
        for kind in self.kinds:
            with suppress(ValueError):
                return kind.read(value, sizes)
        raise ValueError


class FloatArray(Kind):
    """An array of float64 numbers.

    Parameters
    ----------
    shape : int, str or None for each axis
        A name such as "K" means the same size wherever it occurs in one object; "B-1" is one less
        than B; None is any size. No axis is empty unless its size follows from a name.
    low, high : the range of the numbers, both ends included
    rising : whether numbers never fall along the last axis
    """

    dtype: ClassVar[type] = np.float64
    codes: ClassVar[str] = "f"

    def __init__(
        self,
        *shape: int | str | None,
        low: float = -LARGEST,
        high: float = LARGEST,
        rising: bool = False,
    ) -> None:
        self.shape, self.low, self.high, self.rising = shape, low, high, rising
        sizes = ", ".join("n" if size is None else str(size) for size in shape)
        self.rule = f"an array of shape ({sizes}) with numbers from {low:g} to {high:g}"
        self.rule += ", none below the one before it" if rising else ""

    def read(self, value: Any, sizes: Sizes) -> NDArray[Any]:
        array = np.asarray(value)
        if array.dtype.kind not in self.codes or array.ndim != len(self.shape):
            raise ValueError
        for size, declared in zip(array.shape, self.shape):
            if isinstance(declared, str):  # a name, or a name plus or minus a number, such as "B-1"
                name, sign, more = declared.partition("-" if "-" in declared else "+")
                full = size - int(sign + more or 0)
                if full < 1 or sizes.setdefault(name, full) != full:
                    raise ValueError
            elif size < 1 if declared is None else size != declared:
                raise ValueError
        if array.size and not self.low <= array.min() <= array.max() <= self.high:  # or NaN
            raise ValueError
        if self.rising and (array[..., 1:] < array[..., :-1]).any():
            raise ValueError
        return np.ascontiguousarray(array, dtype=self.dtype)


class Integers(FloatArray):
    """An array of whole numbers."""

    dtype = np.int64
    codes = "iu"


@dataclass_transform(frozen_default=True, eq_default=False)
class Record:
    """A frozen dataclass whose fields are checked against their annotations when it is built."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclass(frozen=True, eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        sizes: Sizes = {}
        family: Any = type(self)
        for name, kind in field_kinds(family).items():
            object.__setattr__(self, name, check(getattr(self, name), kind, name, sizes))
        object.__setattr__(self, "_sizes", sizes)
        self.check()

    @classmethod
    def made(cls, **values: Any) -> Self:
        """Return a record of all fields, which recal itself has just computed, without a check."""
        record = object.__new__(cls)
        for name, value in {**values, "_sizes": {}}.items():
            object.__setattr__(record, name, value)
        return record

    def check(self) -> None:
        """Refuse inconsistent fields; for most records the declarations are enough."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        values = (getattr(self, name) for name in field_names(type(self)))
        return tuple(
            (one.shape, one.tobytes()) if isinstance(one, np.ndarray) else one for one in values
        )

    def __repr__(self) -> str:
        parts = (f"{name}={_short(getattr(self, name))}" for name in field_names(type(self)))
        return f"{type(self).__name__}({', '.join(parts)})"


def field_names(family: type[Record]) -> list[str]:
    """Return the names of a record's fields, in their order."""
    return [field.name for field in fields(family)]  # type: ignore[arg-type]


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        if value.size <= 4:
            return np.array2string(value, precision=4)
        return f"<{' x '.join(map(str, value.shape))}>"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def check(value: Any, kind: Kind, name: str, sizes: Sizes | None = None) -> Any:
    """Return the value as the kind reads it; otherwise raise an InputError that names it."""
    try:
        return kind.read(value, {} if sizes is None else sizes)
    except InputError:  # a kind may raise a more detailed error
        raise
    except ValueError:
        raise InputError(
            f"must be {kind.rule}, got {_shown(value)}", argument=name, remedy=kind.hint
        ) from None


@lru_cache(maxsize=256)
def parameter_kinds(family: Any) -> Mapping[str, Kind]:
    """Return the kind of each parameter of a class's constructor: declared in the class, or in its
    own `__init__`.
    """
    names, hints = inspect.signature(family).parameters, get_type_hints(family, include_extras=True)
    if not hints.keys() >= names.keys():
        hints = get_type_hints(family.__init__, include_extras=True)
    return {name: kind_of(hints[name]) for name in names if name in hints}


@lru_cache(maxsize=256)
def field_kinds(family: Any) -> Mapping[str, Kind]:
    """Return the kind of each annotated attribute of a class; class variables are left out."""
    hints = get_type_hints(family, include_extras=True)
    return {name: kind_of(hint) for name, hint in hints.items() if get_origin(hint) is not ClassVar}


def check_parameters(instance: Any) -> None:
    """Refuse parameters of an estimator that violate the annotations of its constructor."""
    for name, kind in parameter_kinds(instance.__class__).items():
        check(getattr(instance, name), kind, name)


def kind_of(hint: Any) -> Kind:
    """Return the kind that an annotation declares."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        declared = [part for part in parts[1:] if isinstance(part, Kind)]
        return declared[0] if declared else kind_of(parts[0])
    if origin in (Union, types.UnionType):
        return Either(*(kind_of(part) for part in parts))
    if origin is Literal:
        return Choice(*parts)
    if hint is None or hint is type(None):
        return Choice(None)
    if hint in _PLAIN:
        return _PLAIN[hint]
    family = origin or hint
    if hasattr(family, "__value__"):  # an alias, as numpy 2.5 declares NDArray
        family = get_origin(family.__value__) or family.__value__
    if not isinstance(family, type) or getattr(family, "_is_protocol", False):
        return Kind()
    if issubclass(family, Sequence):
        item = kind_of(parts[0]) if parts else Kind()
        return ListOf(item, keep=tuple if family is tuple else None)
    return Instance(family)


_PLAIN: dict[Any, Kind] = {
    bool: Flag(),
    int: Number(whole=True),
    float: Number(),
    str: Text(),
    Any: Kind(),
}

# Kinds that several classes declare.
Count = Annotated[int, Number(1, whole=True)]
Size = Annotated[int, Number(0, whole=True)]
NotNegative = Annotated[float, Number(0.0)]
Strength = Annotated[float, Number(0.0, ends="()", hint="Use a tiny number in place of 0")]
Share = Annotated[float, Number(0.0, 1.0)]
Texts = tuple[str, ...]
Levels = tuple[Texts, ...]
RandomState = Annotated[int | np.random.Generator | None, Seed()]


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
