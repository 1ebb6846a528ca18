"""A pool: the distinct transformations from which a fit draws."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from recal.errors import InputError, Remedy
from recal.transforms.base import BuiltIn, Transform, format_strength
from recal.transforms.damage import DAMAGE
from recal.transforms.parse import KINDS, as_transform, build, parse_options, read_strength

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
