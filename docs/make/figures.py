"""Draw the figures of the documentation in one style, light and dark: python -m docs.make.figures
--data FOLDER

Without `--data`, the figures that need no data are drawn: the flow, the four groups, and the arena
and the panels from their tables in docs/results. With it, the folder holds cifar10_resnet32.npz
(labelled views) and cifar10_resnet32_damaged.npz (`names`, `logits` (m, n, K), `labels`, and
`rows`, the rows of the views that were damaged).
"""

from __future__ import annotations

import argparse
import re
from html import escape
from pathlib import Path

import numpy as np

from benchmarks.arena.summary import win_rates_chart
from recal import AutoCalibration, Plan, TemperatureScaling, Views, load, profile, read_views
from recal.decisions import to_the_power
from recal.demo import run_demo
from recal.maps.steps import calibrated_probs
from recal.metrics import ece
from recal.metrics.row_scores import score
from recal.reporting.chart import (
    PALETTE,
    WIDTH,
    Axis,
    Chart,
    Dots,
    Line,
    Mark,
    percent_tick,
    style_sheet,
    svg,
    ticks,
)
from recal.reporting.charts import FIFTHS_PERCENT, new_figure, reliability_diagram

DOCS = Path(__file__).parents[1]
_NAMED = re.compile(r"\| ([^|]+?) \| ([\d.]+) \[([\d.]+), ([\d.]+)\] \|")
# The damages are learned from views of other kinds than flips and shifts, which do no damage.
_HARMLESS = ("flip", "shift")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help="folder with the two files of the ResNet-32 on CIFAR-10"
    )
    parser.add_argument("--demo", type=Path, help="folder for the files of recal demo, to draw it")
    typed = parser.parse_args()
    folder = typed.data
    if typed.demo is not None:
        demo_summary(typed.demo)
    _write("images/flow.svg", flow())
    _write("images/groups.svg", groups())
    _write("results/arena.svg", svg(arena((DOCS / "results/arena.md").read_text()), alone=True))
    _write("images/panels.svg", svg(panels((DOCS / "results/panels.md").read_text()), alone=True))
    if folder is not None:
        views = read_views(folder / "cifar10_resnet32.npz")
        with np.load(folder / "cifar10_resnet32_damaged.npz") as damaged:
            chart = following(views, damaged["logits"], damaged["labels"], damaged["rows"])
        _write("images/following.svg", svg(chart, alone=True))
        _write("images/risk-coverage.svg", svg(before_and_after(views), alone=True))


def _write(name: str, text: str) -> None:
    (DOCS / name).write_text(text + "\n", encoding="utf-8")
    print(DOCS / name)


def demo_summary(folder: Path) -> None:
    """Draw what `recal demo` finds: reliability before and after, and the share automated."""
    result = run_demo(folder)
    new, calibrator = read_views(result.files["new views"]), load(result.files["calibration"])
    right = new.logits.argmax(axis=1) == new.labels
    confidence = {
        "as trained": calibrated_probs(Plan(), new).max(axis=1),
        "default of recal": calibrator.predict_confidence(new),
    }
    figure = new_figure(5.2, 5.6)
    left, other, below = figure.subplot_mosaic("ab;cc", height_ratios=[1.3, 1]).values()
    for ax, (title, values) in zip((left, other), confidence.items()):
        reliability_diagram(values, right, ax)
        ax.set_title(f"{title}\nECE {100 * ece(values, right):.1f} %", fontsize=10)
    other.set_ylabel("")
    names = dict(
        zip(("as trained", "temperature scaling", "ReCal", "default of recal"), result.shares)
    )
    shares = {title: 100 * result.shares[name] for title, name in reversed(names.items())}
    colours = [PALETTE["after" if one == "default of recal" else "before"][0] for one in shares]
    bars = below.barh(list(shares), list(shares.values()), color=colours)
    below.bar_label(bars, fmt="%.1f %%", padding=3)
    below.set(xlim=(0, 115), xlabel="share of the answers in per cent")
    below.set_title("Automated with at most 1 % errors, guaranteed", fontsize=10)
    below.spines[["top", "right"]].set_visible(False)
    figure.savefig(DOCS / "images/demo.png", metadata={"Software": "recal"})


