"""A small chart in SVG: axes, lines, bands, bars, points. Colours come from the page's style sheet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

from numpy.typing import NDArray

Values = NDArray[Any] | Sequence[float]


def tag(name: str, inside: str = "", **attributes: Any) -> str:
    """An element; `css` stands for class, `text_anchor` for text-anchor. `inside` is markup, already escaped."""
    words = []
    for key, value in attributes.items():
        text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escape(str(value))
        words.append(f'{"class" if key == "css" else key.replace("_", "-")}="{text}"')
    return f"<{' '.join([name, *words])}>{inside}</{name}>"


def tip(words: str) -> str:
    """What a pointer that rests on an element is told."""
    return tag("title", escape(words)) if words else ""


WIDTH = 460


class Chart:
    """Draws in data coordinates; `str(chart)` is the SVG.

    Parameters
    ----------
    title : what the chart shows, read aloud by screen readers
    x, y : (low, high) ranges of the data
    margins : top, right, bottom, left
    """

    def __init__(
        self,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        height: int = 300,
        margins: tuple[int, int, int, int] = (14, 26, 44, 74),
    ) -> None:
        self.title, self.width, self.height = title, WIDTH, height
        top, right, bottom, left = margins
        self.left, self.right, self.top, self.bottom = left, WIDTH - right, top, height - bottom
        self._x, self._y = x, y
        self._parts: list[str] = []

    def px(self, value: float) -> float:
        """A horizontal data value in the chart's own units."""
        low, high = self._x
        return float(self.left + (value - low) / ((high - low) or 1.0) * (self.right - self.left))

    def py(self, value: float) -> float:
        """A vertical data value in the chart's own units."""
        low, high = self._y
        return float(self.bottom - (value - low) / ((high - low) or 1.0) * (self.bottom - self.top))

    def axes(
        self,
        x_ticks: Sequence[float],
        y_ticks: Sequence[float],
        x_label: str,
        y_label: str,
        *,
        x_format: Callable[[float], str] = "{:g}".format,
        y_format: Callable[[float], str] = "{:g}".format,
    ) -> Chart:
        for value in y_ticks:
            y = self.py(value)
            self.add("line", css="grid", x1=self.left, x2=self.right, y1=y, y2=y)
            self.label(self.left - 7, y + 4, y_format(value), anchor="end")
        for value in x_ticks:
            self.label(self.px(value), self.bottom + 17, x_format(value))
        self.add("line", css="axis", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom)
        self.label((self.left + self.right) / 2, self.bottom + 36, x_label, css="label")
        turn = f"translate(14 {(self.top + self.bottom) / 2:.1f}) rotate(-90)"
        self.add("text", escape(y_label), css="label", transform=turn, text_anchor="middle")
        return self

    def line(self, x: Values, y: Values, css: str, words: str = "", **attributes: str) -> Chart:
        return self.add("polyline", tip(words), css=css, points=self._points(x, y), **attributes)

    def area(self, x: NDArray[Any], low: NDArray[Any], high: NDArray[Any], css: str, words: str = "") -> Chart:
        around = f"{self._points(x, high)} {self._points(x[::-1], low[::-1])}"
        return self.add("polygon", tip(words), css=css, points=around)

    def box(self, x0: float, x1: float, y0: float, y1: float, css: str, words: str = "", inset: float = 0.0) -> Chart:
        left, right = sorted((self.px(x0), self.px(x1)))
        top, bottom = sorted((self.py(y0), self.py(y1)))
        width = max(right - left - 2 * inset, 0.5)
        return self.add("rect", tip(words), css=css, x=left + inset, y=top, width=width, height=bottom - top)

    def dot(self, x: float, y: float, css: str, words: str = "", radius: float = 4.0, **attributes: str) -> Chart:
        return self.add("circle", tip(words), css=css, cx=self.px(x), cy=self.py(y), r=radius, **attributes)

    def shape(self, x: float, y: float, corners: str, css: str, words: str = "") -> Chart:
        """A small filled shape around a point; `corners` is a path relative to it, in the chart's own units."""
        place = f"translate({self.px(x):.1f} {self.py(y):.1f})"
        return self.add("path", tip(words), css=css, d=corners, transform=place)

    def label(self, left: float, top: float, words: str, css: str = "tick", anchor: str = "middle") -> Chart:
        """Words at a place in the chart's own units."""
        return self.add("text", escape(words), css=css, x=float(left), y=float(top), text_anchor=anchor)

    def add(self, name: str, inside: str = "", **attributes: Any) -> Chart:
        """Any other element, in the chart's own units."""
        self._parts.append(tag(name, inside, **attributes))
        return self

    def _points(self, x: Values, y: Values) -> str:
        return " ".join(f"{self.px(a):.1f},{self.py(b):.1f}" for a, b in zip(x, y))

    def svg(self, style: str = "", **attributes: Any) -> str:
        """The whole chart; attributes go to its outermost element, and `style` is for one that stands on no page."""
        inside = tip(self.title) + (tag("style", style) if style else "") + "".join(self._parts)
        box = f"0 0 {self.width} {self.height}"
        return tag("svg", inside, viewBox=box, role="img", aria_label=self.title, **attributes)

    def __str__(self) -> str:
        return self.svg()


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about so many."""
    span = (high - low) or abs(high) or 1.0
    step = float(10 ** floor(log10(span / about)))
    step *= next((m for m in (1, 2, 5) if span / (step * m) <= about), 10)
    first = ceil(low / step - 1e-9)
    return [round((first + i) * step, 12) for i in range(int((high - first * step) / step + 1e-9) + 1)]
