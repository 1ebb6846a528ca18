"""The numbers behind each chart as a table: for screen readers, for copying, and where no script runs."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np

from recal.comparison.tables import number
from recal.reporting.data.dots import Dots
from recal.reporting.data.figures import Crowd, Curve, Histogram, Reliability
from recal.reporting.data.learning import LearningCurve
from recal.reporting.data.slices import Slices
from recal.reporting.data.thresholds import Thresholds
from recal.reporting.drawing.charts import percent
from recal.reporting.page.parts import table

_STEPS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 0.9999)


def reliability_table(data: Reliability, name: str) -> str:
    columns = (data.low, data.high, data.counts, data.confidence, data.accuracy, data.band_low, data.band_high)
    rows = [
        [f"{low:.2f}–{high:.2f}", f"{int(n):,}", percent(c), percent(a), f"{percent(b)} – {percent(t)}"]
        for low, high, n, c, a, b, t in zip(*(column.tolist() for column in columns))
    ]
    head = ["confidence", "answers", "mean confidence", "right", "95 % band"]
    return table(head, rows, f"Reliability of {name}", card=False)


def crowd_table(data: Crowd, name: str) -> str:
    columns = (data.lowest, data.highest, data.counts, data.promised, data.made, data.low, data.high)
    rows = [
        [f"{a:.4g}–{b:.4g}", f"{int(n):,}", percent(p, 2), percent(m, 2), f"{percent(low, 2)} – {percent(high, 2)}"]
        for a, b, n, p, m, low, high in zip(*(column.tolist() for column in columns))
    ]
    head = ["confidence", "answers", "errors expected", "made", "if calibrated"]
    return table(head, rows, f"Errors by rank of confidence of {name}", card=False)


def histogram_table(data: Histogram, name: str) -> str:
    columns = (data.edges[:-1], data.edges[1:], data.right, data.wrong)
    rows = [
        [f"{low:.2f}–{high:.2f}", percent(right), percent(wrong)]
        for low, high, right, wrong in zip(*(column.tolist() for column in columns))
        if right + wrong > 0
    ]
    return table(["confidence", "right", "wrong"], rows, f"Confidences of {name}", card=False)


def risk_table(curves: Mapping[str, Curve]) -> str:
    shares = np.arange(1, 11) / 10
    rows = []
    for share in shares.tolist():
        risks = [curve.risk[np.argmin(np.abs(curve.coverage - share))] for curve in curves.values()]
        rows.append([percent(share, 0), *(percent(float(risk), 2) for risk in risks)])
    return table(["answers accepted", *curves], rows, "Error rate among accepted answers", card=False)


def threshold_table_of(tables: Mapping[str, Thresholds]) -> str:
    head = ["confidence above"]
    for name in tables:
        head += [f"{name}: accepted", "right", "errors", "expected", "if calibrated"]
    rows = []
    for step in _STEPS:
        cells = [f"{step:g}"]
        for one in tables.values():
            at = one.at(step)
            cells += [
                percent(at.share), percent(at.accuracy), f"{at.made:,}", f"{at.promised:,.1f}",
                f"{at.low:,}–{at.high:,}",
            ]  # fmt: skip
        rows.append(cells)
    return table(head, rows, "Answers above a confidence", card=False)


def slice_table(parts: Mapping[str, Slices]) -> str:
    """Worst first, before and after."""
    after, before = parts["after"], parts.get("before")
    head = [after.by, "answers", "expected", "made", "if calibrated", "gap"]
    head += ["before"] if before is not None else []
    gaps, old = after.gaps.tolist(), None if before is None else before.gaps.tolist()
    rows = []
    for index, name in enumerate(after.names):
        star = ' <b title="more than chance allows, all parts considered">*</b>' if after.off[index] else ""
        cells = [
            escape(name) + star, f"{after.counts[index]:,}", f"{after.promised[index]:,.1f}", f"{after.made[index]:,}",
            f"{after.low[index]:,} – {after.high[index]:,}", f"{100 * gaps[index]:+.1f} %",
        ]  # fmt: skip
        rows.append([*cells, *([f"{100 * old[index]:+.1f} %"] if old is not None else [])])
    return table(head, rows, f"Answers by {after.by}, worst first", card=False)


def dots_table(data: Dots) -> str:
    rows = [
        [
            escape(row.method),
            number(row.value, data.digits),
            f"{number(row.interval[0], data.digits)} – {number(row.interval[1], data.digits)}",
        ]
        for row in data.rows
    ]
    return table(["method", data.label, "95 % interval"], rows, f"{data.label} of every method", card=False)


def learning_table(data: LearningCurve) -> str:
    rows = [
        [f"{size:,}", f"{mean:.4f}", f"{low:.4f} – {high:.4f}"]
        for size, mean, low, high in zip(data.sizes.tolist(), data.nll.tolist(), data.low.tolist(), data.high.tolist())
    ]
    rows += [[f"{int(factor * data.sizes[-1]):,}", f"{data.at(factor):.4f}", "to be expected"] for factor in (2, 4)]
    return table(["labels", "NLL", "lowest – highest"], rows, f"NLL of {data.method} by number of labels", card=False)
