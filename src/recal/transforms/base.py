"""Transformations: small immutable values that are called on a batch of inputs and have a text
form, the spec.

Random numbers belong to the sample: they follow from a seed and the sample's own content. A sample
is therefore changed in the same way alone, in any batch and at any position. The key is a digest of
the sample's bytes, and number j of its stream is a hash of the key and j; samples share nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from recal.copies import GOLDEN, mix
from recal.errors import InputError
from recal.schema import ListOf, Number, Sizes, field_kinds


@runtime_checkable
class Transform(Protocol):
    """A change to an input that keeps its label. `str(transform)` is its spec, such as `zoom:0.37`.

    Equal specs mean equal results, so the spec is the key under which a view's logits are stored.
    """

    def __call__(self, inputs: Any, /) -> Any: ...

    def __hash__(self) -> int: ...


def format_strength(value: float) -> str:
    """Write a number so that it reads back the same, and without a '+', which joins specs."""
    number = tidy(value)
    short = format(number, ".12g")
    return (short if float(short) == number else repr(number)).replace("e+", "e")


def short_spec(transform: object) -> str:
    """Return a spec for people, without the numbers per table column that `median` and others have.

    Examples
    --------
    >>> from recal.transforms.base import short_spec
    >>> short_spec("median:0.35:medians=0.71;3;2;61.8;2458;5.72")
    'median:0.35'
    """
    return ":".join(part for part in str(transform).split(":") if ";" not in part)


def tidy(value: float) -> float:
    """Return a number without rounding errors in its last digits: 0.3 for 0.1 + 0.2, but 2/3
    unchanged.
    """
    number = float(value) + 0.0  # turns -0.0 into 0.0
    short = float(format(number, ".12g"))
    return short if abs(short - number) <= 4 * math.ulp(number) else number


class Strengths(Number):
    """The strengths of a kind of transformation.

    Parameters
    ----------
    weak, strong : the useful range, from which pools draw
    identity : the strength that changes nothing
    domain : the accepted range
    ends : which ends of the domain are accepted, as in "(]"
    whole : whether only whole numbers are accepted
        Pools then draw from a grid of step 1 instead of 0.01.
    """

    def __init__(
        self,
        weak: float,
        strong: float,
        *,
        identity: float,
        domain: tuple[float, float] = (0.0, 1.0),
        ends: str = "[]",
        whole: bool = False,
    ) -> None:
        super().__init__(*domain, ends=ends, whole=whole, hint=f"; {identity:g} changes nothing")
        self.weak, self.strong, self.identity = weak, strong, identity
        self.step = 1 if whole else 0.01

    def read(self, value: Any, sizes: Sizes) -> float:
        # Specs are read as floats.
        is_whole = self.whole and isinstance(value, float) and value.is_integer()
        return float(super().read(int(value) if is_whole else value, sizes))


class _Numbers(ListOf):
    """Numbers with nine digits, joined with semicolons in a spec."""

    def read(self, value: Any, sizes: Sizes) -> tuple[float, ...]:
        return tuple(float(format(number, ".9g")) + 0.0 for number in super().read(value, sizes))

    def parse(self, text: str) -> list[Any]:
        return [float(part) for part in text.split(";")] if text else []


Numbers = Annotated[tuple[float, ...], _Numbers(Number(), keep=tuple)]


class BuiltIn(ABC):
    """Base class of the transformations that come with recal.

    A new one is a frozen dataclass in the module of its kind of input. Its first field is the
    strength; the other fields are options with defaults, and their annotations say what is allowed
    (`recal.schema`). It sets the class variables below and defines `__call__`. The spec is
    ``kind:strength[:option=value]...``, without fields at their defaults.
    """

    kind: ClassVar[str]
    modality: ClassVar[str]
    """The kind of input: image, video, series, audio, text or tabular."""
    assumes: ClassVar[str]
    """What must be true of a task for the label to be kept; users read this when they choose a
    pool.
    """
    keeps_information: ClassVar[bool] = False
    """Whether the result has as much information as the original, as a mirrored image has;
    otherwise detail is lost.

    ReCal measures how a sample reacts to lost detail, so it draws no kinds that keep it; stacking
    prefers those."""
    has_strength: ClassVar[bool] = True
    """Whether the first field is a strength; a kind without a strength has only one form."""
    strengths: ClassVar[Strengths] = Strengths(1, 1, identity=0, domain=(1, 1))
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

    @classmethod
    def needs_strength(cls) -> bool:
        """Whether a spec must give a strength; `flip` and `shift` can be written without one."""
        return fields(cls)[0].default is MISSING  # type: ignore[arg-type]

    @property
    def strength(self) -> float:
        """The first field, whatever its own name is; 1 for a kind without a strength."""
        return float(getattr(self, fields(self)[0].name)) if self.has_strength else 1.0  # type: ignore[arg-type]

    @property
    def is_identity(self) -> bool:
        return self.strength == self.strengths.identity

    @abstractmethod
    def __call__(self, inputs: Any, /) -> Any:
        """Return a transformed copy of a batch with the same shape and dtype; the inputs do not
        change.
        """

    def __str__(self) -> str:
        parts = [self.kind]
        for place, own in enumerate(fields(self)):  # type: ignore[arg-type]
            value = getattr(self, own.name)
            if value != own.default:
                name = "" if place < self.has_strength else f"{own.name}="
                parts.append(name + _format_value(value))
        return ":".join(parts)

    def __post_init__(self) -> None:
        family: Any = type(self)
        kinds = field_kinds(family)
        for place, own in enumerate(fields(self)):  # type: ignore[arg-type]
            kind = self.strengths if place < self.has_strength else kinds[own.name]
            value = getattr(self, own.name)
            try:
                number = kind.read(value, {})
            except ValueError:
                rule = f"{self.kind}'s {own.name} must be {kind.rule}"
                raise InputError(f"{rule}, got {value!r}{kind.hint}.") from None
            # Round as the spec does, so that transformations with equal specs are equal.
            rounded = tidy(number) if isinstance(number, float) else number
            object.__setattr__(self, own.name, rounded)


def _format_value(value: Any) -> str:
    if isinstance(value, tuple):
        return ";".join(format(number, ".9g").replace("e+", "e") for number in value)
    return format_strength(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Named:
    """A user's own transformation: any callable under a name.

    Files store the name but never the code. After loading, pass the callable again to apply the
    transformation. Two transformations are equal if their names are equal.

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
            rule = "A transformation's name must not be empty nor hold '+' or ','"
            raise InputError(f"{rule}, got {self.name!r}.")

    def __str__(self) -> str:
        return self.name

    def code(self) -> Callable[[Any], Any]:
        """Return the callable; refuse if only the name is known."""
        if self.function is None:
            raise InputError(
                f"The transformation {self.name!r} is known by name only; its code is not stored "
                f"in files. Give it again: transforms={{{self.name!r}: your_function}}."
            )
        return self.function

    def __call__(self, inputs: Any) -> Any:
        return self.code()(inputs)


