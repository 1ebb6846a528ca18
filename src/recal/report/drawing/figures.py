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
from numpy.typing import NDArray

from recal.comparison import Comparison, recommend
from recal.errors import InputError, MissingExtraError
from recal.metrics import LABELS
from recal.metrics.rows import RowScores
from recal.report.data import figures as data
from recal.report.data.groups import GROUP_LABELS, GroupStudy, group_study
from recal.report.data.verdict import shown_first
from recal.transforms import Transform, as_transform

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BEFORE, AFTER, INK, SOFT = "#d9822b", "#0b5394", "#1b2430", "#77828f"
_GROUPS = ("#7a1f5c", "#e7a24f", "#56b08c", "#0b5394")
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


def reliability_figure(methods: Mapping[str, RowScores], n_bins: int = 15) -> Figure:
    """Accuracy against confidence, one panel for each method, with 95 % bands and bin counts."""
    figure, _ = _figure(0, 4.2 * len(methods), 4.6)
    grid = figure.add_gridspec(2, len(methods), height_ratios=(5, 1))
    for column, (name, rows) in enumerate(methods.items()):
        ax = figure.add_subplot(grid[0, column])
        counts = figure.add_subplot(grid[1, column], sharex=ax)
        found, colour = data.reliability(rows, n_bins), _styles(list(methods))[name]["color"]
        middle, width = (found.low + found.high) / 2, (found.high - found.low) * 0.95
        ax.plot([0, 1], [0, 1], color=SOFT, ls=":", lw=1)
        ax.bar(middle, found.band_high - found.band_low, width, found.band_low, color=colour, alpha=0.3, lw=0)
        ax.hlines(found.accuracy, found.low, found.high, color=colour, lw=2.5)
        ax.plot(found.confidence, found.accuracy, "o", color=colour, ms=3.5)
        counts.bar(middle, found.counts, width, color=colour)
        counts.set(ylabel="samples", xlabel="confidence")
        ax.set(xlim=(0, 1), ylim=(0, 1), ylabel="share right", title=name)
        ax.tick_params(labelbottom=False)
        for part in (ax, counts):
            part.spines[["top", "right"]].set_visible(False)
    return figure


def histogram_figure(methods: Mapping[str, RowScores]) -> Figure:
    """How often each confidence is given: right answers filled, wrong ones hatched."""
    figure, axes = _figure(len(methods), 4.2, 3.2)
    for ax, (name, rows) in zip(axes, methods.items()):
        edges, right, wrong = data.histogram(rows)
        middle, width, colour = (
            (edges[1:] + edges[:-1]) / 2,
            np.diff(edges) * 0.92,
            _styles(list(methods))[name]["color"],
        )
        ax.bar(middle, right, width, color=colour, label="right")
        ax.bar(middle, wrong, width, right, color="white", edgecolor=INK, hatch="////", lw=0.6, label="wrong")
        ax.axvline(float(rows.confidence.mean()), color=INK, lw=1.2, label="mean confidence")
        ax.axvline(float(rows.correct.mean()), color=INK, lw=1.2, ls="--", label="accuracy")
        ax.set(xlim=(0, 1), xlabel="confidence", ylabel="share of samples", title=name)
        ax.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def risk_coverage_figure(methods: Mapping[str, RowScores]) -> Figure:
    """Error rate among the accepted answers against the share accepted."""
    figure, (ax,) = _figure()
    for (name, rows), style in zip(methods.items(), _styles(list(methods)).values()):
        ax.plot(*data.risk_coverage(rows), label=name, **style)
    ax.set(xlim=(0, 1), xlabel="share accepted, most confident first", ylabel="error rate among them")
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False)
    return figure


def iterations_figure(found: data.Progress, path: data.Path | None = None) -> Figure:
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


def class_figure(found: data.PerClass) -> Figure:
    """Confidence minus accuracy of the answers with each class."""
    figure, (ax,) = _figure(height=1.0 + 0.22 * len(found.names))
    ax.barh(range(len(found.names)), found.confidence - found.accuracy, color=AFTER)
    ax.set_yticks(range(len(found.names)), found.names)
    ax.invert_yaxis()
    ax.axvline(0, color=INK, lw=0.8)
    ax.set(xlabel="mean confidence - accuracy", ylabel="predicted class")
    ax.locator_params(axis="x", nbins=5)  # more labels than this run into each other
    return figure


