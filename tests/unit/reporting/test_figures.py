"""Each figure is described once and drawn by both renderers; here they must draw its numbers and
nothing else.
"""

import builtins
from itertools import pairwise

import pytest

from recal import reliability_diagram
from recal.errors import MissingExtraError
from recal.reporting import charts
from recal.reporting.chart import PALETTE, svg
from recal.reporting.figure_data import reliability, slices_of
from recal.reporting.view_studies import group_study


def test_a_figure_is_written_the_same_twice(comparison, tmp_path):
    chart = charts.ranks_chart(group_study(comparison.test).ranks.tolist(), "abcd")
    for kind in ("png", "svg", "pdf"):
        first, again = (
            charts.save_figure(charts.figure_of(chart), tmp_path / f"{name}.{kind}")
            for name in "ab"
        )
        assert first.read_bytes() == again.read_bytes()


def test_the_reliability_diagram_shows_the_accuracies(comparison):
    data = reliability(comparison.samples["recal"])
    ax = reliability_diagram(comparison.probabilities("recal"), comparison.test_labels)
    drawn = [line.get_xydata() for line in ax.lines if len(line.get_xydata()) == 2][1:-1]
    assert [points[0, 1] for points in drawn] == pytest.approx(data.accuracy)
    assert [points[:, 0].mean() for points in drawn] == pytest.approx((data.low + data.high) / 2)


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
    figure = charts.figure_of(charts.slice_chart({"after": by_class}))
    figure.draw_without_rendering()
    (ax,) = figure.axes
    shown = [label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()]
    inside = [box for box in shown if ax.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= ax.bbox.x1 + 1]
    assert len(inside) > 1
    assert all(left.x1 < right.x0 for left, right in pairwise(inside))