Keys = NDArray[np.uint64]


def content_keys(samples: NDArray[Any], kind: str, seed: int) -> Keys:
    """Return one 64-bit key per sample, from its bytes, the kind of transformation and the seed."""
    rows = np.ascontiguousarray(samples)
    salt = f"{kind}:{seed}:{rows.dtype.str}:{rows.shape[1:]}".encode()
    return np.array([key_of(row.tobytes(), salt) for row in rows], dtype=np.uint64)


def key_of(content: bytes, salt: bytes) -> int:
    digest = blake2b(content, digest_size=8, key=blake2b(salt, digest_size=32).digest()).digest()
    return int.from_bytes(digest, "little")


def uniforms(keys: Keys, count: int, stream: int = 0) -> NDArray[np.float64]:
    """Return (n_keys, count) numbers in [0, 1); each row depends on its key alone."""
    return uniforms_at(keys, np.arange(count, dtype=np.uint64), stream)


def uniforms_at(keys: Keys, places: NDArray[np.uint64], stream: int = 0) -> NDArray[np.float64]:
    """Return the numbers at `places` of each key's stream, (n_keys, n_places); each key may have
    its own places.
    """
    mixed = mix(keys[:, None] + (places + np.uint64(stream << 40)) * GOLDEN)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def count_of(share: float, size: int) -> int:
    """Return ``round(share * size)``: at least one, never all."""
    return min(max(round(share * size), 1), size - 1)


def choose(keys: Keys, size: int, share: float) -> NDArray[np.bool_]:
    """Mark ``round(share * size)`` of `size` places in each row, at least one and never all:
    (n_keys, size).
    """
    chosen = np.zeros((len(keys), size), dtype=bool)
    count = count_of(share, size)
    if count > 0 and len(keys):
        places = np.argsort(uniforms(keys, size), axis=1, kind="stable")[:, :count]
        np.put_along_axis(chosen, places, True, axis=1)
    return chosen
