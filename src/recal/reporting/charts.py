"""Every figure of recal, each from one object of numbers to one `Chart`, and their drawing with
matplotlib, for papers and for figures that users change.

Nothing here computes statistics. No other module imports matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from recal.errors import InputError, MissingExtraError
from recal.files.paths import replacing
from recal.metrics.row_scores import score
from recal.reporting.chart import (
    PALETTE,
    WIDTH,
    Area,
    Axis,
    Boxes,
    Chart,
    Dots,
    Line,
    Mark,
    Ticks,
    percent,
    percent_tick,
    tick,
    ticks,
)
from recal.reporting.figure_data import Reliability, Slices, Thresholds, reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from recal.decisions import RiskCurve
    from recal.decisions.decision import GroupRisk


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
    names = ("low", "high", "counts", "confidence", "accuracy", "band_low", "band_high")
    rows = zip(*(getattr(data, column).tolist() for column in names))
    words = [
        f"Confidence {low:.2f} to {high:.2f}: {int(count):,} samples, mean confidence "
        f"{percent(confidence)}, correct {percent(accuracy)} [{percent(least)}, {percent(most)}]"
        for low, high, count, confidence, accuracy, least, most in rows
    ]
    base = -0.18  # the number of rows is shown in a strip of this height below zero
    tops = base + 0.14 * np.maximum(data.counts / data.counts.max(), 0.03)
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


def ranks_chart(
    counts: Sequence[Sequence[int]],
    labels: Sequence[str],
    places: Sequence[str] = ("smallest ECE", "second", "third", "largest ECE"),
    title: str = "Ranks of the groups by calibration error",
) -> Chart:
    """Four bars for each group; a comma in a label starts a second line, for narrow screens."""
    most = max(1, *(count for row in counts for count in row))
    styles = dict(zip(("r1", "r2", "r3", "r4"), places))
    marks: list[Mark] = []
    for place, (style, words) in enumerate(styles.items()):
        left = np.arange(len(counts)) + 0.1 + 0.2 * place
        column = [row[place] for row in counts]
        texts = [f"{label}: {words} {count} times" for label, count in zip(labels, column)]
        bottom = np.zeros(len(column))
        marks.append(Boxes(left, left + 0.2, bottom, column, f"rank {style}", texts, 1))
    x_ticks = tuple((index + 0.5, label.replace(", ", "\n")) for index, label in enumerate(labels))
    x = Axis(0, len(counts), "", x_ticks)
    return Chart(
        title, x, Axis(0, most, "transformations", _at(ticks(0, most))), marks, styles, 270
    )


def group_risk_chart(groups: Sequence[GroupRisk], risk: float, by: str) -> Chart:
    """The error rate among the accepted answers of each group, with intervals, beside the risk that
    the rule allows.
    """
    size = len(groups)
    places = [(size - index - 0.5, one) for index, one in enumerate(groups)]
    ends = [1.6 * one.error_rate for one in groups if one.n_accepted]
    ends += [1.2 * one.interval[0] for one in groups]
    edge = min(max(*ends, 3 * risk), 1.0)
    marks: list[Mark] = [Line((risk, risk), (0, size), "ideal", f"{100 * risk:g} % errors allowed")]
    for y, one in places:
        if one.n_accepted:
            words = f"{one.name}: {one.n_errors:,} errors among {one.n_accepted:,} accepted answers"
            low, high = one.interval
            style = "dot before" if one.broken else "dot after"
            marks.append(Line((low, min(high, edge)), (y, y), "whisker", words))
            marks.append(Dots((one.error_rate,), (y,), style, (words,), 4.5))
    names = tuple((y, shorten(one.name, 12) + (" *" if one.broken else "")) for y, one in places)
    x = Axis(0, edge, "error rate among accepted answers", _at(ticks(0, edge, 4), percent_tick))
    title = f"Errors among accepted answers by {by}"
    y_axis = Axis(0, size, "", names, grid=False)
    return Chart(title, x, y_axis, marks, height=72 + 22 * size, left=106)


def reliability_diagram(
    probs: ArrayLike,
    y: ArrayLike,
    ax: Axes | None = None,
    *,
    n_bins: int = 15,
    classes: Sequence[Any] | None = None,
) -> Axes:
    """Draw accuracy against confidence, with a 95 % band for each bin. It needs matplotlib.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities, or the confidence of each answer.
    y : array-like of shape (n_samples,)
        Labels; with a 1-D `probs`, which answers are right.
    ax : the matplotlib axes to draw into; without it, those of a new figure
    n_bins : number of bins of equal width
    classes : the columns' names, where labels are not their indices

    Returns
    -------
    The axes. `ax.figure.savefig("reliability.png")` writes them.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import reliability_diagram
    >>> ax = reliability_diagram(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), [0, 1, 1])
    >>> ax.get_xlabel()
    'confidence'
    """
    data = reliability(score(probs, y, classes), n_bins)
    return draw(
        reliability_chart(data, "after"), new_figure(4.6, 3.8).subplots() if ax is None else ax
    )


def draw(chart: Chart, ax: Axes) -> Axes:
    """Draw a chart into matplotlib axes."""
    for mark in chart.marks:
        _draw_mark(ax, mark)
    ax.set(xlim=(chart.x.low, chart.x.high), ylim=(chart.y.low, chart.y.high))
    ax.set(xlabel=chart.x.label, ylabel=chart.y.label)
    for axis, set_ticks in ((chart.x, ax.set_xticks), (chart.y, ax.set_yticks)):
        set_ticks([place for place, _ in axis.ticks], [words for _, words in axis.ticks])
    ax.spines[["top", "right"]].set_visible(False)
    if chart.keys:
        from matplotlib.patches import Patch

        handles = [
            Patch(color=PALETTE[style][0], label=words) for style, words in chart.keys.items()
        ]
        ax.legend(handles=handles, frameon=False, fontsize=8)
    return ax


def _draw_mark(ax: Axes, mark: Mark) -> None:
    """Draw one mark; the words of its style name its look and its colour, as in chart.css."""
    look, *colours = mark.style.split()
    if isinstance(mark, Line):
        dashes = {"ideal": "--", "reference": ":", "cursor": ":"}
        width = 2.6 if look == "mark" else 1.4 if colours else 1
        colour = PALETTE[colours[0] if colours else "axis"][0]
        ax.plot(mark.x, mark.y, color=colour, lw=width, ls=dashes.get(look, "-"))
    elif isinstance(mark, Boxes):
        left, right, bottom, top = map(np.asarray, (mark.left, mark.right, mark.bottom, mark.top))
        inset = 2 * mark.inset / WIDTH * (ax.get_xlim()[1] if look == "rank" else 1.0)
        ax.bar(
            (left + right) / 2,
            top - bottom,
            np.maximum(right - left - inset, 0),
            bottom,
            color=PALETTE[colours[0]][0],
            alpha={"band": 0.3, "gap": 0.45}.get(look, 1.0),
            edgecolor=PALETTE["group-edge"][0],
            lw=0.5 if look == "rank" else 0,
        )
    elif isinstance(mark, Dots):
        ax.plot(mark.x, mark.y, "o", color=PALETTE[colours[0]][0], ms=1.2 * mark.size, ls="")
    elif isinstance(mark, Area):
        colour = PALETTE[colours[0]][0]
        ax.fill_between(mark.x, mark.low, mark.high, color=colour, alpha=0.15, lw=0)
    else:
        sides = {"start": "left", "middle": "center", "end": "right"}
        ax.text(mark.x, mark.y, mark.words, ha=sides[mark.anchor], va="center", fontsize=8)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches.

    It needs no display and leaves the state of pyplot alone.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "report", "Drawing figures") from None
    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def figure_of(chart: Chart) -> Figure:
    """Draw a chart into a figure of its own."""
    figure = new_figure(4.6, chart.height / 100 + 0.4)
    draw(chart, figure.subplots())
    return figure


def save_figure(figure: Figure, path: str | PathLike[str]) -> Path:
    """Write one figure without a date inside, so that the same numbers give the same bytes."""
    from matplotlib import rc_context

    target = Path(path)
    kind = target.suffix.lower().lstrip(".")
    metadata: dict[str, dict[str, str | None]] = {
        "png": {"Software": "recal"},
        "svg": {"Creator": "recal", "Date": None},
        "pdf": {"Creator": "recal", "CreationDate": None},
    }
    if kind not in metadata:
        raise InputError(
            f"Figures are written to a name ending in .png, .svg or .pdf, got {target.name!r}."
        )
    with (
        replacing(target) as file,
        rc_context({"svg.hashsalt": "recal"}),
    ):  # otherwise ids inside are random
        figure.savefig(file, format=kind, metadata=metadata[kind])
    return target
