"""The methods side by side, and where confidence was and is off, in figures."""

from __future__ import annotations

from html import escape

import numpy as np

from recal.comparison.results import MAIN_METRICS, Row
from recal.comparison.tables import describe, number, passes, seconds, signed
from recal.metrics import LABELS
from recal.metrics.evaluation import HIGHER_IS_BETTER
from recal.metrics.rows import RowScores
from recal.reporting.data.dots import dots
from recal.reporting.data.figures import crowd, histogram, reliability, risk_coverage
from recal.reporting.drawing.charts import (
    crowd_chart,
    dot_plot,
    histogram_chart,
    reliability_chart,
    risk_coverage_chart,
)
from recal.reporting.page import data_tables
from recal.reporting.page.parts import Page, figure, legend, section, spoken, table


def method_table(view: Page) -> str:
    """Values with intervals, best and second best, and the difference to the baseline where it is real."""
    comparison = view.comparison
    rows = {metric: comparison.rows(metric) for metric in MAIN_METRICS}
    fitted = comparison.test is not None
    head = ["method", *(LABELS[metric] for metric in MAIN_METRICS), "p, calibration test"]
    head += ["fit, CPU", "passes"] if fitted else []
    lines = []
    for index, name in enumerate(comparison.methods):
        keeps = "" if comparison.keeps_accuracy[index] else "<small>may change predictions</small>"
        cells = [
            f"{escape(name)}{keeps}",
            *(value_cell(rows[metric][index], metric, comparison.digits(metric)) for metric in MAIN_METRICS),
        ]
        cells.append(comparison.calibration_tests[name].shown.removeprefix("p ").removeprefix("= "))
        if fitted:
            cells += [seconds(comparison.fit_seconds[:, index].mean()), passes(comparison.passes[index])]
        lines.append(cells)
    note = (
        f"{escape(describe(comparison))} <b>Bold</b> is best and <u>underlined</u> second best. ▼ or ▲ with a number: "
        f"the difference to {escape(comparison.baseline)} where its 95 % interval excludes zero. “p, calibration "
        "test”: the share of samples in which a calibrated model would give a result at least this far off."
        + (" “passes”: how often the model runs for one new input." if fitted else "")
    )
    left_out = "".join(
        f'<p class="note">{escape(name)} was left out: {escape(why)}</p>' for name, why in comparison.failures.items()
    )
    title = "The methods side by side" if len(comparison.methods) > 1 else "The numbers"
    plots = (
        ""
        if len(comparison.methods) < 3
        else "".join(
            figure(data.label, dot_plot(data), data=data_tables.dots_table(data))
            for data in (dots(comparison, metric) for metric in ("nll", "brier", "ece", "aurc"))
        )
    )
    return section(
        "methods",
        title,
        table(head, lines, title) + left_out + (f'<div class="two">{plots}</div>' if plots else ""),
        note,
    )


def value_cell(row: Row, metric: str, digits: int) -> str:
    cell = number(row.value, digits)
    if row.mark:
        cell = f'<span class="{row.mark}">{cell}</span>' + spoken(row.mark + (" best" if row.mark == "second" else ""))
    if row.differs:
        better = (row.difference < 0) != (metric in HIGHER_IS_BETTER)
        word = "better" if better else "worse"
        arrow = f'<span aria-hidden="true">{"▼" if row.difference < 0 else "▲"}</span>{spoken(word)}'
        cell += f'<span class="{word}">{arrow} {signed(row.difference, digits)}</span>'
    low, high = row.interval
    if np.isfinite(low) and np.isfinite(high):
        cell += f"<small>{number(low, digits)} – {number(high, digits)}</small>"
    return cell


def figures(view: Page) -> str:
    """Reliability, the crowded top, confidences, and risk against coverage: before beside after."""
    comparison, n_bins = view.comparison, view.comparison.setup.n_bins
    samples = comparison.samples
    # What shows the model before is the same for every method: drawn once.
    before = {} if view.before is None else _cards(samples[view.before], view.before, "before", n_bins)
    blocks = {}
    for name in view.choices:
        after = _cards(samples[name], name, "after", n_bins)
        cards = [card for kind, card in after.items() for card in ([before[kind]] if before else []) + [card]]
        curves = {which: risk_coverage(samples[which]) for which in (view.before, name) if which is not None}
        keys = legend(dict(zip(("before", "after") if before else ("after",), curves)))
        cards.append(figure("Risk against coverage", risk_coverage_chart(curves), keys, data_tables.risk_table(curves)))
        blocks[name] = f'<div class="two">{"".join(cards)}</div>'
    note = (
        "Reliability: the thick mark is the accuracy in a bin of confidence, with its 95 % band as a light box. The "
        "dark box is the distance to the bin's mean confidence. A calibrated model lies on the dashed line. By rank: "
        "each column has equally many answers. A dot outside its light box made more or fewer errors than a "
        "calibrated model would. Histograms: right answers are filled, wrong ones hollow. The solid line is the mean "
        "confidence, the dashed one the accuracy."
    )
    return section("figures", "Calibration before and after", view.per_method(blocks), note)


def _cards(rows: RowScores, name: str, css: str, n_bins: int) -> dict[str, str]:
    bins, ranks, confidences = reliability(rows, n_bins), crowd(rows), histogram(rows)
    return {
        "reliability": figure(
            f"Reliability: {name}", reliability_chart(bins, css, name), data=data_tables.reliability_table(bins, name)
        ),
        "crowd": figure(f"By rank: {name}", crowd_chart(ranks, css, name), data=data_tables.crowd_table(ranks, name)),
        "confidences": figure(
            f"Confidences: {name}",
            histogram_chart(confidences, css, name),
            data=data_tables.histogram_table(confidences, name),
        ),
    }
