"""The page's charts of ReCal's iterations and of the four groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recal.reporting.data.figures import PlanPath, Progress, group_flow
from recal.reporting.data.groups import GROUP_LABELS, GroupStudy
from recal.reporting.drawing.charts import FIFTHS, percent_tick
from recal.reporting.drawing.svg import Chart, ticks

GROUP_CSS = ("g1", "g2", "g3", "g4")
# Groups differ by shape as well as by lightness: disc, triangle, square, cross.
SHAPES = (
    "M-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0z",
    "M0 -3.2L3 2.4H-3z",
    "M-2.4 -2.4H2.4V2.4H-2.4z",
    "M-3 -1H-1V-3H1V-1H3V1H1V3H-1V1H-3z",
)
# More dots than this hide the line.
_MOST_DOTS = 120


def progress_chart(data: Progress, path: PlanPath | None = None) -> str:
    """The calibration error after each iteration of the fit, rejected iterations hollow; `path` on other rows."""
    high = max(float(data.ece.max()), float(path.ece.max()) if path is not None else 0.0) * 1.05
    n = len(data.number)
    chart = Chart("ECE over the iterations of the fit", (0, n), (0, high))
    chart.axes(ticks(0, n), ticks(0, high), "iteration", "ECE")
    if path is not None:
        chart.line(path.steps, path.ece, "curve before", "on the test rows")
    chart.line(data.number, data.ece, "curve after", "on the fitting rows")
    for at, ece, accepted, transform in zip(data.number.tolist(), data.ece.tolist(), data.accepted, data.transform):
        if n <= _MOST_DOTS or not accepted:
            word = "accepted" if accepted else "rejected"
            chart.dot(at, ece, f"dot {'after' if accepted else 'hollow'}", f"{at}: {transform}, {word}", 2.5)
    return str(chart)


def path_chart(path: PlanPath) -> str:
    """NLL and Brier score on the test rows while steps are added, each relative to its start."""
    curves = {"NLL": path.nll / path.nll[0], "Brier score": path.brier / path.brier[0]}
    values = np.concatenate(list(curves.values()))
    low, high = float(values.min()), float(values.max())
    pad = 0.05 * ((high - low) or 0.1)
    last = float(path.steps[-1]) or 1.0
    chart = Chart("NLL and Brier score over the steps", (0, last), (low - pad, high + pad))
    chart.axes(ticks(0, last), ticks(low - pad, high + pad), "steps of the plan", "relative to before")
    chart.line((0, last), (1, 1), "reference")
    for (name, curve), css in zip(curves.items(), ("curve after", "curve before")):
        chart.line(path.steps, curve, css, name)
    return str(chart)


def betas_chart(data: Progress) -> str:
    """What each iteration did to each group's confidence."""
    low, high = float(min(data.betas.min(), 1)), float(max(data.betas.max(), 1))
    pad = 0.05 * ((high - low) or 0.1)
    n = len(data.number)
    chart = Chart("Factor on each group's logits, by iteration", (0, n), (low - pad, high + pad))
    chart.axes(ticks(0, n), ticks(low, high), "iteration", "factor on the logits")
    chart.line((0, n), (1, 1), "reference", "1: unchanged")
    for index, (label, css) in enumerate(zip(GROUP_LABELS.values(), GROUP_CSS)):
        for at, beta, transform in zip(data.number.tolist(), data.betas[:, index].tolist(), data.transform):
            if beta != 1.0:
                chart.shape(at, beta, SHAPES[index], f"speck {css}", f"{at}: {transform}, {label}, factor {beta:.3f}")
    return str(chart)


def flow_chart(data: Progress) -> str:
    """The share of samples in each group, by transformation; the mean over the iterations that drew it."""
    specs, shares = group_flow(data)
    chart = Chart("Share of samples in each group, by transformation", (0, len(specs)), (0, 1), height=320)
    chart.axes((), FIFTHS, "transformations drawn, by kind and strength", "share of samples", y_format=percent_tick)
    for column, spec in enumerate(specs):
        base = 0.0
        for share, label, css in zip(shares[column].tolist(), GROUP_LABELS.values(), GROUP_CSS):
            words = f"{spec}: {100 * share:.1f} % {label}"
            chart.box(column, column + 1, base, base + share, f"flow {css}", words)
            base += share
        if len(specs) <= 8 or column in (0, len(specs) - 1):
            anchor = {0: "start", len(specs) - 1: "end"}.get(column, "middle") if len(specs) > 8 else "middle"
            at = {"start": 0.0, "end": 1.0, "middle": 0.5}[anchor]
            chart.label(chart.px(column + at), chart.bottom + 17, spec, anchor=anchor)
    return str(chart)


def rank_chart(study: GroupStudy) -> str:
    """How often each group had the smallest to the largest calibration error over the transformations."""
    places = ("smallest error", "second smallest error", "second largest error", "largest error")
    return str(draw_ranks(study.ranks.tolist(), study.sized_labels, places))


def draw_ranks(
    counts: Sequence[Sequence[int]],
    labels: Sequence[str],
    places: Sequence[str],
    *,
    title: str = "Ranks of the groups by calibration error",
    top: int = 14,
) -> Chart:
    """A bar for each place of each group; a comma in a group's label begins a second line, for narrow screens."""
    most = max(1, *(count for row in counts for count in row))
    chart = Chart(title, (0, len(counts)), (0, most), height=256 + top, margins=(top, 26, 44, 74))
    chart.axes((), ticks(0, most), "", "transformations")
    for index, (label, row) in enumerate(zip(labels, counts)):
        for place, count in enumerate(row):
            left, words = index + 0.1 + 0.2 * place, f"{label}: {places[place]} {count} times"
            chart.box(left, left + 0.2, 0, float(count), f"rank r{place + 1}", words, 1)
        for line, words in enumerate(label.split(", ")):
            chart.label(chart.px(index + 0.5), chart.bottom + 17 + 16 * line, words)
    return chart
