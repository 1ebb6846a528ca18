"""The demo's two figures. They are drawn to be read in grey, too: by lightness and pattern, not by colour alone."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import Labels
from recal.decisions import Decision
from recal.engine.grouping import Group, group
from recal.errors import MissingExtraError
from recal.files.atomic import replacing
from recal.maps.arrays import softmax
from recal.metrics import Evaluation
from recal.metrics.calibration_error import table_of
from recal.metrics.rows import equal_width_edges
from recal.transforms import Transform, ZoomOut
from recal.views import Views

INK, _INK = "#222222", (0.13, 0.13, 0.13)
_BLUE, _RUST, _DARK = (0.62, 0.73, 0.84), (0.60, 0.20, 0.08), "#1f4e79"
_FEW = 10
_TITLES = {
    "uncalibrated": "as trained",
    "temperature": "temperature scaling",
    "ReCal": "ReCal",
    "default": "default of recal",
}
_BINS = 15
_SHOWN = 6
Probs = dict[str, NDArray[np.float64]]


def _plots() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("matplotlib", "demo", "Drawing the demo's figures") from error
    from matplotlib.figure import Figure

    matplotlib.rcParams["font.family"] = "DejaVu Sans"  # comes with matplotlib, so figures look the same everywhere
    return Figure


def _save(figure: Any, path: Path) -> Path:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120, metadata={"Software": "recal"})
    with replacing(path) as file:
        file.write(drawn.getvalue())
    return path


def draw_summary(
    path: Path, probs: Probs, labels: Labels, found: dict[str, Evaluation], decisions: dict[str, Decision]
) -> Path:
    """Draw reliability before and after, and the share of answers that each method allows to automate."""
    figure = _plots()(figsize=(12.0, 4.4), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=[1, 1, 1.15])
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(length=3, colors=INK, labelsize=9)
    for axis, name in zip(axes, ("uncalibrated", "default")):
        _reliability(axis, probs[name], labels)
        axis.set_title(f"{_TITLES[name]}\nECE {100 * found[name]['ece']:.1f} %", fontsize=11, color=INK)
    axes[0].set_ylabel("share of right answers")
    _shares(axes[2], decisions)
    _explain(figure)
    return _save(figure, path)


def _reliability(axis: Any, probs: NDArray[np.float64], labels: Labels) -> None:
    """How often answers were right against the confidence in them."""
    edges = equal_width_edges(_BINS)
    table = table_of(probs.max(1), probs.argmax(1) == labels, edges)
    held = table.counts > 0
    middles, width = (edges[:-1] + edges[1:])[held] / 2, 1 / _BINS
    right, sure, count = table.accuracy[held], table.confidence[held], table.counts[held]
    # Bins of a handful of digits say little: they are pale.
    pale = np.where(count < _FEW, 0.3, 1.0)
    axis.bar(middles, right, width * 0.94, color=[(*_BLUE, strength) for strength in pale], zorder=2)
    axis.bar(
        middles, sure - right, width * 0.94, bottom=right, facecolor="none", hatch="/////", linewidth=0.9,
        edgecolor=[(*_RUST, strength) for strength in pale], zorder=3,
    )  # fmt: skip
    low, high = _wilson(right, count)
    axis.vlines(middles, low, high, color=[(*_INK, strength) for strength in pale], linewidth=1.3, zorder=4)
    axis.plot([0, 1], [0, 1], linestyle=(0, (4, 3)), color=INK, linewidth=1.1, zorder=5)
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", aspect="equal")


def _shares(axis: Any, decisions: dict[str, Decision]) -> None:
    """How much can be automated at the same risk, method by method."""
    names = list(decisions)[::-1]
    shares = [100 * decisions[name].coverage for name in names]
    colors = [_DARK if name == "default" else _BLUE for name in names]
    axis.barh([_TITLES[name] for name in names], shares, color=colors, height=0.6)
    for place, share in enumerate(shares):
        axis.text(share + 1.5, place, f"{share:.1f} %", va="center", fontsize=10, color=INK)
    axis.set(xlim=(0, 112), xticks=[0, 50, 100], xlabel="% of the answers")
    risk = next(iter(decisions.values())).risk
    axis.set_title(f"can be automated with at most\n{100 * risk:g} % errors, guaranteed", fontsize=11, color=INK)


def _explain(figure: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(color=_BLUE, label="right answers"),
        Patch(facecolor="none", edgecolor=_RUST, hatch="/////", label="gap to the confidence"),
        Line2D([], [], color=INK, linewidth=1.3, label="95 % interval"),
        Line2D([], [], color=INK, linewidth=1.1, linestyle=(0, (4, 3)), label="calibrated"),
        Patch(color=(*_BLUE, 0.3), label=f"fewer than {_FEW} digits"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9, frameon=False)


def _wilson(share: NDArray[np.float64], count: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The 95 % interval of a share, which stays within 0 and 1 for few samples too."""
    z = 1.96
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return middle - half, middle + half


