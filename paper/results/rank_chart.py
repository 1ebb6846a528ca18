"""The paper's bar chart, how often each group ranks first to last by ECE, as a picture that stands alone."""

from __future__ import annotations

from collections.abc import Mapping

from recal.reporting.drawing.group_charts import draw_ranks

_PLACES = ("least ECE", "second", "third", "largest")
# The report's charts take their colours from its page; a file of its own brings them along.
_STYLE = """text { font: 12px sans-serif; fill: #333; } .title { font-size: 14px; } .grid { stroke: #ddd; }
.axis, .rank { stroke: #333; } .r1 { fill: #deebf7; }
.r2 { fill: #94c4df; } .r3 { fill: #2e7ebc; } .r4 { fill: #08306b; }"""


def rank_chart(title: str, counts: Mapping[str, list[int]]) -> str:
    """Return an SVG picture with four bars for each group.

    Parameters
    ----------
    counts : mapping of group to how often it was first, second, third and fourth
    """
    labels = [f"group {group}" for group in counts]
    chart = draw_ranks(list(counts.values()), labels, _PLACES, title=title, top=58)
    chart.label(chart.left, 18, title, css="title", anchor="start")
    for place, name in enumerate(_PLACES):
        left = chart.left + place * 92.0
        chart.add("rect", css=f"rank r{place + 1}", x=left, y=28, width=12, height=12)
        chart.label(left + 17, 38, name, anchor="start")
    return chart.svg(xmlns="http://www.w3.org/2000/svg", width=chart.width, height=chart.height, style=_STYLE) + "\n"
