"""Pools of transformations: their text form, their kinds and how strengths are drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from recal.errors import InputError, Remedy
from recal.transforms.audio import Bits, Clip, Echo, Faster, HighPass, LowPass, Noise, Quieter, TimeMask
from recal.transforms.base import BuiltIn, Named, Transform, format_strength
from recal.transforms.image import Blur, Brightness, Contrast, Jpeg, Pixelate, RandomPixels, ZoomOut
from recal.transforms.image_moves import Crop, Flip, Shift, ZoomIn
from recal.transforms.series import Coarse, DropFrames, DropSamples, Quantise, TimeShift
from recal.transforms.tabular import MedianFill, Missing, Permute, Rescale
from recal.transforms.text import Cut, DropCharacters, DropSentences, DropTokens, MaskTokens

DAMAGE: dict[str, str] = {
    "image": "zoom:0.8+zoom:0.6+zoom:0.4+brightness:0.6+brightness:0.35+brightness:0.18+contrast:0.6+contrast:0.35"
    "+contrast:0.18+blur:0.6+blur:1+blur:1.6+pixelate:0.75+pixelate:0.5+pixelate:0.35+jpeg:50+jpeg:25+jpeg:10"
    "+pixels:0.02+pixels:0.07+pixels:0.2",
    "video": "zoom:0.8+zoom:0.6+zoom:0.4+brightness:0.6+brightness:0.35+brightness:0.18"
    "+frames:0.2+frames:0.5+frames:0.8",
    "series": "drop:0.1+drop:0.3+drop:0.6+coarse:0.6+coarse:0.3+coarse:0.1+quantise:0.05+quantise:0.15+quantise:0.4"
    "+noise:25+noise:12+noise:3+timemask:0.1+timemask:0.3+timemask:0.5+quieter:0.6+quieter:0.3+quieter:0.1",
    "audio": "noise:25+noise:12+noise:3+lowpass:0.5+lowpass:0.25+lowpass:0.1+quieter:0.5+quieter:0.2+quieter:0.05"
    "+bits:8+bits:5+bits:3+timemask:0.1+timemask:0.3+timemask:0.5+drop:0.1+drop:0.3+drop:0.6"
    "+highpass:0.1+highpass:0.25+highpass:0.45+clip:0.4+clip:0.15+clip:0.05+faster:1.08+faster:1.2+faster:1.4"
    "+echo:0.4+echo:0.6+echo:0.8",
    "text": "tokendrop:0.1+tokendrop:0.3+tokendrop:0.6+tokenmask:0.1+tokenmask:0.3+tokenmask:0.6+chardrop:0.05"
    "+chardrop:0.15+chardrop:0.35+sentencedrop:0.2+sentencedrop:0.4+sentencedrop:0.7+cut:0.2+cut:0.4+cut:0.7",
    "tabular": "median:0.1+median:0.3+median:0.6+permute:0.1+permute:0.3+permute:0.6"
    "+missing:0.1+missing:0.3+missing:0.6+rescale:0.1+rescale:0.25+rescale:0.5",
}


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


_NUMBER = r"\d+(?:\.\d*)?(?:e-?\d+)?|\.\d+(?:e-?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*-\s*({_NUMBER})\s*")
_USUAL_COUNT = 10
_MOST_DIGITS = 9  # of a count: nobody computes a thousand million views


class _Range(NamedTuple):
    """`count` strengths to be drawn from a grid."""

    kind: str
    low: float
    high: float
    n: int
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.kind}:{self.low:g}-{self.high:g}"


def pool(spec: Any, seed: int = 0, *, data: Any = None) -> tuple[Transform, ...]:
    """Return distinct transformations, drawn from ranges or given one by one.

    Parameters
    ----------
    spec : str, transformation, callable, or a sequence of these
        Text joins parts with ``+``; a part is ``kind:low-high:count`` (a grid of step 0.01, or 1 for kinds of whole
        strengths; the upper end excluded; drawn without replacement), ``kind:strength``, or a bare ``kind``: for
        ``flip`` and ``shift`` the one that is meant, for others 10 strengths from their declared range. Options
        follow: ``zoom:0.1-0.9:20:layout=NHWC``. Callables are known by their name. ``damage`` stands for seven kinds
        of damage to images at three strengths each, from which a profile learns to follow; ``damage:audio``,
        ``damage:series``, ``damage:text``, ``damage:tabular`` and ``damage:video`` for others.
    seed : int
        The same seed draws the same pool; a part draws the same strengths whatever other kinds stand beside it.
    data : array-like of shape (n_samples, n_features), optional
        Training inputs, for kinds that learn from them: ``median`` takes the medians.

    Examples
    --------
    >>> from recal import pool
    >>> [str(t) for t in pool("zoom:0.1-0.9:3+brightness:0.5", seed=0)]
    ['zoom:0.28', 'zoom:0.86', 'zoom:0.88', 'brightness:0.5']
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError("must be a whole number from 0 on", argument="seed", came=f"got {seed!r}")
    parts = [part for item in _items(spec) for part in _parts(item, data)]
    if not parts:
        raise InputError("A pool needs at least one transformation, such as pool('zoom:0.5-0.9:10').")
    # Single ones first, so that a range never draws what is already given.
    taken: set[Transform] = set()
    for part in parts:
        if not isinstance(part, _Range):
            if part in taken:
                raise InputError(f"The transformation {str(part)!r} is in the pool twice; each must be distinct.")
            taken.add(part)
    result: list[Transform] = []
    for part in parts:
        drawn = _draw(part, int(seed), taken) if isinstance(part, _Range) else [part]
        taken.update(drawn)
        result += drawn
    return tuple(result)


