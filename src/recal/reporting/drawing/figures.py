"""Figures for files, drawn with matplotlib from the numbers in `data`. Each function returns a Figure to save.

Colours differ in lightness as well as in hue, and lines in dashes, so that they are told apart in grey and by
colour-blind people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from recal.comparison import Comparison, recommend
from recal.errors import InputError, MissingExtraError
from recal.files.atomic import replacing
from recal.plan import plan_of
from recal.reporting.data import figures as data
from recal.reporting.data.dots import Dots, dots
from recal.reporting.data.groups import FEWEST_RANKED, GROUP_LABELS, GroupStudy, group_study
from recal.reporting.data.slices import Slices, slices_of
from recal.reporting.data.verdict import shown_first

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BEFORE, AFTER, INK, SOFT = "#d9822b", "#0b5394", "#1b2430", "#77828f"
# As in the page's style sheet: apart in lightness.
_GROUPS = ("#4b1248", "#b5561c", "#4fa3a5", "#bcd7ee")
_RANKS = ("#deebf7", "#94c4df", "#2e7ebc", "#08306b")


def _figure(columns: int = 1, width: float = 4.6, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "report", "Drawing figures") from None
    # Without columns the caller lays out its own. A Figure made so needs no display and leaves pyplot's state alone.
    figure = Figure(figsize=(width * max(columns, 1), height), layout="constrained", dpi=150)
    axes = [figure.add_subplot(1, columns, index + 1) for index in range(columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Before dashed and light, after solid and dark; a lone curve counts as after."""
    if len(names) == 1:
        return {names[0]: {"color": AFTER}}
    return {name: {"color": AFTER} if index else {"color": BEFORE, "ls": "--"} for index, name in enumerate(names)}


def reliability_diagram(
    probs: ArrayLike, y: ArrayLike, ax: Axes | None = None, *, n_bins: int = 15, classes: Sequence[Any] | None = None
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
    found = data.reliability(data.scored(probs, y, classes), n_bins)
    if ax is None:
        _, (ax,) = _figure(width=4.2)
    _draw_reliability(ax, found, AFTER)
    ax.set_xlabel("confidence")
    return ax


def _draw_reliability(ax: Axes, found: data.Reliability, colour: str) -> None:
    middle, width = (found.low + found.high) / 2, (found.high - found.low) * 0.95
    ax.plot([0, 1], [0, 1], color=SOFT, ls=":", lw=1)
    ax.bar(middle, found.band_high - found.band_low, width, found.band_low, color=colour, alpha=0.3, lw=0)
    ax.hlines(found.accuracy, found.low, found.high, color=colour, lw=2.5)
    ax.plot(found.confidence, found.accuracy, "o", color=colour, ms=3.5)
    ax.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")


def reliability_figure(methods: Mapping[str, data.Reliability]) -> Figure:
    """Accuracy against confidence, one panel for each method, with 95 % bands and bin counts."""
    figure, _ = _figure(0, 4.2 * len(methods), 4.6)
    grid = figure.add_gridspec(2, len(methods), height_ratios=(5, 1))
    for column, (name, found) in enumerate(methods.items()):
        ax = figure.add_subplot(grid[0, column])
        counts = figure.add_subplot(grid[1, column], sharex=ax)
        colour = _styles(list(methods))[name]["color"]
        _draw_reliability(ax, found, colour)
        counts.bar((found.low + found.high) / 2, found.counts, (found.high - found.low) * 0.95, color=colour)
        counts.set(ylabel="samples", xlabel="confidence")
        ax.set_title(name)
        ax.tick_params(labelbottom=False)
        for part in (ax, counts):
            part.spines[["top", "right"]].set_visible(False)
    return figure


def histogram_figure(methods: Mapping[str, data.Histogram]) -> Figure:
    """How often each confidence is given: right answers filled, wrong ones hatched."""
    figure, axes = _figure(len(methods), 4.2, 3.2)
    for ax, (name, found) in zip(axes, methods.items()):
        middle, width = (found.edges[1:] + found.edges[:-1]) / 2, np.diff(found.edges) * 0.92
        ax.bar(middle, found.right, width, color=_styles(list(methods))[name]["color"], label="right")
        style: dict[str, Any] = {"color": "white", "edgecolor": INK, "hatch": "////", "lw": 0.6, "label": "wrong"}
        ax.bar(middle, found.wrong, width, found.right, **style)
        ax.axvline(found.confidence, color=INK, lw=1.2, label="mean confidence")
        ax.axvline(found.accuracy, color=INK, lw=1.2, ls="--", label="accuracy")
        ax.set(xlim=(0, 1), xlabel="confidence", ylabel="share of samples", title=name)
        ax.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def crowd_figure(methods: Mapping[str, data.Crowd]) -> Figure:
    """Errors made against errors expected, in bins of equally many answers, on a square-root scale."""
    figure, axes = _figure(len(methods), 4.2, 3.4)
    for ax, (name, found) in zip(axes, methods.items()):
        colour = _styles(list(methods))[name]["color"]
        middle, width = (found.left + found.right) / 2, (found.right - found.left) * 0.95
        ax.bar(middle, found.high - found.low, width, found.low, color=colour, alpha=0.3, lw=0, label="if calibrated")
        ax.hlines(found.promised, found.left, found.right, color=INK, lw=1.4, label="expected")
        ax.plot(middle, found.made, "o", color=colour, ms=4, label="made")
        ax.set_yscale("function", functions=(lambda v: np.sqrt(np.maximum(v, 0)), np.square))
        ax.set(xlim=(0, 1), xlabel="answers, least confident first", ylabel="error rate", title=name)
        ax.legend(frameon=False, fontsize=8)
    return figure


def risk_coverage_figure(methods: Mapping[str, data.Curve]) -> Figure:
    """Error rate among the accepted answers against the share accepted."""
    figure, (ax,) = _figure()
    for (name, curve), style in zip(methods.items(), _styles(list(methods)).values()):
        ax.plot(curve.coverage, curve.risk, label=name, **style)
    ax.set(xlim=(0, 1), xlabel="share accepted, most confident first", ylabel="error rate among them")
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False)
    return figure