def flow() -> str:
    """From an input to a decision: input, views, model, map, rule."""
    drawing = _Diagram("From an input to a decision: model, views, map and rule", 330)
    drawing.box(10, 44, 118, "input")
    drawing.box(171, 44, 118, "model", key="r1")
    drawing.box(332, 44, 118, "logits")
    drawing.box(10, 118, 118, "views", "zoomed, shifted, …")
    drawing.box(171, 118, 118, "model", "unchanged", key="r1")
    drawing.box(332, 118, 118, "their logits")
    drawing.box(332, 204, 118, "map", "fitted once", key="after")
    drawing.box(171, 204, 118, "probabilities", "calibrated")
    drawing.box(10, 204, 118, "rule", "risk 1 %", key="after")
    drawing.box(10, 280, 118, "accept")
    drawing.box(171, 280, 118, "review")
    for start, end in (
        ((128, 65), (171, 65)), ((289, 65), (332, 65)), ((69, 86), (69, 118)),
        ((128, 139), (171, 139)), ((289, 139), (332, 139)), ((391, 160), (391, 204)),
        ((332, 225), (289, 225)), ((171, 225), (128, 225)), ((69, 246), (69, 280)),
        ((110, 246), (190, 280)),
    ):  # fmt: skip
        drawing.arrow(start, end)
    drawing.elbow((450, 65), (457, 65), (457, 225), (450, 225))
    return drawing.svg()


def groups() -> str:
    """The four groups of ReCal, by what a transformation does to the prediction and to its
    confidence.
    """
    drawing = _Diagram("The four groups of ReCal under a transformation", 260)
    drawing.text(210, 52, "confidence rose", "label")
    drawing.text(370, 52, "confidence fell", "label")
    drawing.text(66, 105, "prediction kept", "label")
    drawing.text(66, 195, "prediction changed", "label")
    cells = (
        (130, 64, "r4", "kept, rose", "logits × β3"),
        (292, 64, "r1", "kept, fell", "logits × β4"),
        (130, 154, "r3", "changed, rose", "logits × β1"),
        (292, 154, "r2", "changed, fell", "logits × β2"),
    )
    for x, y, key, name, words in cells:
        drawing.box(x, y, 154, name, words, key=key, height=80, swatch=True)
    return drawing.svg()


def tag(name: str, inside: str = "", **attributes: object) -> str:
    """Return an element; `css` stands for class, `text_anchor` for text-anchor.

    `inside` is already escaped.
    """
    words = []
    for key, value in attributes.items():
        text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escape(str(value))
        words.append(f'{"class" if key == "css" else key.replace("_", "-")}="{text}"')
    return f"<{' '.join([name, *words])}>{inside}</{name}>"