def _items(spec: Any) -> Iterable[Any]:
    if isinstance(spec, str) or callable(spec):
        return [spec]
    if isinstance(spec, Iterable):
        return spec
    raise InputError(f"A pool is text such as 'zoom:0.1-0.9:20', or a sequence of transformations, got {spec!r}.")


def _parts(item: Any, data: Any) -> list[_Range | Transform]:
    if not isinstance(item, str):
        return [as_transform(item)]
    return [part for text in item.split("+") for part in _named(text.strip(), data)]


def _named(text: str, data: Any) -> list[_Range | Transform]:
    """One part, or all of a pool of damage: `damage` for images, `damage:audio` and the like for others."""
    name, _, made_for = text.partition(":")
    if name != "damage":
        return [_part(text, data)]
    if (made_for or "image") not in DAMAGE:
        raise InputError(f"There are pools of damage for {', '.join(DAMAGE)}, got {text!r}.")
    return [_part(part, data) for part in DAMAGE[made_for or "image"].split("+")]


def _part(text: str, data: Any) -> _Range | Transform:
    kind, *rest = text.strip().split(":")
    if kind not in KINDS:
        if kind.partition("=")[0] in KINDS:
            raise InputError(f"A strength follows a colon, got {text!r}; write {text.replace('=', ':', 1)!r}.")
        near = get_close_matches(kind, KINDS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(
            f"There is no transformation {kind!r} in {text!r}; there are: {', '.join(KINDS)}.{hint}",
            remedy=Remedy("Your own are passed as callables: pool([your_function, 'zoom:0.5'])", typed=""),
        )
    if any(part.partition(",")[2].strip() in KINDS for part in rest):
        raise InputError(f"Transformations are joined with +, got {text!r}; write {text.replace(',', '+')!r}.")
    plain = [part for part in rest if "=" not in part]
    if rest[: len(plain)] != plain:
        raise InputError(f"Options come last, got {text!r}; write for instance 'zoom:0.1-0.9:20:layout=NHWC'.")
    learned = KINDS[kind].options_from(data) if data is not None else {}
    options = {**learned, **parse_options(kind, rest[len(plain) :])}
    usual = KINDS[kind].usual
    if not plain and usual is not None:
        return build(kind, usual, options)
    if not plain:
        low, high = sorted(KINDS[kind].strengths)
        return _Range(kind, low, high, min(_USUAL_COUNT, len(_grid(KINDS[kind], low, high))), options)
    span = _RANGE.fullmatch(plain[0]) if KINDS[kind].has_strength else None
    if span is None and (len(plain) == 1 or not KINDS[kind].has_strength):
        return build(kind, read_strength(kind, plain[0]), options)
    if span is None or len(plain) != 2 or not _is_count(plain[1].strip()):
        raise InputError(
            f"A part of a pool is '{kind}:low-high:count', '{kind}:strength' or '{kind}', got {text!r}; "
            f"for instance '{kind}:{'-'.join(f'{s:g}' for s in sorted(KINDS[kind].strengths))}:5'."
        )
    return _checked(_Range(kind, float(span[1]), float(span[2]), int(plain[1]), options))


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) > 0


def _checked(part: _Range) -> _Range:
    if part.low >= part.high:
        raise InputError(f"A range goes from low to high, got {part!s}.")
    kind = KINDS[part.kind]
    low, high = kind.domain
    # Before any grid is built: one from 0 to 1e9 would hold a hundred thousand million strengths.
    too_low = part.low <= low if kind.positive else part.low < low
    if too_low or part.high - kind.step > high + 1e-9:
        bounds = f"{'(' if kind.positive else '['}{low:g}, {high:g}]"
        raise InputError(f"{part.kind}'s strengths lie in {bounds}, and {part!s} goes beyond.")
    held = len(_grid(KINDS[part.kind], part.low, part.high))
    if part.n > held:
        step = format_strength(KINDS[part.kind].step)
        raise InputError(
            f"{part!s} holds {held} strengths (step {step}, upper end excluded), but {part.n} are asked for."
        )
    return part


def _grid(kind: type[BuiltIn], low: float, high: float) -> list[float]:
    # Whole steps are counted, since 0.1 + 79 * 0.01 is not 0.89.
    count = int(np.ceil((high - low) / kind.step - 1e-9))
    return [round(low + index * kind.step, 10) for index in range(count)]


def _draw(part: _Range, seed: int, taken: set[Transform]) -> list[Transform]:
    grid = [build(part.kind, strength, part.options) for strength in _grid(KINDS[part.kind], part.low, part.high)]
    free = [transform for transform in grid if transform not in taken]
    if part.n > len(free):
        raise InputError(
            f"{part!s} has {len(free)} strengths left that are not in the pool already, but {part.n} are asked for."
        )
    rng = np.random.default_rng([seed, crc32(part.kind.encode())])
    return [free[index] for index in np.sort(rng.choice(len(free), part.n, replace=False))]
