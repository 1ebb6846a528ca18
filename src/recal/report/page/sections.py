"""The parts of the page below the verdict and the slider. Each is empty where there is nothing to show."""

from __future__ import annotations

from html import escape

import numpy as np

from recal.comparison.results import MAIN_METRICS, Row
from recal.comparison.tables import describe, number, passes, seconds, signed
from recal.metrics import LABELS
from recal.metrics.evaluation import HIGHER_IS_BETTER
from recal.plan import ConfidenceAt
from recal.report.data.figures import path_of, per_class, progress
from recal.report.data.groups import GROUP_LABELS, GroupStudy, group_study
from recal.report.drawing import group_charts
from recal.report.drawing.charts import (
    class_chart,
    dot_plot,
    histogram_chart,
    percent,
    reliability_chart,
    risk_coverage_chart,
)
from recal.report.page.parts import Page, figure, legend, section, table

# Beyond so many numbers a page about them would keep people waiting.
_MOST_NUMBERS = 200_000_000


def method_table(view: Page) -> str:
    """Values with intervals, best and second best, and the difference to the baseline where it is real."""
    comparison = view.comparison
    rows = {metric: comparison.rows(metric) for metric in MAIN_METRICS}
    fitted = comparison.test is not None
    head = ["method", *(LABELS[metric] for metric in MAIN_METRICS), "p, if honest"]
    head += ["fit, CPU", "passes"] if fitted else []
    lines = []
    for index, name in enumerate(comparison.methods):
        keeps = "" if comparison.keeps_accuracy[index] else "<small>may change predictions</small>"
        cells = [
            f"{escape(name)}{keeps}",
            *(value_cell(rows[metric][index], metric, comparison.digits(metric)) for metric in MAIN_METRICS),
        ]
        cells.append(comparison.honesty[name].shown.removeprefix("p ").removeprefix("= "))
        if fitted:
            cells += [seconds(comparison.fit_seconds[:, index].mean()), passes(comparison.passes[index])]
        lines.append(cells)
    note = (
        f"{escape(describe(comparison))} <b>Bold</b> is best and <u>underlined</u> second best. ▼ or ▲ with a number: "
        f"the difference to {escape(comparison.baseline)} where its 95 % interval excludes zero. “p, if honest”: the "
        "chance that an honest model would look at least this dishonest."
        + (" “passes”: how often the model runs for one new input." if fitted else "")
    )
    left_out = "".join(
        f'<p class="note">{escape(name)} was left out: {escape(why)}</p>' for name, why in comparison.failures.items()
    )
    title = "The methods side by side" if len(comparison.methods) > 1 else "The numbers"
    plots = (
        ""
        if len(comparison.methods) < 3
        else "".join(figure(LABELS[metric], dot_plot(comparison, metric)) for metric in ("nll", "brier", "ece", "aurc"))
    )
    return section(
        "methods", title, table(head, lines) + left_out + (f'<div class="two">{plots}</div>' if plots else ""), note
    )


def value_cell(row: Row, metric: str, digits: int) -> str:
    cell = f'<span class="{row.mark}">{number(row.value, digits)}</span>' if row.mark else number(row.value, digits)
    if row.differs:
        better = (row.difference < 0) != (metric in HIGHER_IS_BETTER)
        arrow = "▼" if row.difference < 0 else "▲"
        cell += f'<span class="{"better" if better else "worse"}">{arrow} {signed(row.difference, digits)}</span>'
    low, high = row.interval
    if np.isfinite(low) and np.isfinite(high):
        cell += f"<small>{number(low, digits)} – {number(high, digits)}</small>"
    return cell


def figures(view: Page) -> str:
    """Reliability, histograms, risk against coverage and classes, before beside after."""
    comparison, n_bins = view.comparison, view.comparison.setup.n_bins
    samples = comparison.samples
    blocks = {}
    for name in view.choices:
        pairs = ([(view.before, "before")] if view.before is not None else []) + [(name, "after")]
        cards = [
            figure(f"Reliability: {which}", reliability_chart(samples[which], css, which, n_bins))
            for which, css in pairs
        ]
        cards += [figure(f"Confidences: {which}", histogram_chart(samples[which], css, which)) for which, css in pairs]
        curves = {which: samples[which] for which, _ in pairs}
        keys = legend({css: which for which, css in pairs})
        cards.append(figure("Risk against coverage", risk_coverage_chart(curves), keys))
        by_class = per_class(comparison.probabilities(name), comparison.test_labels, comparison.classes)
        cards.append(figure(f"By predicted class: {name}", class_chart(by_class, "after")))
        blocks[name] = f'<div class="two">{"".join(cards)}</div>'
    note = (
        "Reliability: the thick mark is the share right in a bin of confidence, the light box its 95 % band, the dark "
        "box the distance to the bin's mean confidence; an honest model lies on the dashed line. Histograms: filled is "
        "right, hollow is wrong; the solid line is the mean confidence, the dashed one the accuracy. "
        "Rest the pointer on a mark for its numbers."
    )
    return section("figures", "Where confidence was and is off", view.per_method(blocks), note)


