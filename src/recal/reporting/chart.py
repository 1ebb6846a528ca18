"""A figure as a value: two axes and marks in data coordinates, and its rendering as SVG.

Every figure of recal is one function in `charts` that returns a `Chart`. The page, notebooks and
the documentation show it as SVG. Colours are named here once, for light and dark ground.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import repeat
from math import ceil, floor, log10
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from recal.comparison.results import number, signed

Points = NDArray[Any] | Sequence[float]
Ticks = tuple[tuple[float, str], ...]

# Name: colour on light ground, colour on dark ground. Neighbours differ in lightness, so grey
# prints stay readable.
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
    "worse": ("#a4480a", "#f5a262"),
    "grid": ("#e7ebef", "#2a333e"),
    "axis": ("#77828f", "#8b97a5"),
    "r1": ("#deebf7", "#24384c"),
    "r2": ("#94c4df", "#35648c"),
    "r3": ("#2e7ebc", "#62a5dc"),
    "r4": ("#08306b", "#d6e9fb"),
}
WIDTH = 460
_TOP, _RIGHT, _BOTTOM, _LEFT = 14, 26, 44, 74
_LINE_HEIGHT = 16


@dataclass(frozen=True)
class Axis:
    """One axis: its range, its label, and ticks as (position, text)."""

    low: float
    high: float
    label: str = ""
    ticks: Ticks = ()
    grid: bool = True  # lines across the chart at the ticks; only the vertical axis has them


@dataclass(frozen=True)
class Line:
    """A line through points."""

    x: Points
    y: Points
    style: str
    words: str = ""
    id: str = ""


@dataclass(frozen=True)
class Area:
    """The area between two curves over the same x."""

    x: Points
    low: Points
    high: Points
    style: str


@dataclass(frozen=True)
class Boxes:
    """Rectangles; `words` explain each of them, and `inset` narrows each by this many units of the
    SVG.
    """

    left: Points
    right: Points
    bottom: Points
    top: Points
    style: str
    words: Sequence[str] = ()
    inset: float = 0.0


@dataclass(frozen=True)
class Dots:
    """Points; `words` explain each of them."""

    x: Points
    y: Points
    style: str
    words: Sequence[str] = ()
    size: float = 4.0
    id: str = ""


Mark = Line | Area | Boxes | Dots


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


def percent(value: float, digits: int = 1) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.{digits}f} %"


def percent_tick(value: float) -> str:
    return f"{100 * value:.3g} %"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers from `low` to `high`, about this many."""
    span = (high - low) or abs(high) or 1.0
    step = float(10 ** floor(log10(span / about)))
    step *= next((factor for factor in (1, 2, 5) if span / (step * factor) <= about), 10)
    first = ceil(low / step - 1e-9)
    return [
        round((first + i) * step, 12) for i in range(int((high - first * step) / step + 1e-9) + 1)
    ]


def svg(chart: Chart, *, id: str = "", alone: bool = False) -> Markup:
    """Render a chart as one SVG element.

    Parameters
    ----------
    id : of the element
        With it, the script of the page finds the frame of the data in the element's attributes.
    alone : draw title, keys and colours (light and dark) as well, for a file of its own
    """
    return render("chart.svg", chart=chart, id=id, alone=alone, frame=_Frame(chart, alone))


@cache
def style_sheet(scope: str = "") -> str:
    """Return colours, light and dark, and the look of every mark as CSS.

    `scope` is a selector that all rules are limited to, for a chart inside a page that is not ours.
    """
    light, dark = (
        " ".join(f"--{name}: {pair[index]};" for name, pair in PALETTE.items()) for index in (0, 1)
    )
    root = scope or ":root"
    rules = [
        f"{root} {{ {light} }}",
        f"@media screen and (prefers-color-scheme: dark) {{ {root} {{ {dark} }} }}",
    ]
    for rule in read_template("chart.css").splitlines():
        selectors, brace, body = rule.partition(" {")
        rules.append(
            ", ".join(f"{scope} {one}".strip() for one in selectors.split(", ")) + brace + body
        )
    return "\n".join(rules)


def read_template(name: str) -> str:
    return files("recal.reporting").joinpath("templates", name).read_text(encoding="utf-8")


def render(name: str, **values: Any) -> Markup:
    """Fill in one of the templates of the page, its figures and the cards of notebooks."""
    return Markup(_environment().get_template(name).render(**values))