def dot_figure(comparison: Comparison, metrics: Sequence[str] = ("nll", "brier", "ece", "aurc")) -> Figure:
    """Every method's value with its interval, one panel for each metric."""
    figure, axes = _figure(len(metrics), 3.4, 1.0 + 0.28 * len(comparison.methods))
    for index, (ax, metric) in enumerate(zip(axes, metrics)):
        rows = comparison.rows(metric)
        for place, row in enumerate(rows):
            ax.plot(row.interval, [place, place], color=SOFT, lw=2)
            ax.plot(row.value, place, "o", color=AFTER if row.mark == "best" else INK, ms=5)
        ax.axvline(comparison.row(metric, comparison.baseline).value, color=SOFT, lw=0.8, ls=":")
        ax.set_yticks(range(len(rows)), [row.method for row in rows] if index == 0 else [])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.set_xlabel(LABELS[metric])
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
    ax.set_xticks(range(4), [label.replace(", ", ",\n") for label in GROUP_LABELS.values()])
    ax.set_ylabel("transformations")
    ax.legend(frameon=False, fontsize=8)
    return figure


def gallery_figure(images: NDArray, transforms: Sequence[Transform | str], most: int = 6) -> Figure:
    """Some images, one a row, beside their transformed copies; images as (n, height, width[, channels])."""
    chosen = np.asarray(images)[:most]
    values = [as_transform(transform) for transform in transforms]
    copies = {"original": chosen, **{str(value): np.asarray(value(chosen)) for value in values}}
    figure, axes = _figure(len(copies), 1.5, 1.5 * len(chosen) + 0.4)
    top = 255.0 if np.issubdtype(chosen.dtype, np.integer) else max(float(chosen.max()), 1e-9)
    for ax, (name, stack) in zip(axes, copies.items()):
        # One picture a column: the images below each other.
        ax.imshow(np.clip(np.concatenate(list(stack), axis=0) / top, 0, 1), cmap="gray", vmin=0, vmax=1)
        ax.set_title(name, fontsize=9)
        ax.set_axis_off()
    return figure


def write_figures(comparison: Comparison, folder: str | PathLike[str], kind: str = "png") -> tuple[Path, ...]:
    """Write every figure that the comparison has numbers for; `kind` is png, svg or pdf."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    method = shown_first(comparison, recommend(comparison))
    pair = {name: comparison.samples[name] for name in dict.fromkeys((comparison.methods[0], method))}
    figures = {
        "reliability": reliability_figure(pair, comparison.setup.n_bins),
        "confidences": histogram_figure(pair),
        "risk-coverage": risk_coverage_figure(pair),
        "classes": class_figure(
            data.per_class(comparison.probabilities(method), comparison.test_labels, comparison.classes)
        ),
    }
    if len(comparison.methods) > 1:
        figures["methods"] = dot_figure(comparison)
    for name, calibrator in comparison.calibrators.items():
        history = getattr(calibrator, "history_", ())
        plan = getattr(calibrator, "plan_", None)
        if history and plan is not None and comparison.test is not None:
            found = data.progress(history)
            path = data.path_of(plan, comparison.test, comparison.test_labels)
            figures[f"{name}-iterations"] = iterations_figure(found, path)
            figures[f"{name}-betas"] = betas_figure(found)
            figures[f"{name}-groups"] = flow_figure(found)
    if comparison.test is not None and comparison.test.transforms:
        figures["group-ranks"] = rank_figure(group_study(comparison.test))
    return tuple(save_figure(figure, target / f"{name}.{kind}") for name, figure in figures.items())


def save_figure(figure: Figure, path: str | PathLike[str]) -> Path:
    """Write one figure, with no date inside: the same numbers give the same bytes."""
    target = Path(path)
    kind = target.suffix.lower().lstrip(".")
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    if kind not in metadata:
        raise InputError(f"Figures are written to a name ending in .png, .svg or .pdf, got {target.name!r}.")
    figure.savefig(target, metadata=metadata[kind])
    return target
