"""Every figure of the page, each from one object of numbers to one `Chart`, and the reliability
diagram in matplotlib, for papers and for figures that users change.

Nothing here computes statistics. No other module imports matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from recal.errors import needs_extra
from recal.metrics.row_scores import score
from recal.reporting.chart import (
    PALETTE,
    Area,
    Axis,
    Boxes,
    Chart,
    Dots,
    Line,
    Mark,
    Points,
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


def shorten(words: str, most: int) -> str:
    """Leave out the middle of a long name: names often differ at their end."""
    return words if len(words) <= most else f"{words[: most - 5]}…{words[-4:]}"


def _at(values: Sequence[float], text: object = tick) -> Ticks:
    return tuple((float(value), text(value)) for value in values)  # type: ignore[operator]


FIFTHS = _at((0, 0.2, 0.4, 0.6, 0.8, 1))
FIFTHS_PERCENT = _at((0, 0.2, 0.4, 0.6, 0.8, 1), percent_tick)
# The number of rows is shown in a strip of this height below zero.
_STRIP = -0.18


def reliability_chart(data: Reliability, style: str, name: str = "") -> Chart:
    """Accuracy against confidence with 95 % bands; the strip below counts rows."""
    rows = zip(*(column.tolist() for column in data))
    words = [
        f"Confidence {low:.2f} to {high:.2f}: {int(count):,} samples, mean confidence "
        f"{percent(confidence)}, correct {percent(accuracy)} [{percent(least)}, {percent(most)}]"
        for low, high, count, confidence, accuracy, least, most in rows
    ]
    tops = _STRIP + 0.14 * np.maximum(data.counts / data.counts.max(), 0.03)
    marks: list[Mark] = [
        Line((0, 1), (0, 1), "ideal", "A calibrated model lies on this line."),
        Boxes(data.low, data.high, data.band_low, data.band_high, f"band {style}", words, 1),
        Boxes(data.low, data.high, data.accuracy, data.confidence, f"gap {style}", words, 6),
        *(
            Line((low + 0.003, high - 0.003), (accuracy, accuracy), f"mark {style}", word)
            for low, high, accuracy, word in zip(data.low, data.high, data.accuracy, words)
        ),
        Boxes(data.low, data.high, np.full(len(tops), _STRIP), tops, f"count {style}", words, 1),
        Line((0, 1), (0, 0), "axis"),
    ]
    y = Axis(_STRIP, 1, "accuracy", (*FIFTHS, (_STRIP + 0.05, "samples")), grid=False)
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


def course_chart(title: str, label: str, shares: Points, limit: float = 0.0) -> Chart:
    """Shares one after the other, and their limit as a dashed line."""
    places = np.arange(len(shares))
    high = max([2 * limit, *shares]) if limit else 1.0
    last = max(len(shares) - 1, 1)
    marks: list[Mark] = [
        Line(places, shares, "curve after"),
        Dots(places[-1:], shares[-1:], "dot after"),
    ]
    if limit:
        marks.append(Line((0, last), (limit, limit), "cursor", f"at most {percent(limit)}"))
    y = Axis(0, high, title, _at(ticks(0, high), percent_tick))
    return Chart(title, Axis(0, last, label), y, marks, height=260)


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
        f"{name}: {after.counts[index]:,} answers, errors expected {after.expected[index]:.1f}, "
        f"made {after.errors[index]:,}; a calibrated model would make {after.low[index]:,} to "
        f"{after.high[index]:,}"
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
    if ax is None:
        ax = new_figure(4.6, 3.8).subplots()
    colour, axis = PALETTE["after"][0], PALETTE["axis"][0]
    width, counts = data.high - data.low, 0.14 * data.counts / data.counts.max()
    ax.plot((0, 1), (0, 1), color=axis, lw=1, ls="--")
    for bottom, height, alpha in (
        (data.band_low, data.band_high - data.band_low, 0.2),
        (data.accuracy, data.confidence - data.accuracy, 0.4),
        (np.full(len(counts), _STRIP), counts, 1.0),
    ):
        ax.bar(data.low, height, width, bottom, align="edge", color=colour, alpha=alpha)
    ax.hlines(data.accuracy, data.low, data.high, color=colour, lw=2.6)
    ax.axhline(0, color=axis, lw=1)
    ax.set(xlim=(0, 1), ylim=(_STRIP, 1), xlabel="confidence", ylabel="accuracy")
    ax.set_yticks([_STRIP + 0.05, *(place for place, _ in FIFTHS)])
    ax.set_yticklabels(["samples", *(words for _, words in FIFTHS)])
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches.

    It needs no display and leaves the state of pyplot alone.
    """
    with needs_extra("report", "Drawing figures"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained", dpi=150)
