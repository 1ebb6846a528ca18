"""From a spec such as `zoom:0.37` to the value it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from recal.errors import InputError, Remedy
from recal.transforms.audio import Bits, LowPass
from recal.transforms.base import BuiltIn, Named, Transform
from recal.transforms.image import Blur, Brightness, Contrast, Pixelate, ZoomOut
from recal.transforms.image_coding import Jpeg, RandomPixels
from recal.transforms.image_moves import Crop, Flip, Shift, ZoomIn
from recal.transforms.recording import Clip, Echo, Faster, HighPass
from recal.transforms.series import Coarse, DropFrames, DropSamples, Quantise
from recal.transforms.series_moves import TimeShift
from recal.transforms.sound import Noise, Quieter, TimeMask
from recal.transforms.tabular import MedianFill, Missing, Permute, Rescale
from recal.transforms.text import DropTokens, MaskTokens
from recal.transforms.text_cut import Cut
from recal.transforms.text_parts import DropCharacters, DropSentences

# The one list of the built-in kinds. The command line, the loader and the contract tests read it.
TRANSFORMS: tuple[type[BuiltIn], ...] = (
    ZoomOut,
    Brightness,
    Contrast,
    Blur,
    Pixelate,
    Jpeg,
    RandomPixels,
    Flip,
    Shift,
    Crop,
    ZoomIn,
    DropFrames,
    DropSamples,
    Coarse,
    Quantise,
    TimeShift,
    LowPass,
    Bits,
    TimeMask,
    Quieter,
    Noise,
    HighPass,
    Clip,
    Faster,
    Echo,
    DropTokens,
    MaskTokens,
    DropCharacters,
    DropSentences,
    Cut,
    MedianFill,
    Permute,
    Missing,
    Rescale,
)
KINDS: dict[str, type[BuiltIn]] = {transform.kind: transform for transform in TRANSFORMS}


# How a user hands over the code of transformations that a file knows by name.
Own = Mapping[str, Callable[[Any], Any]] | Iterable[Callable[[Any], Any]]


def as_transform(value: Any) -> Transform:
    """Return the transformation that a spec, a transformation or a named callable stands for.

    A spec whose kind is not built in, or that lacks the strength which its kind must be given, is the name of
    someone's own transformation: views from elsewhere may hold any name.

    Examples
    --------
    >>> from recal.transforms import as_transform
    >>> as_transform("zoom:0.50")
    ZoomOut(scale=0.5, layout='auto')
    >>> as_transform("flip")
    Flip(layout='auto')
    >>> as_transform("rotated by 90")
    Named(name='rotated by 90')
    """
    if isinstance(value, BuiltIn):
        return value
    if isinstance(value, str):
        kind, _, rest = value.strip().partition(":")
        return parse(kind, rest) if _is_ours(value.strip()) else Named(value.strip())
    named = value if isinstance(value, Named) else _name_callable(value)
    kind = named.name.partition(":")[0]
    if _is_ours(named.name):
        raise InputError(f"The name {named.name!r} means recal's own {kind}; give your transformation another name.")
    return named


def _is_ours(spec: str) -> bool:
    kind, colon, _ = spec.partition(":")
    return kind in KINDS and bool(colon or KINDS[kind].usual is not None)


def by_name(given: Own) -> dict[str, Transform]:
    """Return transformations by their names: callables that have one, or a mapping that gives it."""
    if isinstance(given, Mapping):
        given = [Named(name, code) for name, code in given.items()]
    elif callable(given) or isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"Your transformations come as {{name: function}} or [function, ...], got {given!r}.")
    return {str(transform): transform for transform in map(as_transform, given)}


def _name_callable(value: Any) -> Named:
    if not callable(value) or isinstance(value, type):
        raise InputError(f"A transformation is a spec such as 'zoom:0.37' or a callable value, got {value!r}.")
    name = getattr(value, "__name__", None) or getattr(value, "name", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise InputError(
            f"A transformation needs a name under which its logits are stored; {value!r} has none. "
            "Give it one: recal.transforms.Named('my-name', function)."
        )
    return Named(name, value)


def parse(kind: str, rest: str) -> Transform:
    """Return the built-in transformation of `kind`; `rest` is ``strength[:option=value]...``."""
    parts, usual = rest.split(":") if rest else [], KINDS[kind].usual
    if usual is not None and (not parts or "=" in parts[0]):
        return build(kind, usual, parse_options(kind, parts))
    strength, *options = parts or [""]
    return build(kind, read_strength(kind, strength), parse_options(kind, options))


def build(kind: str, strength: float, options: dict[str, Any]) -> Transform:
    """Return the transformation of a known kind."""
    return KINDS[kind](*[strength][: KINDS[kind].has_strength], **options)


def read_strength(kind: str, text: str) -> float:
    """Return the number that a spec gives after its kind."""
    if not KINDS[kind].has_strength:
        raise InputError(f"{kind} has no strength; it is written '{kind}' and nothing more, got '{kind}:{text}'.")
    try:
        return float(text)
    except ValueError:
        low, high = KINDS[kind].domain
        raise InputError(
            f"A {kind} is written '{kind}:strength', a number from {low:g} to {high:g}",
            came=f"got '{kind}:{text}'",
            remedy=Remedy(
                f"A range belongs in pool('{kind}:0.1-0.9:5')", typed=f"A range needs a count: {kind}:0.1-0.9:5"
            ),
        ) from None


def parse_options(kind: str, options: list[str]) -> dict[str, Any]:
    """Read ``option=value`` parts by the type of the option's default."""
    own = KINDS[kind].options()
    values: dict[str, Any] = {}
    for option in options:
        name, equals, text = (part.strip() for part in option.partition("="))
        if not equals or name not in own or name in values:
            known = ", ".join(own) or "none"
            raise InputError(f"{kind}'s options are written option=value, each once: {known}; got {option!r}.")
        values[name] = _read_option(text, own[name])
    return values


def _read_option(text: str, default: Any) -> Any:
    try:
        if isinstance(default, tuple):
            return tuple(float(part) for part in text.split(";")) if text else ()
        if isinstance(default, int) and text.lstrip("-").isdecimal():
            return int(text)  # a seed may have more digits than a float holds
        return text if isinstance(default, str) else float(text)
    except ValueError:
        return text  # the transformation's own check words the error
