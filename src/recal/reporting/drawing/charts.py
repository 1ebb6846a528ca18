"""The page's charts of methods as SVG, each from an object of `report.data`. Those of groups are in `group_charts`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recal.comparison.tables import number, signed
from recal.reporting.data.dots import Dots
from recal.reporting.data.figures import Crowd, Curve, Histogram, Reliability
from recal.reporting.data.thresholds import Thresholds
from recal.reporting.drawing.svg import Chart, ticks, tip

FIFTHS = (0, 0.2, 0.4, 0.6, 0.8, 1)
# Error rates are drawn on a square-root scale, on which one in a thousand can be seen beside one in two.
_RATES = (0, 0.001, 0.005, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.8, 1)


def percent(value: float, digits: int = 1) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.{digits}f} %"


def percent_tick(value: float) -> str:
    return f"{100 * value:.3g} %"


def reliability_chart(data: Reliability, css: str, name: str) -> str:
    """Accuracy against confidence with a 95 % band, and how many rows each bin holds below."""
    chart = Chart(f"Reliability diagram, {name}", (0, 1), (0, 1), height=340, margins=(14, 26, 98, 74))
    chart.axes(FIFTHS, FIFTHS, "", "share right")
    chart.line((0, 1), (0, 1), "ideal", "A calibrated model lies on this line.")
    base, most = chart.height - 28, float(data.counts.max())
    columns = (data.low, data.high, data.counts, data.confidence, data.accuracy, data.band_low, data.band_high)
    for low, high, count, confidence, accuracy, band_low, band_high in zip(*(column.tolist() for column in columns)):
        words = (
            f"Confidence {low:.2f} to {high:.2f}: {int(count):,} samples, mean confidence {percent(confidence)}, "
            f"right {percent(accuracy)} [{percent(band_low)}, {percent(band_high)}]"
        )
        left, right = chart.px(low) + 1, chart.px(high) - 1
        chart.box(low, high, band_low, band_high, f"band {css}", words, inset=1)
        chart.box(low, high, accuracy, confidence, f"gap {css}", words, inset=6)
        chart.add("line", css=f"mark {css}", x1=left, x2=right, y1=chart.py(accuracy), y2=chart.py(accuracy))
        size = max(30 * count / most, 0.8)
        chart.add("rect", tip(words), css=f"count {css}", x=left, y=base - size, width=right - left, height=size)
    chart.label(chart.left - 7, base - 10, "samples", anchor="end")
    chart.label((chart.left + chart.right) / 2, base + 18, "confidence", css="label")
    return str(chart)


def crowd_chart(data: Crowd, css: str, name: str) -> str:
    """Errors made against errors expected in bins of equally many answers, so that the crowded top is wide."""
    top = max(float(np.max([data.made, data.high, data.promised])), 0.01)
    chart = Chart(f"Errors by rank of confidence, {name}", (0, 1), (0, top**0.5 * 1.04), height=300)
    rates: list[float] = []
    for rate in _RATES:
        apart = rate**0.5 - (rates[-1] ** 0.5 if rates else -1)
        if rate <= top and apart > 0.09 * top**0.5:  # else the labels would lie on each other
            rates.append(rate)
    x_label = "answers, least confident first; ticks: their confidence"
    chart.axes((), [rate**0.5 for rate in rates], "", "error rate", y_format=lambda root: percent_tick(root**2))
    for share in FIFTHS[:-1]:
        inside = int(np.searchsorted(data.right, share + 1e-9))
        chart.label(chart.px(share), chart.bottom + 17, _cut(data.lowest[inside]))
    chart.label((chart.left + chart.right) / 2, chart.bottom + 36, x_label, css="label")
    columns = (data.left, data.right, data.lowest, data.highest, data.promised, data.made, data.low, data.high)
    for left, right, lowest, highest, promised, made, low, high in zip(*(column.tolist() for column in columns)):
        words = (
            f"Confidence {lowest:.4g} to {highest:.4g}: errors expected {percent(promised, 2)}, made "
            f"{percent(made, 2)}; a calibrated model would make {percent(low, 2)} to {percent(high, 2)}"
        )
        chart.box(left, right, low**0.5, high**0.5, f"band {css}", words, inset=0.6)
        chart.line((left, right), (promised**0.5, promised**0.5), "promise", words)
        chart.dot((left + right) / 2, made**0.5, f"dot {css}", words, 3.6)
    return str(chart)


def _cut(confidence: float) -> str:
    """Four digits, never rounded up: what is below 1 must not read as 1."""
    return f"{np.floor(confidence * 10_000) / 10_000:.4f}".rstrip("0").rstrip(".")


def histogram_chart(data: Histogram, css: str, name: str) -> str:
    """How often each confidence is given, wrong answers above right ones."""
    high = float((data.right + data.wrong).max()) * 1.05
    chart = Chart(f"Confidence histogram, {name}", (0, 1), (0, high), height=270)
    chart.axes(FIFTHS, ticks(0, high), "confidence", "share of samples", y_format=percent_tick)
    columns = (data.edges[:-1], data.edges[1:], data.right, data.wrong)
    for low, top, r, w in zip(*(column.tolist() for column in columns)):
        if r + w > 0:
            words = f"Confidence {low:.2f} to {top:.2f}: {percent(r)} of samples right, {percent(w)} wrong"
            chart.box(low, top, 0, r, f"bar {css}", words, inset=1)
            chart.box(low, top, r, r + w, "bar wrong", words, inset=1)
    for value, style, words in (
        (data.confidence, "mean", "mean confidence"),
        (data.accuracy, "mean dashed", "accuracy"),
    ):
        chart.line((value, value), (0, high), style, f"{words} {percent(value)}")
    return str(chart)


def risk_coverage_chart(curves: Mapping[str, Curve]) -> str:
    """Error rate among the accepted answers against the share accepted; the first of two curves is the one before."""
    high = (max(float(curve.risk.max()) for curve in curves.values()) or 0.01) * 1.05
    chart = Chart("Risk-coverage curve", (0, 1), (0, high))
    chart.axes(
        FIFTHS, ticks(0, high), "share of answers accepted, most confident first", "error rate among them",
        x_format=percent_tick, y_format=percent_tick,
    )  # fmt: skip
    for index, (name, curve) in enumerate(curves.items()):
        chart.line(curve.coverage, curve.risk, "curve after" if index or len(curves) == 1 else "curve before", name)
    return str(chart)


def threshold_chart(tables: Mapping[str, Thresholds], shown: int) -> str:
    """Share right among the answers above a threshold; `tables` by "before" and "after", and the script moves both."""
    low = min(_lowest(table) for table in tables.values())
    chart = Chart("Share right above a confidence threshold", (0, 1), (low, 1), height=320)
    labels = "confidence threshold", "accuracy of accepted answers"
    chart.axes(FIFTHS, ticks(low, 1), *labels, y_format=percent_tick)
    at = float(next(iter(tables.values())).thresholds[shown])
    chart.add("line", id="cursor", css="cursor", x1=chart.px(at), x2=chart.px(at), y1=chart.top, y2=chart.bottom)
    for key, table in tables.items():
        held = table.accepted > 0
        shares = table.right[held] / table.accepted[held]
        chart.line(table.thresholds[held], shares, f"curve {key}", id=f"line-{key}")
        share = table.right[shown] / table.accepted[shown] if held[shown] else low
        chart.dot(at, float(share), f"dot {key}", radius=5, id=f"dot-{key}")
    return chart.svg(
        id="threshold-chart", data_left=chart.left, data_right=chart.right, data_top=chart.top,
        data_bottom=chart.bottom, data_low=str(low),
    )  # fmt: skip


def _lowest(table: Thresholds) -> float:
    """Where the share-right axis may begin: below every point, on a round number."""
    held = table.accepted > 0
    least = float(np.min(table.right[held] / table.accepted[held])) if held.any() else 1.0
    return min(float(np.floor(least * 10) / 10), 0.9)


def dot_plot(data: Dots) -> str:
    """Each method's value with its interval; the baseline's value as a line; what is far off at the right end."""
    size, title = len(data.rows), f"{data.label} of every method"
    chart = Chart(title, (data.low, data.high), (0, size), height=54 + 24 * size, margins=(8, 62, 40, 128))
    chart.axes(ticks(data.low, data.high, 4), (), data.label, "")
    if np.isfinite(data.reference) and data.baseline not in data.beyond:
        words = f"{data.baseline} {number(data.reference, data.digits)}"
        chart.line((data.reference, data.reference), (0, size), "reference", words)
    for index, row in enumerate(data.rows):
        y = size - index - 0.5
        words = f"{row.method}: {number(row.value, data.digits)}"
        held = np.isfinite(row.interval).all() and row.method not in data.beyond
        if held:
            words += f" [{number(row.interval[0], data.digits)}, {number(row.interval[1], data.digits)}]"
            chart.line(row.interval, (y, y), "whisker", words)
        if row.method != data.baseline and np.isfinite(row.difference):
            words += f"; difference to {data.baseline} {signed(row.difference, data.digits)}"
        chart.label(120, chart.py(y) + 4, shorten(row.method, 18), css="label", anchor="end")
        if row.method in data.beyond:
            chart.label(chart.width - 4, chart.py(y) + 4, f"{row.value:.3g} →", anchor="end")
        elif np.isfinite(row.value):
            chart.dot(row.value, y, "dot " + ("after" if row.mark == "best" else "plain"), words, 4.5)
    return str(chart)


def shorten(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"
