"""Pools of transformations: their text form, their kinds and how strengths are drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from recal.errors import InputError
from recal.schema import Number, check, field_kinds
from recal.transforms import image, series, tabular, text
from recal.transforms.base import BuiltIn, Named, Transform

DAMAGE: dict[str, str] = {
    "image": "zoom:0.8+zoom:0.6+zoom:0.4+brightness:0.6+brightness:0.35+brightness:0.18"
    "+contrast:0.6+contrast:0.35+contrast:0.18+blur:0.6+blur:1+blur:1.6+pixelate:0.75+pixelate:0.5"
    "+pixelate:0.35+jpeg:50+jpeg:25+jpeg:10+pixels:0.02+pixels:0.07+pixels:0.2",
    "video": "zoom:0.8+zoom:0.6+zoom:0.4+brightness:0.6+brightness:0.35+brightness:0.18+frames:0.2"
    "+frames:0.5+frames:0.8",
    "series": "drop:0.1+drop:0.3+drop:0.6+coarse:0.6+coarse:0.3+coarse:0.1+noise:25+noise:12"
    "+noise:3+timemask:0.1+timemask:0.3+timemask:0.5+quieter:0.6+quieter:0.3+quieter:0.1",
    "audio": "noise:25+noise:12+noise:3+lowpass:0.5+lowpass:0.25+lowpass:0.1+quieter:0.5"
    "+quieter:0.2+quieter:0.05+bits:8+bits:5+bits:3+timemask:0.1+timemask:0.3+timemask:0.5+drop:0.1"
    "+drop:0.3+drop:0.6",
    "text": "tokendrop:0.1+tokendrop:0.3+tokendrop:0.6+chardrop:0.05+chardrop:0.15+chardrop:0.35"
    "+cut:0.2+cut:0.4+cut:0.7",
    "tabular": "median:0.1+median:0.3+median:0.6+permute:0.1+permute:0.3+permute:0.6+missing:0.1"
    "+missing:0.3+missing:0.6+rescale:0.1+rescale:0.25+rescale:0.5",
}
# Some views keep all information, for stacking; others lose more and more, for ReCal. About ten
# passes in all.
USUAL: dict[str, str] = {
    "image": "flip+shift+shift:direction=right+zoomin:1.1+zoom:0.9+zoom:0.8+zoom:0.7+zoom:0.55"
    "+brightness:0.7+brightness:0.5",
    "video": "flip+shift+zoom:0.5-0.9:3+frames:0.1-0.6:5",
    "series": "timeshift:0.02+timeshift:0.05+coarse:0.3-0.9:3+drop:0.1-0.6:5",
    "audio": "timeshift:0.02+timeshift:0.05+lowpass:0.2-0.8:3+noise:10-40:3+quieter:0.3"
    "+timemask:0.1",
    "text": "cut:0.1+cut:0.2+cut:0.2:side=start+tokendrop:0.05-0.5:6",
    "tabular": "median:0.1-0.6:8",
}
# Pools with a name; "auto:series" is that of series, and without a kind they are for images.
NAMED: dict[str, dict[str, str]] = {"auto": USUAL, "damage": DAMAGE}


# All kinds, in the order in which their modules define them. The command line, the loader and
# contract tests read this.
TRANSFORMS: tuple[type[BuiltIn], ...] = tuple(
    value
    for module in (image, series, text, tabular)
    for value in vars(module).values()
    if isinstance(value, type)
    and issubclass(value, BuiltIn)
    and value.__module__ == module.__name__
    if "kind" in vars(value)
)
KINDS: dict[str, type[BuiltIn]] = {transform.kind: transform for transform in TRANSFORMS}
_NUMBER = r"\d+(?:\.\d*)?(?:e-?\d+)?|\.\d+(?:e-?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\s*-\s*({_NUMBER}):0*([1-9]\d{{0,8}})")

# How a user passes the code of transformations that a file knows only by name.
Own = Mapping[str, Callable[[Any], Any]] | Iterable[Callable[[Any], Any]]


def as_transform(value: Any) -> Transform:
    """Return the transformation for a spec, a transformation or a named callable.

    A spec of a kind that is not built in, or one that lacks a required strength, is taken as the
    name of a user's own transformation: views from elsewhere may hold any name.

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
        spec = value.strip()
        return _build(spec, *_split(spec)) if _is_built_in(spec) else Named(spec)
    named = value if isinstance(value, Named) else _name_callable(value)
    if _is_built_in(named.name):
        kind = named.name.partition(":")[0]
        rule = f"The name {named.name!r} means recal's own {kind}"
        raise InputError(rule, remedy="Give your transformation another name")
    return named


