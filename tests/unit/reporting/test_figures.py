"""Each figure is described once and drawn by both renderers; here they must draw its numbers and
nothing else.
"""

import ast
import builtins
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from recal import reliability_diagram
from recal.errors import MissingExtraError
from recal.reporting import charts, plots
from recal.reporting.chart import PALETTE, svg
from recal.reporting.figure_data import method_values, reliability, risk_coverage, slices_of
from recal.reporting.view_studies import group_study


def test_a_figure_is_written_the_same_twice(comparison, tmp_path):
    chart = charts.group_ranks_chart(group_study(comparison.test))
    for kind in ("png", "svg", "pdf"):
        first, again = (
            plots.save_figure(plots.figure_of(chart), tmp_path / f"{name}.{kind}") for name in "ab"
        )
        assert first.read_bytes() == again.read_bytes()


def test_the_reliability_diagram_shows_the_accuracies(comparison):
    data = reliability(comparison.samples["recal"])
    ax = reliability_diagram(comparison.probabilities("recal"), comparison.test_labels)
    drawn = [line.get_xydata() for line in ax.lines if len(line.get_xydata()) == 2][1:-1]
    assert [points[0, 1] for points in drawn] == pytest.approx(data.accuracy)
    assert [points[:, 0].mean() for points in drawn] == pytest.approx((data.low + data.high) / 2)


def test_both_renderers_draw_the_same_points(comparison):
    curves = {name: risk_coverage(comparison.samples[name]) for name in ("uncalibrated", "ts")}
    chart = charts.risk_coverage_chart(curves)
    lines = plots.figure_of(chart).axes[0].lines
    assert [len(line.get_xdata()) for line in lines] == [
        len(curve.risk) for curve in curves.values()
    ]
    drawn = svg(chart)
    assert drawn.count("<polyline") == 2
    assert drawn == svg(charts.risk_coverage_chart(curves))


def test_graded_answers_have_a_reliability_diagram(comparison):
    rows = comparison.samples["ts"]
    one = reliability_diagram(rows.confidence, rows.correct)
    other = reliability_diagram(comparison.probabilities("ts"), comparison.test_labels)
    assert all(
        np.allclose(a.get_xydata(), b.get_xydata())
        for a, b in zip(one.lines, other.lines, strict=True)
    )


def test_a_chart_alone_brings_its_colours_for_light_and_dark(comparison):
    chart = charts.reliability_chart(reliability(comparison.samples["ts"]), "after", "<ts>")
    alone = svg(chart, alone=True)
    assert "prefers-color-scheme: dark" in alone
    assert all(colour in alone for pair in PALETTE.values() for colour in pair)
    assert "<ts>" not in alone
    assert "<style" not in svg(chart)
    rules = alone[alone.index("<style>") : alone.index("</style>")].splitlines()
    assert all(rule.startswith((".recal", "@media", "<style>.recal")) for rule in rules), (
        "no rule may leak"
    )


def test_rejected_iterations_are_hollow(comparison):
    history = [
        replace(one, accepted=row >= 3)
        for row, one in enumerate(comparison.calibrators["recal"].history_)
    ]
    hollow = [mark for mark in charts.iterations_chart(history).marks if mark.style == "dot hollow"]
    assert len(hollow[0].x) == 3


def test_without_matplotlib_the_extra_is_named(comparison, monkeypatch):
    real = builtins.__import__

    def no_matplotlib(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[report\]"):
        reliability_diagram(comparison.probabilities("recal"), comparison.test_labels)


def test_numbers_below_an_axis_do_not_run_into_each_other(comparison):
    by_class = slices_of(comparison.samples["recal"], comparison.answers["recal"], "class")
    metrics = [method_values(comparison, metric) for metric in ("nll", "brier", "ece", "aurc")]
    for chart in (*map(charts.methods_chart, metrics), charts.slice_chart({"after": by_class})):
        figure = plots.figure_of(chart)
        figure.draw_without_rendering()
        for ax in figure.axes:
            shown = [
                label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()
            ]
            inside = [
                box for box in shown if ax.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= ax.bbox.x1 + 1
            ]
            assert len(inside) > 1
            assert all(left.x1 < right.x0 for left, right in pairwise(inside))


def test_drawing_computes_nothing_and_matplotlib_is_imported_once():
    """Charts show objects of numbers; what they import tells."""
    folder = Path(charts.__file__).parent
    for name in ("chart.py", "charts.py"):
        for node in ast.parse((folder / name).read_text()).body:  # types may come from anywhere
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("recal."):
                assert node.module.split(".")[1] in {"reporting", "comparison"}, (
                    f"{name} imports {node.module}"
                )
    users = [path.name for path in folder.glob("*.py") if "matplotlib" in _imports(path)]
    assert users == ["plots.py"]


def _imports(path):
    nodes = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
    ]
    return {(node.module or "").split(".")[0] for node in nodes}
