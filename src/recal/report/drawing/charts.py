"""The page's charts of methods: numbers from `data`, drawn as SVG. Those of groups are in `group_charts`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recal.comparison import Comparison
from recal.comparison.tables import number, signed
from recal.metrics import LABELS
from recal.metrics.rows import RowScores
from recal.report.data.figures import PerClass, histogram, reliability, risk_coverage
from recal.report.data.thresholds import Thresholds
from recal.report.drawing.svg import Chart, ticks, tip

FIFTHS = (0, 0.2, 0.4, 0.6, 0.8, 1)


def percent(value: float, digits: int = 1) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.{digits}f} %"


def percent_tick(value: float) -> str:
    return f"{100 * value:.3g} %"


def _signed_tick(value: float) -> str:
    return f"{value:+.3g}" if value else "0"


def reliability_chart(rows: RowScores, css: str, name: str, n_bins: int) -> str:
    """Accuracy against confidence with a 95 % band, and how many rows each bin holds below."""
    data = reliability(rows, n_bins)
    chart = Chart(f"Reliability diagram, {name}", (0, 1), (0, 1), height=340, margins=(14, 26, 98, 74))
    chart.axes(FIFTHS, FIFTHS, "", "share right")
    chart.line((0, 1), (0, 1), "honest", "An honest model lies on this line.")
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


def histogram_chart(rows: RowScores, css: str, name: str) -> str:
    """How often each confidence is given, wrong answers above right ones."""
    edges, right, wrong = histogram(rows)
    high = float((right + wrong).max()) * 1.05
    chart = Chart(f"Confidence histogram, {name}", (0, 1), (0, high), height=270)
    chart.axes(FIFTHS, ticks(0, high), "confidence", "share of samples", y_format=percent_tick)
    for low, top, r, w in zip(edges[:-1].tolist(), edges[1:].tolist(), right.tolist(), wrong.tolist()):
        if r + w > 0:
            words = f"Confidence {low:.2f} to {top:.2f}: {percent(r)} of samples right, {percent(w)} wrong"
            chart.box(low, top, 0, r, f"bar {css}", words, inset=1)
            chart.box(low, top, r, r + w, "bar wrong", words, inset=1)
    for value, style, words in (
        (float(rows.confidence.mean()), "mean", "mean confidence"),
        (float(rows.correct.mean()), "mean dashed", "accuracy"),
    ):
        chart.line((value, value), (0, high), style, f"{words} {percent(value)}")
    return str(chart)


def risk_coverage_chart(curves: Mapping[str, RowScores]) -> str:
    """Error rate among the accepted answers against the share accepted; the first of two curves is the one before."""
    data = {name: risk_coverage(rows) for name, rows in curves.items()}
    high = (max(float(risk.max()) for _, risk in data.values()) or 0.01) * 1.05
    chart = Chart("Risk-coverage curve", (0, 1), (0, high))
    chart.axes(
        FIFTHS, ticks(0, high), "share of answers accepted, most confident first", "error rate among them",
        x_format=percent_tick, y_format=percent_tick,
    )  # fmt: skip
    for index, (name, (coverage, risk)) in enumerate(data.items()):
        chart.line(coverage, risk, "curve after" if index or len(data) == 1 else "curve before", name)
    return str(chart)


def threshold_chart(tables: Mapping[str, Thresholds], shown: int) -> str:
    """Share right among the answers above a threshold; `tables` by "before" and "after", and the script moves both."""
    low = min(_lowest(table) for table in tables.values())
    chart = Chart("Share right above a confidence threshold", (0, 1), (low, 1), height=320)
    labels = "confidence threshold", "right among those above it"
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


def dot_plot(comparison: Comparison, metric: str) -> str:
    """Each method's value with its interval; the baseline's value as a line."""
    rows, digits = comparison.rows(metric), comparison.digits(metric)
    known = [value for row in rows for value in (row.value, *row.interval) if np.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    pad = 0.06 * ((high - low) or abs(high) or 1.0)
    size, title = len(rows), f"{LABELS[metric]} of every method"
    chart = Chart(title, (low - pad, high + pad), (0, size), height=54 + 24 * size, margins=(8, 16, 40, 128))
    chart.axes(ticks(low, high, 4), (), LABELS[metric], "")
    baseline = comparison.row(metric, comparison.baseline).value
    if np.isfinite(baseline):
        chart.line((baseline, baseline), (0, size), "reference", f"{comparison.baseline} {number(baseline, digits)}")
    for index, row in enumerate(rows):
        y = size - index - 0.5
        words = f"{row.method}: {number(row.value, digits)}"
        if np.isfinite(row.interval).all():
            words += f" [{number(row.interval[0], digits)}, {number(row.interval[1], digits)}]"
            chart.line(row.interval, (y, y), "whisker", words)
        if row.method != comparison.baseline and np.isfinite(row.difference):
            words += f"; difference to {comparison.baseline} {signed(row.difference, digits)}"
        if np.isfinite(row.value):
            chart.dot(row.value, y, "dot " + ("after" if row.mark == "best" else "plain"), words, 4.5)
        chart.label(120, chart.py(y) + 4, shorten(row.method, 18), css="label", anchor="end")
    return str(chart)


def class_chart(data: PerClass, css: str) -> str:
    """Confidence minus accuracy of the answers with each class."""
    gaps = data.confidence - data.accuracy
    edge = max(float(np.abs(gaps).max()), 0.01) * 1.1
    size, title = len(data.names), "Over-confidence by predicted class"
    chart = Chart(title, (-edge, edge), (0, size), height=54 + 20 * size, margins=(8, 16, 40, 96))
    chart.axes(ticks(-edge, edge, 4), (), "mean confidence − accuracy", "", x_format=_signed_tick)
    for index, (name, gap) in enumerate(zip(data.names, gaps.tolist())):
        y = size - index - 0.5
        words = (
            f"{name}: {int(data.counts[index]):,} answers, mean confidence {percent(data.confidence[index])}, "
            f"right {percent(data.accuracy[index])}"
        )
        chart.box(0, gap, y - 0.32, y + 0.32, f"bar {css}", words)
        chart.label(88, chart.py(y) + 4, shorten(name, 12), anchor="end")
    chart.line((0, 0), (0, size), "axis")
    return str(chart)


def shorten(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"
