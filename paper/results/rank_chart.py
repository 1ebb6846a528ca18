"""The paper's bar chart: how often each group ranks first to last by ECE."""

from __future__ import annotations

from collections.abc import Mapping

from recal.reporting.chart import svg
from recal.reporting.charts import ranks_chart

_PLACES = ("smallest ECE", "second", "third", "largest")


def rank_chart(title: str, counts: Mapping[str, list[int]]) -> str:
    """Return an SVG file with four bars for each group.

    Parameters
    ----------
    counts : mapping of group to how often it ranked first, second, third and fourth
    """
    labels = [f"group {group}" for group in counts]
    return svg(ranks_chart(list(counts.values()), labels, _PLACES, title), alone=True) + "\n"