def draw_zoomed(path: Path, images: NDArray[np.uint8], views: Views, calibrated: NDArray[np.float64]) -> Path:
    """Draw one digit of each group beside its zoomed copies, with what the network said about each."""
    zooms = [transform for transform in views.transforms if isinstance(transform, ZoomOut)]
    strongest_first = sorted(zooms, key=lambda transform: transform.scale)
    shown = [strongest_first[i] for i in np.linspace(len(strongest_first) - 1, 0, _SHOWN).astype(int)]
    rows = _examples(views, shown[-2])
    figure = _plots()(figsize=(1.45 * (_SHOWN + 2.6), 1.72 * len(rows) + 0.5), layout="constrained")
    axes = figure.subplots(len(rows), _SHOWN + 2, width_ratios=[1.5, *[1.0] * (_SHOWN + 1)], squeeze=False)
    for line, (kind, row) in zip(axes, rows.items()):
        sample = views[row]
        answer, truth = int(sample.logits.argmax()), int(sample.labels[0])  # type: ignore[index]
        before, after = softmax(sample.logits)[0, answer], calibrated[row, answer]
        line[0].axis("off")
        told = (
            f"at {shown[-2]}:\n{_GROUPS[kind]}\n\ntrue digit: {truth}\n"
            f"as trained: {answer}, confidence {before:.0%}\nReCal: {answer}, confidence {after:.0%}"
        )
        line[0].text(0, 0.5, told, va="center", fontsize=9, color=INK, linespacing=1.35)
        _picture(line[1], images[row], "original", answer, before, answer)
        for axis, transform in zip(line[2:], shown):
            probs = softmax(sample.transformed(transform))[0]
            _picture(axis, _apply(transform, images[row]), str(transform), int(probs.argmax()), probs[answer], answer)
    figure.suptitle(
        "Predictions and confidence when a digit is zoomed out. Bold: the prediction changes; shown is the remaining "
        "confidence in the first one.",
        fontsize=10.5,
        color=INK,
    )
    return _save(figure, path)


_GROUPS = {
    Group.CHANGED_ROSE: "answer changed,\nconfidence rose",
    Group.CHANGED_FELL: "answer changed,\nconfidence fell",
    Group.KEPT_ROSE: "answer kept,\nconfidence rose",
    Group.KEPT_FELL: "answer kept,\nconfidence fell",
}


def _examples(views: Views, transform: Transform) -> dict[Group, int]:
    """The sample of each group whose confidence was middling, where there is something to correct."""
    groups = group(views.logits, views.transformed(transform))
    sure = softmax(views.logits).max(1)
    chosen = {}
    for kind in reversed(Group):
        members = np.flatnonzero(groups == kind)
        if len(members):
            chosen[kind] = int(members[np.argmin(np.abs(sure[members] - 0.85))])
    return chosen


def _picture(axis: Any, image: NDArray[Any], title: str, said: int, sure: float, answer: int) -> None:
    axis.imshow(image, cmap="gray_r", vmin=0, vmax=255, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=8, color=INK)
    changed = said != answer
    told = f"{said}  ({answer}: {sure:.0%})" if changed else f"{answer}: {sure:.0%}"
    axis.set_xlabel(told, fontsize=9, color=INK, weight="bold" if changed else "normal")
    for spine in axis.spines.values():
        spine.set(color=INK, linewidth=2.2 if changed else 0.5)


def _apply(transform: Transform, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    zoomed: NDArray[np.uint8] = transform(image[None])[0]
    return zoomed
