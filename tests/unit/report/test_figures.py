"""Figures are drawn from tested numbers; here they must draw them, and nothing else."""

import builtins
from itertools import pairwise

import numpy as np
import pytest

from recal.errors import MissingExtraError
from recal.report.data.figures import PerClass, progress, reliability
from recal.report.drawing import figures


def test_every_figure_of_a_comparison_is_written_the_same_twice(comparison, tmp_path):
    first = figures.write_figures(comparison, tmp_path / "a")
    names = {path.stem for path in first}
    assert names >= {"reliability", "confidences", "risk-coverage", "classes", "methods", "group-ranks"}
    assert names >= {"recal-iterations", "recal-betas", "recal-groups"}
    again = figures.write_figures(comparison, tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_figures_of_probabilities_alone(alone, tmp_path):
    names = {path.stem for path in figures.write_figures(alone, tmp_path, kind="svg")}
    assert names == {"reliability", "confidences", "risk-coverage", "classes"}


def test_the_reliability_figure_shows_the_accuracies(comparison):
    rows = comparison.samples["recal"]
    drawn = figures.reliability_figure({"recal": rows}).axes[0]
    dots = next(line for line in drawn.lines if line.get_marker() == "o")
    data = reliability(rows)
    assert np.allclose(dots.get_xydata(), np.column_stack([data.confidence, data.accuracy]))


def test_rejected_iterations_are_hollow(comparison):
    found = progress(comparison.calibrators["recal"].history_)
    found.accepted[:3] = False
    hollow = [line for line in figures.iterations_figure(found).axes[0].lines if line.get_label() == "rejected"]
    assert len(hollow[0].get_xdata()) == 3


def test_the_gallery_holds_the_original_and_each_copy():
    images = np.random.default_rng(0).integers(0, 255, (3, 16, 16), dtype=np.uint8)
    drawn = figures.gallery_figure(images, ["zoom:0.5", "brightness:0.3"])
    assert [ax.get_title() for ax in drawn.axes] == ["original", "zoom:0.5", "brightness:0.3"]
    shown = drawn.axes[0].images[0].get_array()
    assert shown.shape == (48, 16)


def test_without_matplotlib_the_extra_is_named(comparison, monkeypatch):
    real = builtins.__import__

    def no_matplotlib(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(MissingExtraError, match=r"recal-calibration\[report\]"):
        figures.risk_coverage_figure({"recal": comparison.samples["recal"]})


def test_numbers_below_an_axis_do_not_run_into_each_other(comparison):
    found = PerClass(("cat", "dog"), np.array([50, 50]), np.array([0.8, 0.9]), np.array([0.898, 0.797]))
    for figure in (figures.dot_figure(comparison), figures.class_figure(found)):
        figure.draw_without_rendering()
        for ax in figure.axes:
            shown = [label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()]
            inside = [box for box in shown if ax.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= ax.bbox.x1 + 1]
            assert len(inside) > 1
            assert all(left.x1 < right.x0 for left, right in pairwise(inside))
