"""What notebooks show for a fitted calibrator, a decision and a comparison: a small table and a figure, no script."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from recal.comparison.results import MAIN_METRICS, Comparison
from recal.comparison.tables import number
from recal.errors import RecalError
from recal.metrics import LABELS
from recal.reporting.chart import Area, Axis, Chart, Line, Mark, style_sheet, svg
from recal.reporting.charts import FIFTHS, percent, reliability_chart
from recal.reporting.curves import reliability, reliability_of

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator
    from recal.decisions import Decision

# More classes than this would not change the picture of a map.
_MOST_CLASSES = 20


def calibrator_html(calibrator: Calibrator) -> str:
    """Return a card with what was fitted, and how the calibration changes the confidence."""
    if not hasattr(calibrator, "classes_"):
        return Markup("<pre>{}</pre>").format(repr(calibrator))
    facts = [("Fitted on", f"{calibrator.n_fitted_:,} samples, {len(calibrator.classes_):,} classes")]
    if reason := getattr(calibrator, "reason_", ""):
        facts.append(("Method", reason))
    elif (beta := getattr(calibrator, "beta_", None)) is not None and np.ndim(beta) == 0:
        facts.append(("Temperature", f"{1 / float(beta):.4g}"))
    keeps = "never change" if calibrator.keeps_accuracy else "may change"
    facts.append(("Predictions", keeps))
    if views := calibrator.needed_transforms():
        facts.append(("Views", ", ".join(str(view) for view in views[:4]) + (" …" if len(views) > 4 else "")))
    if (rule := getattr(calibrator, "decision_", None)) is not None:
        facts.append(("Rule", f"at most {100 * rule.risk:g} % errors at {100 * rule.confidence:g} % confidence"))
    chart = _confidence_chart(calibrator)
    return _card(repr(calibrator), _facts(facts), [] if chart is None else [chart])


def _confidence_chart(calibrator: Calibrator) -> Chart | None:
    """Confidence after calibration against confidence before, for one class against equal others; None with views."""
    n_classes = len(calibrator.classes_)
    before = np.linspace(1 / n_classes + 0.01, 0.999, 80)
    margins = np.log(before * (n_classes - 1) / (1 - before))
    after = []
    try:
        for column in range(min(n_classes, _MOST_CLASSES)):
            logits = np.zeros((len(margins), n_classes))
            logits[:, column] = margins
            after.append(calibrator.predict_confidence(logits))
    except RecalError:  # the method reads views, which no example can make up
        return None
    values = np.array(after)
    marks: list[Mark] = [
        Line((0, 1), (0, 1), "ideal", "unchanged"),
        Area(before, values.min(axis=0), values.max(axis=0), "band after"),
        Line(before, values.mean(axis=0), "curve after", "mean over the classes"),
    ]
    axes = Axis(0, 1, "confidence before", FIFTHS), Axis(0, 1, "after calibration", FIFTHS)
    return Chart("Confidence before and after calibration", *axes, marks)


def decision_html(decision: Decision) -> str:
    """Return a card with the rule, what it accepts, and the reliability of the samples that it was made on."""
    facts = [("Guarantee", f"at most {100 * decision.risk:g} % errors at {100 * decision.confidence:g} % confidence")]
    facts.append(("Samples", f"{decision.n_samples:,} labelled"))
    threshold = None
    if not decision.possible:
        facts.append(("Accepted", "none"))
        if decision.needed:
            facts.append(("Needed", f"about {decision.needed:,} more labelled samples"))
    else:
        low, high = decision.interval
        facts.append(("Accepted", f"{percent(decision.coverage)} ({100 * low:.1f} – {percent(high)})"))
        facts.append(("Errors seen", f"{decision.n_errors:,} of {decision.n_accepted:,}"))
        if len(decision.thresholds) == 1:
            threshold = decision.threshold
            facts.append(("Threshold", f"confidence of at least {threshold:.6g}"))
        else:
            facts.append(("Thresholds", f"{len(decision.thresholds)}, one for each class or group"))
    charts = []
    if decision.bins is not None:
        chart = reliability_chart(reliability_of(decision.bins), "after", "decision")
        marks = list(chart.marks)
        if threshold is not None:
            marks.append(Line((threshold, threshold), (0, 1), "cursor", f"threshold {threshold:.6g}"))
        charts.append(Chart(chart.title, chart.x, chart.y, marks, height=chart.height))
    return _card("Decision", _facts(facts), charts)


def comparison_html(comparison: Comparison) -> str:
    """Return a card with the main metrics of every method, and reliability before and after."""
    metrics = [metric for metric in MAIN_METRICS if metric in comparison.values]
    rows = {metric: comparison.rows(metric) for metric in metrics}
    head = Markup("").join(Markup('<th class="number">{}</th>').format(LABELS[metric]) for metric in metrics)
    lines = []
    for index, name in enumerate(comparison.methods):
        cells = Markup("")
        for metric in metrics:
            row = rows[metric][index]
            text: Any = number(row.value, comparison.digits(metric))
            text = Markup("<b>{}</b>").format(text) if row.mark == "best" else text
            cells += Markup('<td class="number">{}</td>').format(text)
        lines.append(Markup("<tr><th>{}</th>{}</tr>").format(name, cells))
    table = Markup("<table><tr><th>method</th>{}</tr>{}</table>").format(head, Markup("").join(lines))
    shown = dict.fromkeys((comparison.methods[0], comparison.best("nll")))
    charts = [
        reliability_chart(reliability(comparison.samples[name]), "after" if index else "before", name)
        for index, name in enumerate(shown)
    ]
    return _card(f"{len(comparison.methods)} methods on {comparison.setup.n_test:,} samples", table, charts)


def _facts(facts: Sequence[tuple[str, str]]) -> Markup:
    rows = Markup("").join(Markup("<tr><th>{}</th><td>{}</td></tr>").format(*fact) for fact in facts)
    return Markup("<table>{}</table>").format(rows)


def _card(title: str, table: Markup, charts: Sequence[Chart]) -> str:
    rules = files("recal.reporting").joinpath("templates", "card.css").read_text(encoding="utf-8")
    style = Markup(style_sheet(".recal") + "\n" + rules)
    drawn = Markup("").join(Markup(svg(chart)) for chart in charts)
    card = Markup('<div class="recal"><style>{}</style><p>{}</p><div>{}</div>{}</div>')
    return str(card.format(style, title, table, drawn))