def _is_built_in(spec: str) -> bool:
    kind, colon, _ = spec.partition(":")
    return kind in KINDS and bool(colon or not KINDS[kind].needs_strength())


def by_name(transforms: Own) -> dict[str, Transform]:
    """Return transformations by name, from callables that have names or from a mapping of names to
    callables.
    """
    if isinstance(transforms, Mapping):
        transforms = [Named(name, code) for name, code in transforms.items()]
    elif callable(transforms) or isinstance(transforms, str):
        rule = "Your transformations come as {name: function} or [function, ...]"
        raise InputError(f"{rule}, got {transforms!r}.")
    return {str(transform): transform for transform in map(as_transform, transforms)}


def _name_callable(value: Any) -> Named:
    name = getattr(value, "__name__", None) or getattr(value, "name", None)
    is_named = isinstance(name, str) and name != "<lambda>"
    if not callable(value) or isinstance(value, type) or not is_named:
        rule = "A transformation is a spec such as 'zoom:0.37' or a function with a name"
        remedy = "Give a function a name with recal.transforms.Named('my-name', function)"
        raise InputError(f"{rule}, got {value!r}", remedy=remedy)
    return Named(str(name), value)


def _split(spec: str) -> tuple[Any, list[str], dict[str, Any]]:
    """Return the class that a spec names, its parts that are not options, and its options."""
    kind, *parts = spec.split(":")
    plain = [part.strip() for part in parts if "=" not in part]
    names, kinds, options = KINDS[kind].options(), field_kinds(KINDS[kind]), {}
    for place, option in enumerate(parts):
        name, equals, value = (part.strip() for part in option.partition("="))
        if not equals:
            continue
        if name not in names or name in options or place < len(plain):
            rule = f"{kind}'s options come last, as option=value, each once: {', '.join(names)}"
            raise InputError(f"{rule}; got {option!r} in {spec!r}.")
        try:
            options[name] = kinds[name].parse(value)
        except ValueError:
            options[name] = value  # the transformation's own check raises the error
    return KINDS[kind], plain, options


def _build(spec: str, family: Any, plain: list[str], options: dict[str, Any]) -> Transform:
    try:
        values = [float(part) for part in plain]
    except ValueError:
        raise _refusal(spec, family) from None
    if not family.needs_strength() <= len(values) <= family.has_strength:
        raise _refusal(spec, family)
    built: Transform = family(*values, **options)
    return built


def _refusal(spec: str, family: Any) -> InputError:
    kind, strengths = family.kind, family.strengths
    if not family.has_strength:
        return InputError(f"{kind} has no strength; it is written {kind!r} alone, got {spec!r}.")
    low, high = sorted((strengths.weak, strengths.strong))
    bounds = f"{strengths.ends[0]}{strengths.low:g}, {strengths.high:g}]"
    return InputError(
        f"{kind} takes a strength in {bounds}, such as '{kind}:{low:g}', and in a pool a range and "
        f"a count of at most one per step of {strengths.step:g}, such as "
        f"'{kind}:{low:g}-{high:g}:5'; got {spec!r}."
    )


class _Range(NamedTuple):
    """`n` strengths to draw from a grid."""

    spec: str
    family: Any  # a class of TRANSFORMS; mypy does not see its constructor
    grid: list[float]
    n: int
    options: dict[str, Any]


