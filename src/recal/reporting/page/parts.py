"""What all parts of a page need to know, and the pieces of markup that they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from recal.comparison import Comparison
from recal.reporting.data.automation import Automation
from recal.reporting.data.damage import DamageStudy
from recal.reporting.data.thresholds import Thresholds
from recal.reporting.data.verdict import Verdict


@dataclass(frozen=True)
class Page:
    """A comparison, and which of its methods is looked at."""

    comparison: Comparison
    shown: str  # the method that is compared with the one before, until another is chosen
    before: str | None  # None where there is only one set of probabilities
    advice: str  # which method to use, and why
    tables: Mapping[str, Thresholds]
    verdicts: Mapping[str, Verdict]
    automated: Mapping[str, Automation]  # by method
    headline: Sequence[str]  # which method, what it costs, how much can be automated
    title: str
    command: str
    inputs: Any = None  # by row of the file that was tested on: images as arrays, or paths
    columns: Mapping[str, Any] = field(default_factory=dict)  # by name, one value per test row
    damage: DamageStudy | None = None  # what is known of damaged inputs

    @property
    def choices(self) -> Sequence[str]:
        """The methods that may be compared with the one before."""
        return [name for name in self.comparison.methods if name != self.before]

    @property
    def keys(self) -> Mapping[str, str]:
        """The methods shown first, by "before" and "after"."""
        return {**({} if self.before is None else {"before": self.before}), "after": self.shown}

    def per_method(self, blocks: Mapping[str, str]) -> str:
        """Blocks of which the script shows that of the chosen method."""
        return "".join(
            f'<div data-method="{escape(name)}"{"" if name == self.shown else " hidden"}>{block}</div>'
            for name, block in blocks.items()
        )


def figure(title: str, svg: str, caption: str = "", data: str = "") -> str:
    """A card with one chart; `caption` and `data`, a table of what is drawn, are markup."""
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    behind = f'<details class="data"><summary>Numbers of this chart</summary>{data}</details>' if data else ""
    return f'<figure class="card"><h3>{escape(title)}</h3>{svg}{below}{behind}</figure>'


def section(name: str, title: str, body: str, note: str = "") -> str:
    """A titled part of the page; `body` and `note` are markup."""
    words = f'<p class="note">{note}</p>' if note else ""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{words}{body}</section>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", card: bool = True) -> str:
    """A table in a card that scrolls sideways on narrow screens; cells are markup."""
    header = "".join(f'<th scope="col">{escape(word)}</th>' for word in head)
    lines = "".join(
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )
    named = f'<caption class="spoken">{escape(caption)}</caption>' if caption else ""
    # Whoever has no pointer must be able to reach what scrolls.
    inside = f"<table>{named}<thead><tr>{header}</tr></thead><tbody>{lines}</tbody></table>"
    told = f' role="region" aria-label="{escape(caption)}"' if caption else ""
    return f'<div class="{"card " if card else ""}scroll" tabindex="0"{told}>{inside}</div>'


def legend(keys: Mapping[str, str]) -> str:
    """What each colour of a chart stands for: style class to words."""
    words = "".join(
        f'<span><i class="key {css}" aria-hidden="true"></i>{escape(name)}</span>' for css, name in keys.items()
    )
    return f'<span class="legend">{words}</span>'


def spoken(words: str) -> str:
    """Words that only a screen reader meets."""
    return f'<span class="spoken">{escape(words)}</span>'