def iterations_figure(found: data.Progress, path: data.PlanPath | None = None) -> Figure:
    """ECE over the iterations of a fit, and ECE, NLL and Brier score on other rows where a path is given."""
    figure, axes = _figure(1 if path is None else 2)
    ax = axes[0]
    ax.plot(found.number, found.ece, color=AFTER, lw=1.2, label="fitting rows")
    kept = found.accepted
    ax.plot(found.number[kept], found.ece[kept], "o", color=AFTER, ms=2.5, label="accepted")
    if not kept.all():
        ax.plot(found.number[~kept], found.ece[~kept], "o", mfc="white", mec=AFTER, ms=4, label="rejected")
    ax.set(xlabel="iteration", ylabel="ECE")
    if path is not None:
        ax.plot(path.steps, path.ece, color=BEFORE, ls="--", label="test rows")
        axes[1].plot(path.steps, path.nll / path.nll[0], color=AFTER, label="NLL")
        axes[1].plot(path.steps, path.brier / path.brier[0], color=BEFORE, ls="--", label="Brier")
        axes[1].set(xlabel="steps of the plan", ylabel="test rows, relative to before")
        axes[1].legend(frameon=False)
    ax.legend(frameon=False, fontsize=8)
    return figure


def betas_figure(found: data.Progress) -> Figure:
    """The factor on each group's logits in each iteration."""
    figure, (ax,) = _figure()
    for index, (label, colour, marker) in enumerate(zip(GROUP_LABELS.values(), _GROUPS, "o^sv")):
        ax.plot(found.number, found.betas[:, index], marker, color=colour, ms=3, label=label)
    ax.axhline(1, color=SOFT, lw=0.8, ls=":")
    ax.set(xlabel="iteration", ylabel="factor on the logits")
    ax.legend(frameon=False, fontsize=8)
    return figure


def flow_figure(found: data.Progress) -> Figure:
    """The share of samples in each group, for each transformation that was drawn."""
    specs, shares = data.group_flow(found)
    figure, (ax,) = _figure(width=max(4.6, 0.22 * len(specs) + 1.6))
    base = np.zeros(len(specs))
    for index, (label, colour, hatch) in enumerate(zip(GROUP_LABELS.values(), _GROUPS, ("", "//", "..", ""))):
        style: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "lw": 0.3, "label": label}
        ax.bar(range(len(specs)), shares[:, index], 0.95, base, **style)
        base = base + shares[:, index]
    ax.set_xticks(range(len(specs)), specs, rotation=90, fontsize=7)
    ax.set(ylabel="share of samples", ylim=(0, 1))
    ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def slice_figure(found: Slices) -> Figure:
    """Confidence minus accuracy of each part, with the range in which a calibrated model's lie."""
    figure, (ax,) = _figure(height=1.0 + 0.22 * len(found.names))
    places, (low, high) = np.arange(len(found.names)), found.gap_ranges
    ax.barh(places, high - low, 0.7, low, color=AFTER, alpha=0.25, lw=0, label="if calibrated")
    ax.plot(found.gaps, places, "o", color=AFTER, ms=4)
    ax.set_yticks(places, [name + (" *" if off else "") for name, off in zip(found.names, found.off)])
    ax.invert_yaxis()
    ax.axvline(0, color=INK, lw=0.8)
    ax.set(xlabel="mean confidence - accuracy", ylabel=found.by)
    ax.locator_params(axis="x", nbins=5)  # more labels than this run into each other
    return figure


