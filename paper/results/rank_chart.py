"""The paper's bar chart: how often each group ranks first to last by ECE."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recal.reporting.chart import Axis, Boxes, Chart, svg, tick, ticks

_PLACES = {"r1": "smallest ECE", "r2": "second", "r3": "third", "r4": "largest"}


def rank_chart(title: str, counts: Mapping[str, list[int]]) -> str:
    """Return an SVG file with four bars for each group.

    Parameters
    ----------
    counts : mapping of group to how often it ranked first, second, third and fourth
    """
    most = max(1, *(count for row in counts.values() for count in row))
    marks = []
    for place, (style, words) in enumerate(_PLACES.items()):
        left = np.arange(len(counts)) + 0.1 + 0.2 * place
        column = [row[place] for row in counts.values()]
        texts = [f"group {group}: {words} {n} times" for group, n in zip(counts, column)]
        bottom = np.zeros(len(column))
        marks.append(Boxes(left, left + 0.2, bottom, column, f"rank {style}", texts, 1))
    x_ticks = tuple((index + 0.5, f"group {group}") for index, group in enumerate(counts))
    y_ticks = tuple((float(value), tick(value)) for value in ticks(0, most))
    x, y = Axis(0, len(counts), "", x_ticks), Axis(0, most, "transformations", y_ticks)
    return svg(Chart(title, x, y, marks, _PLACES, 270), alone=True) + "\n"
