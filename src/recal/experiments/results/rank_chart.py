"""The paper's bar chart: how often each group ranks first to last by ECE. Plain SVG, which needs no package."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

# From least to largest error: dark to light of one hue, told apart in print and by the colour-blind.
_SHADES = ("#08306b", "#2e7ebc", "#94c4df", "#deebf7")
_PLACES = ("least ECE", "second", "third", "largest")
_BAR, _GAP, _HEIGHT, _LEFT, _TOP = 22, 26, 180, 46, 58


def rank_chart(title: str, counts: Mapping[str, list[int]]) -> str:
    """Return an SVG picture with four bars for each group.

    Parameters
    ----------
    counts : mapping of group to how often it was first, second, third and fourth
    """
    most = max((n for places in counts.values() for n in places), default=0) or 1
    cluster = 4 * _BAR + _GAP
    width = _LEFT + len(counts) * cluster + 10
    base = _TOP + _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {base + 40}" width="{width}" '
        f'height="{base + 40}" role="img" aria-label="{escape(title)}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for place, name in enumerate(_PLACES):
        x: float = _LEFT + place * 95
        parts.append(f'<rect x="{x}" y="28" width="12" height="12" fill="{_SHADES[place]}" stroke="#333"/>')
        parts.append(f'<text x="{x + 17}" y="38">{name}</text>')
    for tick in _ticks(most):
        y = base - tick / most * _HEIGHT
        parts.append(f'<line x1="{_LEFT}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick}</text>')
    for number, (group, places) in enumerate(counts.items()):
        start = _LEFT + number * cluster + _GAP / 2
        for place, count in enumerate(places):
            height = count / most * _HEIGHT
            x = start + place * _BAR
            parts.append(
                f'<rect x="{x:.1f}" y="{base - height:.1f}" width="{_BAR - 3}" height="{height:.1f}" '
                f'fill="{_SHADES[place]}" stroke="#333"><title>group {group}, {_PLACES[place]}: {count}</title></rect>'
            )
        parts.append(f'<text x="{start + 2 * _BAR:.1f}" y="{base + 18}" text-anchor="middle">group {group}</text>')
    parts.append(f'<line x1="{_LEFT}" x2="{width - 10}" y1="{base}" y2="{base}" stroke="#333"/></svg>')
    return "\n".join(parts) + "\n"


def _ticks(most: int) -> list[int]:
    step = max(1, -(-most // 4))
    return list(range(0, most + 1, step))
