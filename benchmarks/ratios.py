"""The rows of every speed table: recal next to one other contestant, measured in the same run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Ratio:
    """CPU seconds of recal and of another contestant for the same work."""

    part: str
    """The heading that it stands under, such as "Transformations of uint8 images"."""
    what: str
    """The work, with its size: "zoom 0.5, 224 x 224 x 3"."""
    beside: str
    """The other contestant: "Pillow", "a float32 softmax in numpy", "a bare sum"."""
    ours: float
    theirs: float
    target: float | None = None
    """What `ratio` should be at most."""
    before: float | None = None
    """The ratio of release 1.0.0rc1, where it was measured."""

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.ratio <= self.target

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


def table(ratios: Iterable[Ratio]) -> list[str]:
    """Return Markdown: one heading and table for each part, in the order in which the parts came."""
    lines: list[str] = []
    part = None
    for each in ratios:
        if each.part != part:
            part = each.part
            lines += [
                "",
                f"## {part}",
                "",
                "| work | beside | recal, CPU s | other, CPU s | ratio | before | target | met |",
            ]
            lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
        met = {None: "", True: "yes", False: "**no**"}[each.met]
        lines.append(
            f"| {each.what} | {each.beside} | {each.ours:.3g} | {each.theirs:.3g} | {each.ratio:.2f} "
            f"| {_figure(each.before)} | {_figure(each.target)} | {met} |"
        )
    return lines


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
