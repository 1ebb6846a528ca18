"""Every figure of recal, each from one object of numbers to one `Chart`.

Nothing here computes statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from recal.comparison.tables import number, signed
from recal.reporting.chart import (
    Area,
    Axis,
    Boxes,
    Chart,
    Dots,
    Line,
    Mark,
    Text,
    Ticks,
    percent,
    percent_tick,
    tick,
    ticks,
)
from recal.reporting.figure_data import (
    Curve,
    MethodValues,
    RankBins,
    Reliability,
    Slices,
    Thresholds,
)
from recal.reporting.view_studies import DamageStudy, GroupStudy, PlanPath

if TYPE_CHECKING:
    from recal.calibrators.recal import Iteration
    from recal.decisions import RiskCurve
    from recal.decisions.group_risk import GroupRisk

RANKS = ("r1", "r2", "r3", "r4")
# Error rates are drawn on a square-root scale, which shows one in a thousand beside one in two.
_RATES = (0, 0.001, 0.005, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.8, 1)
# The reliability diagram shows the number of rows in a strip of this height below zero.
_STRIP = 0.18
# More dots than this hide the line.
_MOST_DOTS = 120


def shorten(words: str, most: int) -> str:
    """Leave out the middle of a long name: names often differ at their end."""
    return words if len(words) <= most else f"{words[: most - 5]}…{words[-4:]}"


def _at(values: Sequence[float], text: object = tick) -> Ticks:
    return tuple((float(value), text(value)) for value in values)  # type: ignore[operator]


FIFTHS = _at((0, 0.2, 0.4, 0.6, 0.8, 1))
FIFTHS_PERCENT = _at((0, 0.2, 0.4, 0.6, 0.8, 1), percent_tick)


def reliability_chart(data: Reliability, style: str, name: str = "") -> Chart:
    """Accuracy against confidence with 95 % bands; the strip below shows how many rows each bin
    has.
    """
    columns = (
        data.low,
        data.high,
        data.counts,
        data.confidence,
        data.accuracy,
        data.band_low,
        data.band_high,
    )
    words = [
        f"Confidence {low:.2f} to {high:.2f}: {int(count):,} samples, mean confidence {percent(confidence)}, "
        f"correct {percent(accuracy)} [{percent(band_low)}, {percent(band_high)}]"
        for low, high, count, confidence, accuracy, band_low, band_high in zip(
            *(column.tolist() for column in columns)
        )
    ]
    base = -_STRIP
    tops = base + (_STRIP - 0.04) * np.maximum(data.counts / data.counts.max(), 0.03)
    marks: list[Mark] = [
        Line((0, 1), (0, 1), "ideal", "A calibrated model lies on this line."),
        Boxes(data.low, data.high, data.band_low, data.band_high, f"band {style}", words, 1),
        Boxes(data.low, data.high, data.accuracy, data.confidence, f"gap {style}", words, 6),
        *(
            Line((low + 0.003, high - 0.003), (accuracy, accuracy), f"mark {style}", word)
            for low, high, accuracy, word in zip(data.low, data.high, data.accuracy, words)
        ),
        Boxes(data.low, data.high, np.full(len(tops), base), tops, f"count {style}", words, 1),
        Line((0, 1), (0, 0), "axis"),
    ]
    y = Axis(base, 1, "accuracy", (*FIFTHS, (base + 0.05, "samples")), grid=False)
    return Chart(
        f"Reliability diagram, {name}", Axis(0, 1, "confidence", FIFTHS), y, marks, height=340
    )


def rank_bins_chart(data: RankBins, style: str, name: str = "") -> Chart:
    """Observed against expected errors in bins with equally many answers, so that the crowded top
    is wide.
    """
    top = max(float(np.max([data.observed, data.high, data.expected])), 0.01)
    rates: list[float] = []
    for rate in _RATES:
        distance = rate**0.5 - (rates[-1] ** 0.5 if rates else -1)
        if rate <= top and distance > 0.09 * top**0.5:  # otherwise the labels would overlap
            rates.append(rate)
    shares = (0, 0.2, 0.4, 0.6, 0.8)
    x_ticks = tuple(
        (s, _floor(data.lowest[int(np.searchsorted(data.right, s + 1e-9))])) for s in shares
    )
    columns = (data.lowest, data.highest, data.expected, data.observed, data.low, data.high)
    words = [
        f"Confidence {lowest:.4g} to {highest:.4g}: errors expected {percent(expected, 2)}, made "
        f"{percent(observed, 2)}; a calibrated model would make {percent(low, 2)} to {percent(high, 2)}"
        for lowest, highest, expected, observed, low, high in zip(
            *(column.tolist() for column in columns)
        )
    ]
    marks: list[Mark] = [
        Boxes(data.left, data.right, data.low**0.5, data.high**0.5, f"band {style}", words, 0.6),
        *(
            Line((left, right), (expected**0.5, expected**0.5), "expected", word)
            for left, right, expected, word in zip(data.left, data.right, data.expected, words)
        ),
        Dots((data.left + data.right) / 2, data.observed**0.5, f"dot {style}", words, 3.6),
    ]
    y = Axis(
        0, top**0.5 * 1.04, "error rate", tuple((rate**0.5, percent_tick(rate)) for rate in rates)
    )
    label = "answers, least confident first; ticks: their confidence"
    return Chart(f"Errors by rank of confidence, {name}", Axis(0, 1, label, x_ticks), y, marks)


def _floor(confidence: float) -> str:
    """Four digits, never rounded up: a value below 1 must not read as 1."""
    return f"{np.floor(confidence * 10_000) / 10_000:.4f}".rstrip("0").rstrip(".")


def _styles(names: Sequence[str]) -> dict[str, str]:
    """The first of several is the model before calibration."""
    return {
        name: "after" if index or len(names) == 1 else "before" for index, name in enumerate(names)
    }


def risk_coverage_chart(curves: Mapping[str, Curve]) -> Chart:
    """Error rate among the accepted answers against the share accepted."""
    high = (max(float(curve.risk.max()) for curve in curves.values()) or 0.01) * 1.05
    styles = _styles(list(curves))
    marks = [
        Line(curve.coverage, curve.risk, f"curve {styles[name]}", name)
        for name, curve in curves.items()
    ]
    x = Axis(0, 1, "share of answers accepted, most confident first", FIFTHS_PERCENT)
    y = Axis(0, high, "error rate among them", _at(ticks(0, high), percent_tick))
    return Chart("Risk-coverage curve", x, y, marks, {styles[name]: name for name in curves})


def threshold_chart(tables: Mapping[str, Thresholds], index: int) -> Chart:
    """Accuracy of the answers that reach a threshold, by "before" and "after"; the page's script
    moves the dots.
    """
    shares = {
        key: {at: one.accuracy for at, one in table.items() if one.accepted}
        for key, table in tables.items()
    }
    least = min((share for curve in shares.values() for share in curve.values()), default=1.0)
    low = min(float(np.floor(least * 10) / 10), 0.9)  # a round number below every accuracy
    at = list(tables["after"])[index]
    marks: list[Mark] = [Line((at, at), (low, 1), "cursor", id="cursor")]
    for key, curve in shares.items():
        marks.append(Line(list(curve), list(curve.values()), f"curve {key}", id=f"line-{key}"))
        marks.append(Dots((at,), (curve.get(at, low),), f"dot {key}", size=5, id=f"dot-{key}"))
    y = Axis(low, 1, "accuracy of accepted answers", _at(ticks(low, 1), percent_tick))
    title = "Accuracy above a confidence threshold"
    return Chart(title, Axis(0, 1, "confidence threshold", FIFTHS), y, marks, height=320)


def methods_chart(data: MethodValues) -> Chart:
    """The value of each method with its interval, and the baseline as a line; outliers stand at the
    right end.
    """
    size = len(data.rows)
    marks: list[Mark] = []
    if np.isfinite(data.reference) and data.baseline not in data.beyond:
        words = f"{data.baseline} {number(data.reference, data.digits)}"
        marks.append(Line((data.reference, data.reference), (0, size), "reference", words))
    for index, row in enumerate(data.rows):
        y = size - index - 0.5
        words = f"{row.method}: {number(row.value, data.digits)}"
        if row.method in data.beyond:
            marks.append(Text(data.high, y, f"{row.value:.3g} →", anchor="end"))
            continue
        if row.has_interval:
            words += (
                f" [{number(row.interval[0], data.digits)}, {number(row.interval[1], data.digits)}]"
            )
            marks.append(Line(row.interval, (y, y), "whisker", words))
        if row.method != data.baseline and np.isfinite(row.difference):
            words += f"; difference to {data.baseline} {signed(row.difference, data.digits)}"
        if np.isfinite(row.value):
            style = "dot after" if row.mark == "best" else "dot plain"
            marks.append(Dots((row.value,), (y,), style, (words,), 4.5))
    names = tuple(
        (size - index - 0.5, shorten(row.method, 18)) for index, row in enumerate(data.rows)
    )
    x = Axis(data.low, data.high, data.label, _at(ticks(data.low, data.high, 4)))
    title = f"{data.label} of every method"
    return Chart(
        title, x, Axis(0, size, "", names, grid=False), marks, height=70 + 24 * size, left=136
    )


def automation_chart(curves: Mapping[str, tuple[str, RiskCurve]]) -> Chart:
    """The share of answers that can be accepted at each risk; names and curves by "before" and
    "after".
    """
    risks = np.array(curves["after"][1].risks)
    places = np.log10(risks)
    marks: list[Mark] = []
    for key, (method, curve) in curves.items():
        low, high = np.array(curve.intervals).T
        share = np.array(curve.coverage)
        words = [
            f"{method}: at most {100 * risk:g} % mistakes, {100 * value:.1f} % accepted"
            for risk, value in zip(risks.tolist(), share.tolist())
        ]
        marks += [
            Area(places, low, high, f"band {key} see-through"),
            Line(places, share, f"curve {key}", method),
            Dots(places, share, f"dot {key}", words, 3.4),
        ]
    labels = [risk for risk in (0.001, 0.003, 0.01, 0.03, 0.1, 0.2) if risk <= risks[-1]]
    x_ticks = tuple((float(np.log10(risk)), percent_tick(risk)) for risk in labels)
    x = Axis(float(places[0]), float(places[-1]), "errors allowed among accepted answers", x_ticks)
    y = Axis(0, 1, "share accepted", FIFTHS_PERCENT)
    keys = {key: method for key, (method, _) in curves.items()}
    return Chart("Share automated by risk", x, y, marks, keys, height=320)


def slice_chart(parts: Mapping[str, Slices]) -> Chart:
    """Mean confidence minus accuracy of each part, by "before" and "after", with the range of a
    calibrated model.
    """
    after = parts["after"]
    low, high = after.gap_ranges
    ends = np.concatenate([low, high, *(part.gaps for part in parts.values())])
    edge = max(float(np.abs(ends).max()), 0.01) * 1.08
    size = len(after.names)
    y = size - np.arange(size) - 0.5
    words = [
        f"{name}: {after.counts[index]:,} answers, errors expected {after.expected[index]:.1f}, made "
        f"{after.errors[index]:,}; a calibrated model would make {after.low[index]:,} to {after.high[index]:,}"
        for index, name in enumerate(after.names)
    ]
    marks: list[Mark] = [
        Line((0, 0), (0, size), "axis"),
        Boxes(low, high, y - 0.32, y + 0.32, "band after", words),
    ]
    for key, part in parts.items():
        shift = 0.0 if len(parts) == 1 else 0.16 if key == "before" else -0.1
        marks.append(Dots(part.gaps, y + shift, f"dot {key}", words))
    names = tuple(
        (y[i], shorten(name, 12) + (" *" if after.off[i] else ""))
        for i, name in enumerate(after.names)
    )
    x_ticks = tuple((value, f"{value:+.3g}" if value else "0") for value in ticks(-edge, edge, 4))
    x = Axis(-edge, edge, "mean confidence − accuracy", x_ticks)
    keys = {key: key for key in parts} if len(parts) > 1 else {}
    title = f"Overconfidence by {after.by}"
    return Chart(
        title, x, Axis(0, size, "", names, grid=False), marks, keys, height=72 + 22 * size, left=106
    )


def damage_chart(data: DamageStudy) -> Chart:
    """The best temperature of each view, relative to that of the fit, against its accuracy; also
    for new inputs.
    """
    values = [*data.temperature.tolist(), 1.0, *([data.place[1]] if data.place else [])]
    low, high = float(np.log2(min(values))) - 0.1, float(np.log2(max(values))) + 0.1
    words = [
        f"{kind}: accuracy {accuracy:.1%}, temperature {heat:.2f}"
        for kind, accuracy, heat in zip(
            data.kinds, data.accuracy.tolist(), data.temperature.tolist()
        )
    ]
    marks: list[Mark] = [
        Line((0, 1), (0, 0), "ideal", "The temperature of the fit."),
        Dots(data.accuracy, np.log2(data.temperature), "dot before", words, 3.6),
    ]
    keys = {"before": "a view of the labelled samples"}
    if data.place is not None:
        accuracy, heat = data.place
        text = f"new inputs: estimated accuracy {accuracy:.1%}, temperature {heat:.2f} times that of the fit"
        marks.append(Dots((accuracy,), (float(np.log2(heat)),), "dot after", (text,), 6.0))
        keys["after"] = "new inputs"
    y_ticks = tuple(
        (float(p), f"{2.0**p:g}") for p in range(int(np.ceil(low)), int(np.floor(high)) + 1)
    )
    x, y = Axis(0, 1, "accuracy", FIFTHS_PERCENT), Axis(low, high, "temperature × fit’s", y_ticks)
    return Chart("Temperature by accuracy of views", x, y, marks, keys)


def iterations_chart(history: Sequence[Iteration], path: PlanPath | None = None) -> Chart:
    """The ECE after each iteration of a fit, rejected iterations hollow; `path` adds the test rows."""
    n, ece = len(history), [one.ece_after for one in history]
    high = max(*ece, *([] if path is None else path.ece.tolist()), 0.0) * 1.05
    marks: list[Mark] = (
        [] if path is None else [Line(path.steps, path.ece, "curve before", "on the test rows")]
    )
    marks.append(Line(range(1, n + 1), ece, "curve after", "on the fitting rows"))
    for accepted, style in ((True, "dot after"), (False, "dot hollow")):
        rows = [row for row, one in enumerate(history) if one.accepted == accepted]
        if rows and (n <= _MOST_DOTS or not accepted):
            word = "accepted" if accepted else "rejected"
            words = [f"{row + 1}: {history[row].transform}, {word}" for row in rows]
            marks.append(
                Dots([row + 1 for row in rows], [ece[row] for row in rows], style, words, 2.5)
            )
    keys = {"after": "fitting rows", **({} if path is None else {"before": "test rows"})}
    x, y = Axis(0, n, "iteration", _at(ticks(0, n))), Axis(0, high, "ECE", _at(ticks(0, high)))
    return Chart("ECE over the iterations of the fit", x, y, marks, keys)


def group_ranks_chart(study: GroupStudy) -> Chart:
    """How often each group had the smallest to the largest calibration error over the
    transformations.
    """
    return ranks_chart(
        study.ranks.tolist(), study.sized_labels, ("smallest ECE", "second", "third", "largest ECE")
    )


def ranks_chart(
    counts: Sequence[Sequence[int]],
    labels: Sequence[str],
    places: Sequence[str],
    title: str = "Ranks of the groups by calibration error",
) -> Chart:
    """Four bars for each group; a comma in a label starts a second line, for narrow screens."""
    most = max(1, *(count for row in counts for count in row))
    marks: list[Mark] = []
    for place, (style, words) in enumerate(zip(RANKS, places)):
        left = np.arange(len(counts)) + 0.1 + 0.2 * place
        column = [row[place] for row in counts]
        texts = [f"{label}: {words} {count} times" for label, count in zip(labels, column)]
        marks.append(
            Boxes(left, left + 0.2, np.zeros(len(column)), column, f"rank {style}", texts, 1)
        )
    x_ticks = tuple((index + 0.5, label.replace(", ", "\n")) for index, label in enumerate(labels))
    y = Axis(0, most, "transformations", _at(ticks(0, most)))
    return Chart(
        title, Axis(0, len(counts), "", x_ticks), y, marks, dict(zip(RANKS, places)), height=270
    )


def group_risk_chart(groups: Sequence[GroupRisk], risk: float, by: str) -> Chart:
    """The error rate among the accepted answers of each group, with intervals, beside the risk that
    the rule allows.
    """
    size = len(groups)
    places = [(size - index - 0.5, one) for index, one in enumerate(groups)]
    rates = [one.error_rate for one in groups if one.n_accepted]
    edge = min(
        max(
            [*(1.6 * rate for rate in rates), *(1.2 * one.interval[0] for one in groups), 3 * risk]
        ),
        1.0,
    )
    marks: list[Mark] = [Line((risk, risk), (0, size), "ideal", f"{100 * risk:g} % errors allowed")]
    for y, one in places:
        words = f"{one.name}: {one.n_errors:,} errors among {one.n_accepted:,} accepted answers"
        if one.n_accepted:
            low, high = one.interval
            marks.append(Line((low, min(high, edge)), (y, y), "whisker", words))
            marks.append(
                Dots(
                    (one.error_rate,),
                    (y,),
                    f"dot {'before' if one.broken else 'after'}",
                    (words,),
                    4.5,
                )
            )
    names = tuple((y, shorten(one.name, 12) + (" *" if one.broken else "")) for y, one in places)
    x = Axis(0, edge, "error rate among accepted answers", _at(ticks(0, edge, 4), percent_tick))
    title = f"Errors among accepted answers by {by}"
    return Chart(
        title, x, Axis(0, size, "", names, grid=False), marks, height=72 + 22 * size, left=106
    )