def pool(spec: Any, seed: int = 0, *, data: Any = None) -> tuple[Transform, ...]:
    """Return distinct transformations, drawn from ranges or given one by one.

    Parameters
    ----------
    spec : str, transformation, callable, or a sequence of these
        Text joins parts with ``+``; a part is ``kind:low-high:count`` (a grid of step 0.01, or 1
        for kinds of whole strengths; the upper end excluded; drawn without replacement),
        ``kind:strength``, or a bare ``kind``: for ``flip`` and ``shift`` their default form, for
        others 10 strengths from their declared range. Options follow:
        ``zoom:0.1-0.9:20:layout=NHWC``. Callables are known by their name. ``auto`` means the
        default transformations of images; ``damage`` means seven kinds of damage to images at three
        strengths each, from which a profile learns to follow. ``auto:audio``, ``auto:series``,
        ``auto:text``, ``auto:tabular`` and ``auto:video`` are for other inputs; likewise
        ``damage:audio`` and so on.
    seed : int
        The same seed draws the same pool; the strengths of a part do not depend on the other kinds
        in the pool.
    data : array-like of shape (n_samples, n_features), optional
        Training inputs, for kinds that learn from them: ``median`` takes the medians.

    Examples
    --------
    >>> from recal import pool
    >>> [str(t) for t in pool("zoom:0.1-0.9:3+brightness:0.5", seed=0)]
    ['zoom:0.28', 'zoom:0.86', 'zoom:0.88', 'brightness:0.5']
    """
    check(seed, Number(0, whole=True), "seed")
    items = [spec] if isinstance(spec, str) or callable(spec) else spec
    if not isinstance(items, Iterable):
        rule = "A pool is text such as 'zoom:0.1-0.9:20', or a sequence of transformations"
        raise InputError(f"{rule}, got {spec!r}.")
    parts = [part for item in items for part in _read_item(item, data)]
    if not parts:
        raise InputError("A pool needs at least one transformation, such as 'zoom:0.5-0.9:10'.")
    # A range never draws a single transformation.
    single = [part for part in parts if not isinstance(part, _Range)]
    for one in single:
        if single.count(one) > 1:
            raise InputError(f"The transformation {str(one)!r} is in the pool twice.")
    drawn: set[Transform] = set(single)
    result: list[Transform] = []
    for part in parts:
        result += _draw(part, int(seed), drawn) if isinstance(part, _Range) else [part]
        drawn.update(result)
    return tuple(result)


def _read_item(item: Any, data: Any) -> list[_Range | Transform]:
    if not isinstance(item, str):
        return [as_transform(item)]
    parts = []
    for spec in map(str.strip, item.split("+")):
        name, _, kind = spec.partition(":")
        if name not in NAMED:
            parts.append(_read_part(spec, data))
            continue
        if (kind or "image") not in NAMED[name]:
            kinds = ", ".join(NAMED[name])
            raise InputError(f"The pool {name!r} exists for {kinds}, got {spec!r}.")
        parts += _read_item(NAMED[name][kind or "image"], data)
    return parts


def _read_part(spec: str, data: Any) -> _Range | Transform:
    kind = spec.partition(":")[0]
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(
            f"There is no transformation {kind!r} in {spec!r}; there are: "
            f"{', '.join(KINDS)}.{hint}",
            remedy="Your own are passed as callables: pool([your_function, 'zoom:0.5'])",
        )
    family, plain, options = _split(spec)
    if data is not None:
        options = {**family.options_from(data), **options}
    if not plain and family.needs_strength():
        grid = _grid(family, *sorted((family.strengths.weak, family.strengths.strong)))
        return _Range(spec, family, grid, min(10, len(grid)), options)
    span = _RANGE.fullmatch(":".join(plain))
    if span is None or not family.has_strength:
        return _build(spec, family, plain, options)
    low, high, count, strengths = float(span[1]), float(span[2]), int(span[3]), family.strengths
    is_above = low > strengths.low if strengths.ends[0] == "(" else low >= strengths.low
    # Check before building a grid: one from 0 to 1e9 would hold a hundred billion strengths.
    if not is_above or not low < high <= strengths.high + strengths.step + 1e-9:
        raise _refusal(spec, family)
    return _Range(spec, family, _grid(family, low, high), count, options)


def _grid(family: type[BuiltIn], low: float, high: float) -> list[float]:
    # Count whole steps, because 0.1 + 79 * 0.01 is not 0.89.
    step = family.strengths.step
    count = int(np.ceil((high - low) / step - 1e-9))
    return [round(low + index * step, 10) for index in range(count)]


def _draw(part: _Range, seed: int, drawn: set[Transform]) -> list[Transform]:
    grid = [part.family(strength, **part.options) for strength in part.grid]
    free = [transform for transform in grid if transform not in drawn]
    if part.n > len(free):
        raise InputError(
            f"{part.spec!r} has {len(free)} strengths that are not in the pool already (the upper "
            f"end is excluded), and asks for {part.n}."
        )
    rng = np.random.default_rng([seed, crc32(part.family.kind.encode())])
    return [free[index] for index in np.sort(rng.choice(len(free), part.n, replace=False))]
