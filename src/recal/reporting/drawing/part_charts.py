"""Charts of parts of the answers, by class or by any column, and of the number of labels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recal.reporting.data.automation import Automation
from recal.reporting.data.damage import DamageStudy
from recal.reporting.data.learning import LearningCurve
from recal.reporting.data.slices import Slices
from recal.reporting.drawing.charts import FIFTHS, percent_tick, shorten
from recal.reporting.drawing.svg import Chart, ticks


def _signed_tick(value: float) -> str:
    return f"{value:+.3g}" if value else "0"


def slice_chart(parts: Mapping[str, Slices]) -> str:
    """Mean confidence minus accuracy of each part, by "before" and "after", with the range of a calibrated model."""
    after = parts["after"]
    low, high = after.gap_ranges
    ends = np.concatenate([low, high, *(part.gaps for part in parts.values())])
    edge = max(float(np.abs(ends).max()), 0.01) * 1.08
    size, title = len(after.names), f"Over-confidence by {after.by}"
    chart = Chart(title, (-edge, edge), (0, size), height=56 + 22 * size, margins=(8, 16, 42, 96))
    chart.axes(ticks(-edge, edge, 4), (), "mean confidence − accuracy", "", x_format=_signed_tick)
    chart.line((0, 0), (0, size), "axis")
    for index, name in enumerate(after.names):
        y = size - index - 0.5
        words = (
            f"{name}: {after.counts[index]:,} answers, errors expected {after.promised[index]:.1f}, made "
            f"{after.made[index]:,}; a calibrated model would make {after.low[index]:,} to {after.high[index]:,}"
        )
        chart.box(float(low[index]), float(high[index]), y - 0.32, y + 0.32, "band after", words)
        for key, part in parts.items():
            place = y + (0.16 if key == "before" else -0.1) if len(parts) > 1 else y
            chart.dot(float(part.gaps[index]), place, f"dot {key}", words, 4.0)
        chart.label(88, chart.py(y) + 4, shorten(name, 12) + (" *" if after.off[index] else ""), anchor="end")
    return str(chart)


def learning_chart(data: LearningCurve) -> str:
    """NLL on the test rows by the number of labels, and what twice and four times as many would bring."""
    now = float(data.sizes[-1])
    further = [now * factor for factor in (1, 2, 4)]
    expected = [data.at(factor) for factor in (1, 2, 4)]
    values = np.concatenate([data.low, data.high, expected])
    low, high = float(values.min()), float(values.max())
    pad = 0.08 * ((high - low) or abs(high) or 1.0)
    left, right = np.log2(data.sizes[0]), np.log2(further[-1])
    chart = Chart(f"NLL by number of labels, {data.method}", (left - 0.2, right + 0.2), (low - pad, high + pad))
    marks = np.log2([*data.sizes.tolist(), *further[1:]]).tolist()
    chart.axes(
        marks, ticks(low - pad, high + pad), "labels to fit on", "NLL on the test rows",
        x_format=lambda power: f"{round(2**power):,}",
    )  # fmt: skip
    chart.line(np.log2(further), expected, "curve before", "to be expected")
    chart.line(np.log2(data.sizes), data.nll, "curve after", "measured")
    for size, mean, least, most in zip(data.sizes.tolist(), data.nll.tolist(), data.low.tolist(), data.high.tolist()):
        at, words = float(np.log2(size)), f"{size:,} labels: NLL {mean:.4f}, from {least:.4f} to {most:.4f}"
        chart.line((at, at), (least, most), "whisker", words)
        chart.dot(at, mean, "dot after", words, 4.0)
    return str(chart)


def damage_chart(data: DamageStudy) -> str:
    """The temperature that suits each view, over the fit's, against its accuracy; new inputs beside them."""
    values = [*data.temperature.tolist(), 1.0, *([data.place[1]] if data.place else [])]
    low, high = float(np.log2(min(values))) - 0.1, float(np.log2(max(values))) + 0.1
    chart = Chart("Temperature by accuracy of views", (0, 1), (low, high))
    marks = [float(power) for power in range(int(np.ceil(low)), int(np.floor(high)) + 1)]
    chart.axes(
        FIFTHS, marks, "accuracy", "temperature × fit’s", x_format=percent_tick, y_format=lambda power: f"{2**power:g}"
    )
    chart.line((0, 1), (0, 0), "ideal", "The temperature of the fit.")
    for kind, accuracy, heat in zip(data.kinds, data.accuracy.tolist(), data.temperature.tolist()):
        chart.dot(accuracy, float(np.log2(heat)), "dot before", f"{kind}: accuracy {accuracy:.1%}, {heat:.2f}", 3.6)
    if data.place is not None:
        words = f"new inputs: estimated accuracy {data.place[0]:.1%}, temperature {data.place[1]:.2f} times the fit's"
        chart.dot(data.place[0], float(np.log2(data.place[1])), "dot after", words, 6.0)
    return str(chart)


def automation_chart(methods: Mapping[str, Automation]) -> str:
    """The share of answers that may be accepted at each risk, with a guarantee; by "before" and "after"."""
    risks = np.array(methods["after"].curve.risks)
    left, right = float(np.log10(risks[0])), float(np.log10(risks[-1]))
    chart = Chart("Share automated by risk", (left, right), (0, 1), height=320)
    marks = [float(np.log10(risk)) for risk in (0.001, 0.003, 0.01, 0.03, 0.1, 0.2) if risk <= risks[-1]]
    chart.axes(
        marks, FIFTHS, "mistakes allowed among accepted answers", "share accepted",
        x_format=lambda power: percent_tick(10**power), y_format=percent_tick,
    )  # fmt: skip
    for key, found in methods.items():
        low, high = np.array(found.curve.intervals).T
        share = np.array(found.curve.coverage)
        places = np.log10(risks)
        chart.area(places, low, high, f"band {key} see-through")
        chart.line(places, share, f"curve {key}", found.method)
        for place, risk, value in zip(places.tolist(), risks.tolist(), share.tolist()):
            words = f"{found.method}: at most {100 * risk:g} % mistakes, {100 * value:.1f} % accepted"
            chart.dot(place, value, f"dot {key}", words, 3.4)
    return str(chart)