class _Diagram:
    """Boxes and arrows in the style of the charts."""

    def __init__(self, title: str, height: int) -> None:
        self.title, self.height = title, height
        self.parts: list[str] = []
        self.text(10, 22, title, "strong", "start")

    def box(
        self, x: int, y: int, width: int, name: str, words: str = "", *, key: str = "",
        height: int = 42, swatch: bool = False,
    ) -> None:  # fmt: skip
        frame = {"x": x, "y": y, "width": width, "height": height, "rx": 6}
        look = {"fill": "var(--wash)", "stroke": "var(--axis)", "stroke_width": 1}
        if key and not swatch:
            look = {"fill": "var(--after-soft)", "stroke": "var(--after)", "stroke_width": 1.2}
        self.parts.append(tag("rect", **frame, style=_style(look)))
        if swatch:
            self.parts.append(
                tag("rect", css=f"rank {key}", x=x + 10, y=y + 12, width=14, height=14, rx=2)
            )
        middle = y + height / 2 + (4 if not words else -3)
        self.text(x + width / 2, middle, name, "label")
        if words:
            self.text(x + width / 2, middle + 16, words, "tick")

    def text(self, x: float, y: float, words: str, css: str, anchor: str = "middle") -> None:
        self.parts.append(tag("text", words, css=css, x=float(x), y=float(y), text_anchor=anchor))

    def arrow(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        self.elbow(start, end)

    def elbow(self, *points: tuple[int, int]) -> None:
        """A line through points that ends in an arrow head."""
        (x0, y0), (x1, y1) = points[-2:]
        length = float(np.hypot(x1 - x0, y1 - y0))
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        line = (
            " ".join(f"{x},{y}" for x, y in points[:-1]) + f" {x1 - 5 * ux:.1f},{y1 - 5 * uy:.1f}"
        )
        self.parts.append(
            tag("polyline", points=line, style="fill: none; stroke: var(--axis); stroke-width: 1.4")
        )
        corners = [(x1, y1), (x1 - 7 * ux + 3.5 * uy, y1 - 7 * uy - 3.5 * ux)]
        corners.append((x1 - 7 * ux - 3.5 * uy, y1 - 7 * uy + 3.5 * ux))
        head = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        self.parts.append(tag("polygon", points=head, style="fill: var(--axis)"))

    def svg(self) -> str:
        size = {"width": WIDTH, "height": self.height}
        style = tag("style", style_sheet(".recal")) + tag("rect", css="paper", **size)
        inside = tag("title", self.title) + style + "".join(self.parts)
        about = {
            "role": "img",
            "aria_label": self.title,
            "css": "recal",
            "xmlns": "http://www.w3.org/2000/svg",
        }
        return tag("svg", inside, viewBox=f"0 0 {WIDTH} {self.height}", **size, **about)


def _style(look: dict[str, object]) -> str:
    return "; ".join(f"{name.replace('_', '-')}: {value}" for name, value in look.items())


def arena(page: str, most: int = 14) -> Chart:
    """Win rates with intervals, best first, from the first table of the arena's page."""
    table = page.partition("## Answers kept")[2].partition("## ")[0]
    rows = [(name, *map(float, numbers)) for name, *numbers in _NAMED.findall(table)]
    kept = rows[:most] + [row for row in rows[most:] if row[0] in ("ts", "none")]
    return win_rates_chart(kept)


def panels(page: str) -> Chart:
    """Share automated over cost: the curve of a cascade, all systems, and each of them alone."""
    cascades = page.partition("## Cascades")[2].partition("### ")[0]
    rows = [line.split("|")[1:-1] for line in cascades.splitlines() if line.startswith("|")]
    promised = [[cell.strip() for cell in row] for row in rows if row[0].strip() == "confidence"]
    curve_part = page.partition("### Cost and share")[2].partition("### ")[0]
    curve = [
        [float(cell.strip(" %")) for cell in line.strip("| ").split(" | ")]
        for line in curve_part.splitlines()
        if re.match(r"\| \d", line)
    ]
    cost, share = np.array(curve)[:, 0], np.array(curve)[:, 1] / 100
    marks: list[Mark] = [Line(cost, share, "curve after", "cascade")]
    for _, name, automated, money, _ in promised:
        x, y = float(money), float(automated.rstrip("%")) / 100
        style = "dot after" if name == "cascade" else "dot before"
        marks.append(Dots((x,), (y,), style, (f"{name}: {automated} for {money}",), size=4.5))
    highest = float(np.ceil(max(*cost, *(float(row[3]) for row in promised))))
    x_ticks = tuple((value, f"{value:g}") for value in ticks(0.0, highest, 5))
    y_ticks = tuple((value, percent_tick(value)) for value in ticks(0.4, 0.9, 5))
    keys = {"after": "cascade", "before": "one system, or all systems"}
    x = Axis(0.0, highest, "dollars per 1,000 questions", x_ticks)
    y = Axis(0.4, 0.9, "automated at 10 % errors", y_ticks)
    return Chart("Share automated over cost", x, y, marks, keys)


def following(views: Views, damaged: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> Chart:
    """Mean confidence against accuracy of every damage, with the temperature of the fit and
    followed.
    """
    others = np.setdiff1d(np.arange(views.n_samples), rows)
    fit = views[np.random.default_rng(0).permutation(others)[:2000]]
    kinds = [one for one in fit.transforms if str(one).split(":")[0] not in _HARMLESS]
    knowledge = profile(Views(fit.logits, {one: fit.transformed(one) for one in kinds}, fit.labels))
    calibrator = TemperatureScaling().fit(fit.logits, fit.labels)
    points = []
    for logits in damaged.astype(np.float64)[1:]:  # the first are the images as they are
        probs = calibrator.predict_proba(logits)
        followed = to_the_power(probs, knowledge.condition(logits).ratio)
        points.append(
            (
                float((logits.argmax(1) == labels).mean()),
                probs.max(1).mean(),
                followed.max(1).mean(),
            )
        )
    accuracy, before, after = np.array(points).T
    low = float(np.floor(10 * min(accuracy.min(), after.min()) - 0.3) / 10)
    axis = tuple((value, percent_tick(value)) for value in ticks(low, 1.0, 6))
    marks: list[Mark] = [Line((low, 1), (low, 1), "ideal", "calibrated")]
    marks += [Line((x, x), (y0, y1), "reference") for x, y0, y1 in zip(accuracy, before, after)]
    marks += [
        Dots(accuracy, before, "dot before", size=4.5),
        Dots(accuracy, after, "dot after", size=4.5),
    ]
    gaps = [float(np.abs(values - accuracy).mean()) for values in (before, after)]
    keys = {
        "before": f"temperature of the fit, gap {100 * gaps[0]:.1f} %",
        "after": f"followed, gap {100 * gaps[1]:.1f} %",
    }
    title = f"Confidence under {len(accuracy)} kinds of damage, without labels"
    x, y = Axis(low, 1, "accuracy on damaged images", axis), Axis(low, 1, "mean confidence", axis)
    return Chart(title, x, y, marks, keys, height=380)


def before_and_after(views: Views) -> Chart:
    """Risk-coverage curves of one half of the images, before and after a calibration on the other
    half.
    """
    assert views.labels is not None
    order = np.random.default_rng(0).permutation(views.n_samples)
    fit, test = views[order[: len(order) // 2]], views[order[len(order) // 2 :]]
    calibrator = AutoCalibration().fit(fit)
    probs, confidence = calibrator.predict_both(test)
    logits = test.logits - test.logits.max(axis=1, keepdims=True)
    raw = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rows = {
        "before": score(raw, test.labels),
        "after": score(probs, test.labels, confidences=confidence),
    }
    marks: list[Mark] = []
    for name, one in rows.items():
        wrong = ~one.correct[np.argsort(-one.confidence, kind="stable")]
        counts = np.arange(1, len(wrong) + 1)
        shown = np.linspace(19, len(wrong) - 1, 200).astype(int)
        risk = (np.cumsum(wrong) / counts)[shown]
        marks.append(Line(counts[shown] / len(wrong), risk, f"curve {name}", name))
    high = 1.05 * max(float(np.max(mark.y)) for mark in marks if isinstance(mark, Line))
    places = tuple((value, percent_tick(value)) for value in ticks(0, high))
    title = f"Error rate among accepted answers, {len(test.labels):,} images"
    keys = {"before": "as trained", "after": "default of recal"}
    return Chart(
        title,
        Axis(0, 1, "share accepted, most confident first", FIFTHS_PERCENT),
        Axis(0, high, "error rate among them", places),
        marks,
        keys,
    )


if __name__ == "__main__":
    main()
