"""Figures draw their numbers and nothing else."""

import builtins
from itertools import pairwise

import numpy as np
import pytest

from recal import reliability_diagram
from recal.errors import MissingExtraError
from recal.metrics.row_scores import RowScores
from recal.reporting import charts
from recal.reporting.chart import PALETTE, svg
from recal.reporting.figure_data import reliability


def test_the_bins_of_a_diagram_and_their_bands():
    rng = np.random.default_rng(0)
    confidence = np.round(rng.uniform(0.25, 1, 400), 2)
    correct, zeros = rng.random(400) < 0.9 * confidence, np.zeros(400)
    data = reliability(RowScores(confidence, correct, zeros, zeros, 4), 10)
    assert data.counts.sum() == 400
    columns = (data.low, data.high, data.counts, data.confidence, data.accuracy)
    for low, high, count, mean, accuracy in zip(*columns):
        inside = (confidence > low) & (confidence <= high)
        assert count == inside.sum()
        assert mean == pytest.approx(confidence[inside].mean())
        assert accuracy == pytest.approx(correct[inside].mean())
    assert (data.band_low <= data.accuracy).all()
    assert (data.accuracy <= data.band_high).all()


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


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1])
def test_colours_are_read_on_their_ground_and_groups_told_apart_in_grey(scheme):
    light = {name: luminance(pair[scheme]) + 0.05 for name, pair in PALETTE.items()}

    def contrast(one, other):
        return max(light[one] / light[other], light[other] / light[one])

    least = {"ink": 4.5, "soft": 4.5, "link": 4.5, "worse": 4.5, "before": 3, "after": 3}
    assert [name for name, ratio in least.items() if contrast(name, "paper") < ratio] == []
    assert min(contrast(*pair) for pair in pairwise(["r1", "r2", "r3", "r4"])) >= 1.5
