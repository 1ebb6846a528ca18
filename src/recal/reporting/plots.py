"""Charts drawn with matplotlib, for papers and for figures that users change; the only module that
imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from recal.errors import InputError, MissingExtraError
from recal.files.paths import replacing
from recal.metrics.row_scores import score
from recal.reporting import charts
from recal.reporting.chart import PALETTE, WIDTH, Area, Boxes, Chart, Dots, Line, Mark
from recal.reporting.figure_data import reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Style of a mark: colour (None: the last word of the style), and the options that make its look.
_LINES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "ideal": ("axis", {"ls": "--", "lw": 1}),
    "reference": ("axis", {"ls": ":", "lw": 0.9}),
    "axis": ("axis", {"lw": 0.9}),
    "cursor": ("ink", {"ls": ":", "lw": 1}),
    "expected": ("ink", {"lw": 1.4}),
    "whisker": ("axis", {"lw": 2}),
    "mark": (None, {"lw": 2.6, "solid_capstyle": "butt"}),
    "curve": (None, {"lw": 2}),
}
_FILLS = {"band": 0.3, "gap": 0.45}  # opacity; all others are opaque
_DPI = 150


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
        charts.reliability_chart(data, "after"),
        new_figure(4.6, 3.8).subplots() if ax is None else ax,
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
    kind, *rest = mark.style.removesuffix(" see-through").split()
    if isinstance(mark, Line):
        name, options = _LINES[kind]
        colour = name or rest[-1]
        dashes = {"ls": "--"} if (kind, colour) == ("curve", "before") else {}
        ax.plot(mark.x, mark.y, color=PALETTE[colour][0], **{**options, **dashes})
    elif isinstance(mark, Area):
        ax.fill_between(mark.x, mark.low, mark.high, color=PALETTE[rest[-1]][0], alpha=0.15, lw=0)
    elif isinstance(mark, Boxes):
        left, right, bottom, top = (
            np.asarray(v, np.float64) for v in (mark.left, mark.right, mark.bottom, mark.top)
        )
        edge = {"edgecolor": PALETTE["group-edge"][0], "lw": 0.5} if kind == "rank" else {"lw": 0}
        inset = 2 * mark.inset / WIDTH * (ax.get_xlim()[1] if kind == "rank" else 1.0)
        ax.bar(
            (left + right) / 2, top - bottom, np.maximum(right - left - inset, 0), bottom,
            color=PALETTE[rest[-1]][0], alpha=_FILLS.get(kind, 1.0), **edge,
        )  # fmt: skip
    elif isinstance(mark, Dots):
        colour = PALETTE[{"plain": "ink", "hollow": "after"}.get(rest[-1], rest[-1])][0]
        hollow: dict[str, Any] = (
            {"mfc": "white", "mew": 1.5} if rest[-1] in ("before", "plain", "hollow") else {}
        )
        ax.plot(mark.x, mark.y, "o", color=colour, ms=1.2 * mark.size, ls="", **hollow)
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
    return Figure(figsize=(width, height), layout="constrained", dpi=_DPI)


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
