"""Figures draw their numbers and nothing else."""

import builtins

import pytest

from recal import reliability_diagram
from recal.errors import MissingExtraError
from recal.reporting import charts
from recal.reporting.chart import PALETTE, svg
from recal.reporting.figure_data import reliability


def test_the_reliability_diagram_shows_the_accuracies(comparison):
    data = reliability(comparison.samples["recal"])
    ax = reliability_diagram(comparison.probs["recal"], comparison.test_labels)
    drawn = ax.collections[0].get_segments()
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
        reliability_diagram(comparison.probs["recal"], comparison.test_labels)
