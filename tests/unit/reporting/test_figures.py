"""Figures are drawn from tested numbers; here they must draw them, and nothing else."""

import ast
import builtins
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from recal.errors import MissingExtraError
from recal.reporting.data.dots import dots
from recal.reporting.data.figures import progress, reliability, risk_coverage
from recal.reporting.data.slices import slices_of
from recal.reporting.drawing import figures


def test_every_figure_of_a_comparison_is_written(comparison, tmp_path):
    names = {path.stem for path in figures.write_figures(comparison, tmp_path)}
    assert names >= {"reliability", "confidences", "risk-coverage", "classes", "methods", "group-ranks"}
    assert names >= {"recal-iterations", "recal-betas", "recal-groups"}


def test_figures_of_probabilities_alone_are_written_the_same_twice(alone, tmp_path):
    first, again = (figures.write_figures(alone, tmp_path / name, kind="svg") for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    names = {path.stem for path in first}
    assert names == {"reliability", "by-rank", "confidences", "risk-coverage", "classes"}


def test_the_reliability_figure_shows_the_accuracies(comparison):
    data = reliability(comparison.samples["recal"])
    drawn = figures.reliability_figure({"recal": data}).axes[0]
    dots = next(line for line in drawn.lines if line.get_marker() == "o")
    assert np.allclose(dots.get_xydata(), np.column_stack([data.confidence, data.accuracy]))


def test_rejected_iterations_are_hollow(comparison):
    found = progress(comparison.calibrators["recal"].history_)
    found.accepted[:3] = False
    hollow = [line for line in figures.iterations_figure(found).axes[0].lines if line.get_label() == "rejected"]
    assert len(hollow[0].get_xdata()) == 3


def test_without_matplotlib_the_extra_is_named(comparison, monkeypatch):
    real = builtins.__import__

    def no_matplotlib(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(MissingExtraError, match=r"recal-calibration\[report\]"):
        figures.risk_coverage_figure({"recal": risk_coverage(comparison.samples["recal"])})


def test_numbers_below_an_axis_do_not_run_into_each_other(comparison):
    by_class = slices_of(comparison.samples["recal"], comparison.answers["recal"], "class")
    metrics = [dots(comparison, metric) for metric in ("nll", "brier", "ece", "aurc")]
    for figure in (figures.dot_figure(metrics), figures.slice_figure(by_class)):
        figure.draw_without_rendering()
        for ax in figure.axes:
            shown = [label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()]
            inside = [box for box in shown if ax.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= ax.bbox.x1 + 1]
            assert len(inside) > 1
            assert all(left.x1 < right.x0 for left, right in pairwise(inside))


def test_both_ways_of_drawing_compute_nothing():
    """The page's SVG and matplotlib's figures show the same objects of reporting.data; what they import tells."""
    folder = Path(figures.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("recal."):
                room = node.module.split(".")[1]
                assert room in {"reporting", "comparison", "errors", "plan", "files"}, (
                    f"{path.name} imports {node.module}"
                )