def dot_figure(metrics: Sequence[Dots]) -> Figure:
    """Every method's value with its interval, one panel for each metric; what is far off is written at the edge."""
    figure, axes = _figure(len(metrics), 3.4, 1.0 + 0.28 * len(metrics[0].rows))
    for index, (ax, found) in enumerate(zip(axes, metrics)):
        for place, row in enumerate(found.rows):
            if row.method in found.beyond:
                ax.text(found.high, place, f"{row.value:.3g} →", ha="right", va="center", fontsize=8)
                continue
            ax.plot(row.interval, [place, place], color=SOFT, lw=2)
            ax.plot(row.value, place, "o", color=AFTER if row.mark == "best" else INK, ms=5)
        if found.baseline not in found.beyond:
            ax.axvline(found.reference, color=SOFT, lw=0.8, ls=":")
        ax.set_yticks(range(len(found.rows)), [row.method for row in found.rows] if index == 0 else [])
        ax.set(xlim=(found.low, found.high), ylim=(len(found.rows) - 0.5, -0.5), xlabel=found.label)
        ax.locator_params(axis="x", nbins=4)
    return figure


def rank_figure(study: GroupStudy) -> Figure:
    """How often each group had the smallest to the largest calibration error over the transformations."""
    figure, (ax,) = _figure()
    places = ("smallest ECE", "second", "third", "largest ECE")
    for place, (label, colour) in enumerate(zip(places, _RANKS)):
        ax.bar(
            np.arange(4) + 0.2 * (place - 1.5), study.ranks[:, place], 0.18, color=colour, edgecolor=INK, label=label
        )
    ax.set_xticks(range(4), [label.replace(", ", ",\n") for label in study.sized_labels])
    ax.set_xlabel(f"group (median size); fewer than {FEWEST_RANKED} samples are not ranked")
    ax.set_ylabel("transformations")
    ax.legend(frameon=False, fontsize=8)
    return figure


def write_figures(comparison: Comparison, folder: str | PathLike[str], kind: str = "png") -> tuple[Path, ...]:
    """Write every figure that the comparison has numbers for; `kind` is png, svg or pdf."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    method = shown_first(comparison, recommend(comparison))
    pair = {name: comparison.samples[name] for name in dict.fromkeys((comparison.methods[0], method))}
    by_class = slices_of(comparison.samples[method], comparison.answers[method], "class", comparison.classes)
    figures = {
        "reliability": reliability_figure({k: data.reliability(v, comparison.setup.n_bins) for k, v in pair.items()}),
        "by-rank": crowd_figure({name: data.crowd(rows) for name, rows in pair.items()}),
        "confidences": histogram_figure({name: data.histogram(rows) for name, rows in pair.items()}),
        "risk-coverage": risk_coverage_figure({name: data.risk_coverage(rows) for name, rows in pair.items()}),
        "classes": slice_figure(by_class.of(by_class.names[:20])),
    }
    if len(comparison.methods) > 1:
        figures["methods"] = dot_figure([dots(comparison, metric) for metric in ("nll", "brier", "ece", "aurc")])
    for name, calibrator in comparison.calibrators.items():
        history = getattr(calibrator, "history_", ())
        if history and comparison.test is not None:
            found = data.progress(history)
            path = data.path_of(plan_of(calibrator), comparison.test, comparison.test_labels)
            figures[f"{name}-iterations"] = iterations_figure(found, path)
            figures[f"{name}-betas"] = betas_figure(found)
            figures[f"{name}-groups"] = flow_figure(found)
    if comparison.test is not None and comparison.test.transforms:
        figures["group-ranks"] = rank_figure(group_study(comparison.test))
    return tuple(save_figure(figure, target / f"{name}.{kind}") for name, figure in figures.items())


def save_figure(figure: Figure, path: str | PathLike[str]) -> Path:
    """Write one figure, with no date inside: the same numbers give the same bytes."""
    from matplotlib import rc_context

    target = Path(path)
    kind = target.suffix.lower().lstrip(".")
    metadata: dict[str, dict[str, str | None]] = {
        "png": {"Software": "recal"},
        "svg": {"Creator": "recal", "Date": None},
        "pdf": {"Creator": "recal", "CreationDate": None},
    }
    if kind not in metadata:
        raise InputError(f"Figures are written to a name ending in .png, .svg or .pdf, got {target.name!r}.")
    with replacing(target) as file, rc_context({"svg.hashsalt": "recal"}):  # else the names inside are random
        figure.savefig(file, format=kind, metadata=metadata[kind])
    return target