def sentences(macro: str, *values: Any) -> tuple[str, ...]:
    """Return what a macro of sentences.txt says, line by line."""
    text = getattr(_environment().get_template("sentences.txt").module, macro)(*values)
    return tuple(line for line in str(text).splitlines() if line.strip())


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("recal.reporting", "templates"),
        autoescape=lambda name: not str(name).endswith(".txt"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "svg": svg,
        "count": "{:,}".format,
        "percent": percent,
        "number": number,
        "signed": signed,
    }
    # Keeps a number and its percent sign on one line.
    environment.filters["words"] = lambda text: escape(text).replace(" %", "\u00a0%")
    environment.globals |= {"style_sheet": style_sheet, "read_template": read_template}
    return environment


class _Frame:
    """The rectangle of the data inside the SVG, and places of the data as text."""

    def __init__(self, chart: Chart, alone: bool) -> None:
        self.chart, self.width = chart, WIDTH
        self.top = _TOP + (26 + (22 if chart.keys else 0) if alone else 0)
        self.left, self.right = chart.left, WIDTH - _RIGHT
        self.height = chart.height + self.top - _TOP
        self.bottom = self.height - (_BOTTOM if chart.x.label else _BOTTOM - _LINE_HEIGHT)

    def x(self, values: Points | float) -> NDArray[np.float64]:
        axis = self.chart.x
        share = (np.asarray(values, np.float64) - axis.low) / ((axis.high - axis.low) or 1.0)
        return self.left + share * (self.right - self.left)

    def y(self, values: Points | float) -> NDArray[np.float64]:
        axis = self.chart.y
        share = (np.asarray(values, np.float64) - axis.low) / ((axis.high - axis.low) or 1.0)
        return self.bottom - share * (self.bottom - self.top)

    def points(self, x: Points, y: Points) -> str:
        pairs = zip(self.x(x).tolist(), self.y(y).tolist())
        return " ".join([f"{a:.1f},{b:.1f}" for a, b in pairs])

    def label(self, x: float, y: float, words: str, css: str, anchor: str) -> Markup:
        element = '<text class="{}" x="{:g}" y="{:g}" text-anchor="{}">{}</text>'
        return Markup(element).format(css, round(float(x), 1), round(float(y), 1), anchor, words)

    def elements(self, mark: Mark) -> Markup:
        """The SVG elements of one mark."""
        if isinstance(mark, Area):
            back = list(mark.x)[::-1], list(mark.low)[::-1]
            outline = f"{self.points(mark.x, mark.high)} {self.points(*back)}"
            return Markup('<polygon class="{}" points="{}"></polygon>').format(mark.style, outline)
        if isinstance(mark, Line):
            element = Markup('<polyline class="{}" points="{}"{}>{}</polyline>')
            points = self.points(mark.x, mark.y)
            return element.format(mark.style, points, _id(mark.id), _tip(mark.words))
        if isinstance(mark, Boxes):
            ends = np.sort([self.x(mark.left), self.x(mark.right)], axis=0)
            heights = np.sort([self.y(mark.bottom), self.y(mark.top)], axis=0)
            width = np.maximum(ends[1] - ends[0] - 2 * mark.inset, 0.5)
            columns = [ends[0] + mark.inset, heights[0], width, heights[1] - heights[0]]
            element = Markup(
                '<rect class="{}" x="{:g}" y="{:g}" width="{:g}" height="{:g}">{}</rect>'
            )
            rest: tuple[Any, ...] = ()
        else:
            columns, rest = [self.x(mark.x), self.y(mark.y)], (mark.size, _id(mark.id))
            element = Markup('<circle class="{}" cx="{:g}" cy="{:g}" r="{:g}"{}>{}</circle>')
        rows = zip(np.round(np.transpose(columns), 1).tolist(), mark.words or repeat(""))
        tips = {words: _tip(words) for words in dict.fromkeys(mark.words or [""])}
        style = mark.style
        return Markup("\n").join(
            [element.format(style, *row, *rest, tips[words]) for row, words in rows]
        )


def _tip(words: str) -> Markup:
    return Markup("<title>{}</title>").format(words) if words else Markup()


def _id(name: str) -> Markup:
    return Markup(' id="{}"').format(name) if name else Markup()
