"""A figure as a value: two axes and marks in data coordinates, and its rendering as SVG.

Every figure of recal is one function in `charts` that returns a `Chart`. The page, notebooks and the documentation show
it as SVG; `plots` draws the same value into matplotlib axes. Colours are named here once, for light and dark ground.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from math import ceil, floor, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any] | Sequence[float]
Ticks = tuple[tuple[float, str], ...]

# Name: colour on light ground, colour on dark ground. Neighbours differ in lightness, so grey prints stay readable.
PALETTE = {
    "ink": ("#1b2430", "#e6ebf1"),
    "soft": ("#566272", "#a7b2bf"),
    "line": ("#d9dfe6", "#343e4a"),
    "paper": ("#ffffff", "#1a212a"),
    "wash": ("#f4f6f8", "#11161c"),
    "before": ("#c46f17", "#f0a04b"),
    "before-soft": ("#f3d3ac", "#5c3d17"),
    "after": ("#0b5394", "#6cb2f2"),
    "after-soft": ("#b7d0ea", "#1f4568"),
    "link": ("#0b5394", "#8cc4f7"),
    "better": ("#0b5394", "#8cc4f7"),
    "worse": ("#a4480a", "#f5a262"),
    "grid": ("#e7ebef", "#2a333e"),
    "axis": ("#77828f", "#8b97a5"),
    "edge": ("#ffffff", "#1a212a"),
    "g1": ("#4b1248", "#7b3a78"),
    "g2": ("#b5561c", "#d17a3c"),
    "g3": ("#4fa3a5", "#6fc0c2"),
    "g4": ("#bcd7ee", "#e3f0fb"),
    "group-edge": ("#33475b", "#0d1116"),
    "r1": ("#deebf7", "#24384c"),
    "r2": ("#94c4df", "#35648c"),
    "r3": ("#2e7ebc", "#62a5dc"),
    "r4": ("#08306b", "#d6e9fb"),
}
WIDTH = 460
_TOP, _RIGHT, _BOTTOM, _LEFT = 14, 26, 44, 74
_LINE_HEIGHT = 16
# Groups differ by shape as well as by lightness: disc, triangle, square, cross.
_SHAPES = {
    "g1": "M-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0z",
    "g2": "M0 -3.2L3 2.4H-3z",
    "g3": "M-2.4 -2.4H2.4V2.4H-2.4z",
    "g4": "M-3 -1H-1V-3H1V-1H3V1H1V3H-1V1H-3z",
}


@dataclass(frozen=True)
class Axis:
    """One axis: its range, its label, and ticks as (position, text). A line break in a text starts a second line."""

    low: float
    high: float
    label: str = ""
    ticks: Ticks = ()
    grid: bool = True  # lines across the chart at the ticks; only the vertical axis has them


@dataclass(frozen=True)
class Line:
    """A line through points."""

    x: Values
    y: Values
    style: str
    words: str = ""
    id: str = ""


@dataclass(frozen=True)
class Area:
    """The area between two curves over the same x."""

    x: Values
    low: Values
    high: Values
    style: str


@dataclass(frozen=True)
class Boxes:
    """Rectangles; `words` explain each of them, and `inset` narrows each by this many units of the SVG."""

    left: Values
    right: Values
    bottom: Values
    top: Values
    style: str
    words: Sequence[str] = ()
    inset: float = 0.0


@dataclass(frozen=True)
class Dots:
    """Points; `words` explain each of them. The style `speck g1` to `speck g4` gives each group its own shape."""

    x: Values
    y: Values
    style: str
    words: Sequence[str] = ()
    size: float = 4.0
    id: str = ""


@dataclass(frozen=True)
class Text:
    """Words at a point of the data."""

    x: float
    y: float
    words: str
    style: str = "tick"
    anchor: str = "middle"


Mark = Line | Area | Boxes | Dots | Text


@dataclass(frozen=True)
class Chart:
    """A whole figure.

    Attributes
    ----------
    title : what the figure shows, read aloud by screen readers
    keys : what each style stands for, as {style: words}; empty where one look is enough
    height, left : height of the SVG and space for the labels of the vertical axis
    """

    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    keys: dict[str, str] = field(default_factory=dict)
    height: int = 300
    left: int = _LEFT


def tick(value: float) -> str:
    return f"{value:g}"


def percent_tick(value: float) -> str:
    return f"{100 * value:.3g} %"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers from `low` to `high`, about this many."""
    span = (high - low) or abs(high) or 1.0
    step = float(10 ** floor(log10(span / about)))
    step *= next((factor for factor in (1, 2, 5) if span / (step * factor) <= about), 10)
    first = ceil(low / step - 1e-9)
    return [round((first + i) * step, 12) for i in range(int((high - first * step) / step + 1e-9) + 1)]