def recal_figures(view: Page) -> str:
    """What ReCal did in each iteration, for each method that recorded it."""
    comparison = view.comparison
    blocks = {}
    group_keys = legend(dict(zip(group_charts.GROUP_CSS, GROUP_LABELS.values())))
    for name, calibrator in comparison.calibrators.items():
        history, plan = getattr(calibrator, "history_", ()), getattr(calibrator, "plan_", None)
        if not history or plan is None or comparison.test is None or name not in view.choices:
            continue
        data = progress(history)
        size = comparison.test.n_samples * comparison.test.n_classes * len(plan.steps)
        path = path_of(plan, comparison.test, comparison.test_labels) if size <= _MOST_NUMBERS else None
        keys = legend({"after": "fitting rows", **({"before": "test rows"} if path is not None else {})})
        rejected = "" if data.accepted.all() else " Hollow dots are rejected iterations."
        cards = [figure("ECE while fitting", group_charts.progress_chart(data, path), keys + rejected)]
        if path is not None:
            keys = legend({"after": "NLL", "before": "Brier score"})
            cards.append(figure("Proper scores on the test rows", group_charts.path_chart(path), keys))
        cards.append(figure("What happened to each group's confidence", group_charts.betas_chart(data), group_keys))
        cards.append(figure("Which groups each transformation makes", group_charts.flow_chart(data), group_keys))
        head = f"<h2>How {escape(name)} got there</h2>"
        note = (
            f'<p class="note">{len(history)} iterations over {len(plan.transforms)} transformations. Each sorts the '
            "samples into four groups, by whether the prediction was kept or changed and whether the confidence in it "
            "rose or fell when the input lost information, and scales each group's logits by a factor of its own.</p>"
        )
        blocks[name] = f'{head}{note}<div class="two">{"".join(cards)}</div>'
    return view.per_method(blocks)


def groups(view: Page) -> str:
    """The group study of the test rows, in both readings."""
    test = view.comparison.test
    if test is None or not test.transforms:
        return ""
    if test.n_samples * test.n_classes * len(test.transforms) > _MOST_NUMBERS:
        return ""
    readings: dict[ConfidenceAt, str] = {"original": "at the original's answer", "own": "at the copy's own answer"}
    studies = {words: group_study(test, confidence_at=reading) for reading, words in readings.items()}
    keys = legend({"r1": "smallest ECE", "r2": "second", "r3": "third", "r4": "largest ECE"})
    cards = [
        figure(f"Ranks of the groups, confidence {words}", group_charts.rank_chart(study), keys)
        for words, study in studies.items()
    ]
    tables = "".join(
        f"<details><summary>ECE and size of each group, confidence {words}</summary>{_group_table(study)}</details>"
        for words, study in studies.items()
    )
    note = (
        "How the uncalibrated test inputs react when they lose information, for each transformation: a group with a "
        "large error is one that a single temperature cannot serve. The copy's confidence is read in two ways."
    )
    body = f'<div class="two">{"".join(cards)}</div>{tables}'
    return section("groups", "The four groups", body, note)


def _group_table(study: GroupStudy) -> str:
    lines = []
    for spec, sizes, errors in study.lines():
        cells = [
            f"{number(error)}<small>{size:,} ({percent(size / sum(sizes))})</small>"
            for size, error in zip(sizes, errors)
        ]
        lines.append([escape(spec), *cells])
    return table(["transformation", *GROUP_LABELS.values()], lines)


def all_metrics(view: Page) -> str:
    """Every metric of every method, folded away."""
    comparison = view.comparison
    lines = [
        [escape(label), *(value_cell(row, metric, comparison.digits(metric)) for row in comparison.rows(metric))]
        for metric, label in LABELS.items()
    ]
    inside = table(["metric", *comparison.methods], lines)
    return f"<section><details><summary>All metrics of all methods</summary>{inside}</details></section>"


def how_it_was_made(view: Page) -> str:
    """All that is needed to make the report again."""
    comparison, setup = view.comparison, view.comparison.setup
    facts = [("Data", escape(describe(comparison)))]
    facts += [(f"Fingerprint, {escape(name)}", f"<code>{value}</code>") for name, value in setup.fingerprints.items()]
    facts += [("Seed", str(setup.random_state)), ("Bins", str(setup.n_bins)), ("Baseline", escape(comparison.baseline))]
    facts += [
        (f"Method {escape(name)}", f"<code>{escape(repr(c))}</code>") for name, c in comparison.calibrators.items()
    ]
    facts.append(("Versions", escape(", ".join(f"{name} {value}" for name, value in setup.versions.items()))))
    if view.command:
        facts.append(("Command", f"<code>{escape(view.command)}</code>"))
    shown = "Figures, verdict and slider show the first split. " if setup.splits > 1 else ""
    rows = "".join(f"<dt>{term}</dt><dd>{fact}</dd>" for term, fact in facts)
    note = f"{shown}Intervals of a single split come from the bootstrap; see the documentation of recal.metrics."
    return section("made", "How this was made", f'<div class="card"><dl>{rows}</dl></div>', note)