def svg(chart: Chart, *, id: str = "", alone: bool = False) -> str:
    """Render a chart as one SVG element.

    Parameters
    ----------
    id : of the element; with it, the script of the page can find the frame of the data in its attributes
    alone : draw title, keys and colours (light and dark) as well, for a file of its own
    """
    return _Drawing(chart, alone).render(id)


@cache
def style_sheet(scope: str = "") -> str:
    """Return colours, light and dark, and the look of every mark as CSS.

    `scope` is a selector that all rules are limited to, for a chart inside a page that is not ours.
    """
    light, dark = (" ".join(f"--{name}: {pair[index]};" for name, pair in PALETTE.items()) for index in (0, 1))
    root = scope or ":root"
    rules = [f"{root} {{ {light} }}", f"@media screen and (prefers-color-scheme: dark) {{ {root} {{ {dark} }} }}"]
    for rule in files("recal.reporting").joinpath("templates", "chart.css").read_text(encoding="utf-8").splitlines():
        selectors, brace, body = rule.partition(" {")
        rules.append(", ".join(f"{scope} {one}".strip() for one in selectors.split(", ")) + brace + body)
    return "\n".join(rules)


class _Drawing:
    def __init__(self, chart: Chart, alone: bool) -> None:
        self.chart, self.alone = chart, alone
        lines = max((text.count("\n") for _, text in chart.x.ticks), default=0)
        labelled = _LINE_HEIGHT if chart.x.label or lines else 0
        extra = max(lines - 1, 0) * _LINE_HEIGHT
        self.top = _TOP + (26 + (22 if chart.keys else 0) if alone else 0)
        self.left, self.right = chart.left, WIDTH - _RIGHT
        self.height = chart.height + self.top - _TOP
        self.bottom = self.height - (_BOTTOM - _LINE_HEIGHT + labelled) - extra
        self.parts: list[str] = []
        if alone:
            self._text(10, 20, chart.title, "strong", "start")
            self._legend()
        self._axes()
        for mark in chart.marks:
            self._mark(mark)

    def px(self, value: float) -> float:
        axis = self.chart.x
        return float(self.left + (value - axis.low) / ((axis.high - axis.low) or 1.0) * (self.right - self.left))

    def py(self, value: float) -> float:
        axis = self.chart.y
        return float(self.bottom - (value - axis.low) / ((axis.high - axis.low) or 1.0) * (self.bottom - self.top))

    def render(self, id: str) -> str:
        attributes: dict[str, Any] = {"viewBox": f"0 0 {WIDTH} {self.height}", "role": "img"}
        attributes["aria_label"] = self.chart.title
        style = ""
        if self.alone:
            attributes |= {"xmlns": "http://www.w3.org/2000/svg", "css": "recal", "width": WIDTH, "height": self.height}
            style = tag("style", style_sheet(".recal")) + tag("rect", css="paper", width=WIDTH, height=self.height)
        if id:
            low, high = self.chart.y.low, self.chart.y.high
            frame = {"left": self.left, "right": self.right, "top": self.top, "bottom": self.bottom}
            attributes |= {"id": id, **{f"data_{name}": value for name, value in frame.items()}}
            attributes |= {"data_low": repr(float(low)), "data_high": repr(float(high))}
        return tag("svg", tip(self.chart.title) + style + "".join(self.parts), **attributes)

    def _legend(self) -> None:
        x, y = 10.0, 32
        for style, words in self.chart.keys.items():
            if style[0] in "gr" and style[1:].isdigit():
                self._add("rect", css=f"{'flow' if style[0] == 'g' else 'rank'} {style}", x=x, y=y, width=12, height=12)
            else:
                self._add("polyline", css=f"curve {style}", points=f"{x:.1f},{y + 6} {x + 14:.1f},{y + 6}")
            self._text(x + 19, y + 10, words, "tick", "start")
            x += 30 + 6.4 * len(words)

    def _axes(self) -> None:
        x, y = self.chart.x, self.chart.y
        for value, words in y.ticks:
            height = self.py(value)
            if y.grid:
                self._add("line", css="grid", x1=self.left, x2=self.right, y1=height, y2=height)
            self._text(self.left - 7, height + 4, words, "tick", "end")
        for value, words in x.ticks:
            for number, line in enumerate(words.split("\n")):
                self._text(self.px(value), self.bottom + 17 + _LINE_HEIGHT * number, line, "tick", "middle")
        self._add("line", css="axis", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom)
        if x.label:
            self._text((self.left + self.right) / 2, self.height - 8, x.label, "label", "middle")
        if y.label:
            turn = f"translate(14 {(self.top + self.bottom) / 2:.1f}) rotate(-90)"
            self._add("text", escape(y.label), css="label", transform=turn, text_anchor="middle")

    def _mark(self, mark: Mark) -> None:
        if isinstance(mark, Line):
            named = {"id": mark.id} if mark.id else {}
            self._add("polyline", tip(mark.words), css=mark.style, points=self._points(mark.x, mark.y), **named)
        elif isinstance(mark, Area):
            back = self._points(list(mark.x)[::-1], list(mark.low)[::-1])
            self._add("polygon", css=mark.style, points=f"{self._points(mark.x, mark.high)} {back}")
        elif isinstance(mark, Boxes):
            for (x0, x1, y0, y1), words in _each((mark.left, mark.right, mark.bottom, mark.top), mark.words):
                left, right = sorted((self.px(x0), self.px(x1)))
                top, bottom = sorted((self.py(y0), self.py(y1)))
                width = max(right - left - 2 * mark.inset, 0.5)
                box = {"x": left + mark.inset, "y": top, "width": width, "height": bottom - top}
                self._add("rect", tip(words), css=mark.style, **box)
        elif isinstance(mark, Dots):
            self._dots(mark)
        else:
            self._text(self.px(mark.x), self.py(mark.y) + 4, mark.words, mark.style, mark.anchor)

    def _dots(self, mark: Dots) -> None:
        named = {"id": mark.id} if mark.id else {}
        shape = _SHAPES.get(mark.style.split()[-1]) if mark.style.startswith("speck") else None
        for (x, y), words in _each((mark.x, mark.y), mark.words):
            if shape is None:
                self._add("circle", tip(words), css=mark.style, cx=self.px(x), cy=self.py(y), r=mark.size, **named)
            else:
                place = f"translate({self.px(x):.1f} {self.py(y):.1f})"
                self._add("path", tip(words), css=mark.style, d=shape, transform=place)

    def _points(self, x: Values, y: Values) -> str:
        return " ".join(f"{self.px(a):.1f},{self.py(b):.1f}" for a, b in zip(x, y))

    def _text(self, left: float, top: float, words: str, css: str, anchor: str) -> None:
        self._add("text", escape(words), css=css, x=float(left), y=float(top), text_anchor=anchor)

    def _add(self, name: str, inside: str = "", **attributes: Any) -> None:
        self.parts.append(tag(name, inside, **attributes))


def _each(columns: tuple[Values, ...], words: Sequence[str]) -> Iterable[tuple[tuple[float, ...], str]]:
    rows = list(zip(*(np.asarray(column, np.float64).tolist() for column in columns)))
    return zip(rows, words or [""] * len(rows))


def tag(name: str, inside: str = "", **attributes: Any) -> str:
    """Return an element; `css` stands for class, `text_anchor` for text-anchor. `inside` is already escaped."""
    words = []
    for key, value in attributes.items():
        text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escape(str(value))
        words.append(f'{"class" if key == "css" else key.replace("_", "-")}="{text}"')
    return f"<{' '.join([name, *words])}>{inside}</{name}>"


def tip(words: str) -> str:
    """Return the text that a browser shows while the pointer rests on a mark."""
    return tag("title", escape(words)) if words else ""
